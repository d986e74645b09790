#include "train/parallel/collective.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train/clock.h"

enum { MAX_PIECE = 1 << 30 }; // elements of one MPI call

struct keel_collectives {
    keel_taps *taps;
    keel_collective **list;
    size_t count;
};

const char *keel_collective_kind_name(keel_collective_kind kind) {
    static const char *const names[] = {[KEEL_ALL_REDUCE] = "all_reduce",
                                        [KEEL_REDUCE_SCATTER] = "reduce_scatter",
                                        [KEEL_ALL_GATHER] = "all_gather",
                                        [KEEL_BROADCAST] = "broadcast",
                                        [KEEL_REDUCE] = "reduce",
                                        [KEEL_ALL_TO_ALL] = "all_to_all",
                                        [KEEL_SEND] = "send",
                                        [KEEL_RECEIVE] = "receive"};
    return names[kind];
}

static keel_status mpi_failed(const char *name, int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, text, &length);
    return keel_fail(KEEL_ERR_COMM, "%s: %s", name, text);
}

static bool own_type(const keel_collective_plan *plan) {
    return plan->whole || plan->kind == KEEL_ALL_TO_ALL;
}

static keel_status make_type(keel_collective *made) {
    made->type = made->plan.dtype == KEEL_F64 ? MPI_DOUBLE : MPI_FLOAT;
    if (!own_type(&made->plan)) return KEEL_OK;
    int code =
        MPI_Type_contiguous((int)(made->plan.whole ? made->plan.count : made->plan.row), made->type, &made->type);
    if (code == MPI_SUCCESS) code = MPI_Type_commit(&made->type);
    return code == MPI_SUCCESS ? KEEL_OK : mpi_failed(made->plan.name, code);
}

// MPI's counts are ints: a broadcast goes in pieces, an all-to-all counts rows.
static keel_status check_count(const keel_collective_plan *plan) {
    if (plan->comm->size == 1 || plan->kind == KEEL_BROADCAST || plan->kind == KEEL_ALL_TO_ALL ||
        plan->count <= INT_MAX)
        return KEEL_OK;
    return keel_fail(KEEL_ERR_CONFIG, "%s: %zu elements are more than the %d that one call of MPI takes", plan->name,
                     plan->count, INT_MAX);
}

static bool shares_out(const keel_collective_plan *plan) {
    return plan->kind == KEEL_REDUCE_SCATTER || plan->kind == KEEL_ALL_GATHER;
}

static keel_status make_shares(keel_collective *made) {
    const keel_collective_plan *plan = &made->plan;
    const size_t ranks = (size_t)plan->comm->size;
    if (plan->kind == KEEL_ALL_TO_ALL) {
        made->counts = calloc(4 * ranks, sizeof *made->counts);
        return made->counts ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for the shares of %zu ranks", ranks);
    }
    if (!shares_out(plan)) return KEEL_OK;
    if (plan->share * ranks < plan->count)
        return keel_fail(KEEL_ERR_USAGE, "%s: shares of %zu for %zu ranks do not make up %zu elements", plan->name,
                         plan->share, ranks, plan->count);
    made->counts = calloc(2 * ranks, sizeof *made->counts);
    if (!made->counts) return keel_fail(KEEL_ERR_MEMORY, "no memory for the shares of %zu ranks", ranks);
    made->begins = made->counts + ranks;
    for (size_t r = 0; r < ranks; r++) {
        const size_t begin = r * plan->share < plan->count ? r * plan->share : plan->count;
        const size_t rest = plan->count - begin;
        made->begins[r] = (int)begin;
        made->counts[r] = (int)(rest < plan->share ? rest : plan->share);
    }
    return KEEL_OK;
}

keel_status keel_collectives_open(keel_taps *taps, keel_collectives **set) {
    keel_collectives *made = calloc(1, sizeof *made);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "no memory for collectives");
    made->taps = taps;
    *set = made;
    return KEEL_OK;
}

void keel_collectives_close(keel_collectives *set) {
    if (!set) return;
    for (size_t i = 0; i < set->count; i++) {
        if (own_type(&set->list[i]->plan)) MPI_Type_free(&set->list[i]->type);
        free((char *)set->list[i]->plan.name);
        free(set->list[i]->counts);
        free(set->list[i]);
    }
    free(set->list);
    free(set);
}

// Whether a rank contributes (OUT false) or gets its share only.
static bool is_share(const keel_collective_plan *plan, bool out) {
    return plan->kind == (out ? KEEL_REDUCE_SCATTER : KEEL_ALL_GATHER);
}

static bool is_transfer(const keel_collective_plan *plan) {
    return plan->kind == KEEL_SEND || plan->kind == KEEL_RECEIVE;
}

// The ranks that have the same values; NULL: none.
static const keel_comm *copies_of(const keel_collective_plan *plan, bool out) {
    if (is_transfer(plan) || plan->kind == KEEL_ALL_TO_ALL) return plan->copies;
    return out && !is_share(plan, out) ? plan->comm : NULL;
}

static keel_layout layout_of(const keel_collective_plan *plan, bool out) {
    if (is_transfer(plan) || plan->kind == KEEL_ALL_TO_ALL) return KEEL_LAYOUT_SAMPLE;
    if (!out && !is_share(plan, out)) return KEEL_LAYOUT_PARTIAL;
    if (plan->place.within) return KEEL_LAYOUT_SAMPLE;
    return is_share(plan, out) ? KEEL_LAYOUT_SHARD : KEEL_LAYOUT_REPLICA;
}

static keel_status add_site(keel_collectives *set, const keel_collective_plan *plan, bool out, keel_tap **tap,
                            keel_site **site) {
    const keel_collective_place *place = &plan->place;
    const keel_comm *copies = copies_of(plan, out);
    keel_site_info info = {.quantity = out ? KEEL_COLLECTIVE_OUT : KEEL_COLLECTIVE_IN,
                           .dtype = plan->dtype,
                           .layout = layout_of(plan, out),
                           .phase = place->within || place->order ? place->phase : KEEL_PHASE_REDUCTION,
                           .order = place->order + (place->within ? 0 : (uint32_t)(2 * set->count + out)),
                           .layer = place->within ? place->layer : -1,
                           .stage = place->stage,
                           .ndim = 1,
                           .shape = {plan->count},
                           .numel = plan->count,
                           .replica_index = copies ? (uint32_t)copies->rank : 0,
                           .replica_count = copies ? (uint32_t)copies->size : 1};
    snprintf(info.name, sizeof info.name, "%s", plan->name);
    snprintf(info.module, sizeof info.module, "%s", keel_collective_kind_name(plan->kind));
    if (plan->dtype != KEEL_F32) return keel_site_add(keel_taps_probe(set->taps), &info, site);
    const keel_status status = keel_taps_add(set->taps, &info, tap);
    if (!status) (*tap)->gradient = plan->gradient;
    return status;
}

keel_status keel_collectives_add(keel_collectives *set, const keel_collective_plan *plan,
                                 keel_collective **collective) {
    keel_collective *made = calloc(1, sizeof *made);
    keel_collective **list = realloc(set->list, (set->count + 1) * sizeof *list);
    if (list) set->list = list;
    // What stands behind the pass each stage has of its own, under one name.
    const bool of_stage = plan->comm->one_stage && !plan->place.within;
    char *name = NULL;
    if (asprintf(&name, of_stage ? "%s.stage.%d" : "%s", plan->name, (int)plan->comm->stage) < 0) name = NULL;
    keel_status status = KEEL_OK;
    if (!made || !list || !name) {
        status = keel_fail(KEEL_ERR_MEMORY, "no memory for collectives");
        goto fail;
    }
    made->plan = *plan;
    made->plan.name = name;
    if (of_stage) made->plan.place.stage = plan->comm->stage;
    made->bytes = plan->count * keel_dtype_size(plan->dtype);
    made->request = MPI_REQUEST_NULL;
    made->probe = keel_taps_probe(set->taps);
    status = check_count(&made->plan);
    if (!status) status = make_type(made);
    if (!status) status = make_shares(made);
    if (status) goto fail;
    if (plan->when == KEEL_EVERY_STEP && plan->comm->size > 1) {
        if (plan->kind != KEEL_RECEIVE) status = add_site(set, &made->plan, false, &made->in, &made->in_site);
        if (!status && plan->kind != KEEL_SEND) status = add_site(set, &made->plan, true, &made->out, &made->out_site);
        if (status) goto fail;
    }
    set->list[set->count++] = made;
    *collective = made;
    return KEEL_OK;
fail:
    free(name);
    if (made) free(made->counts);
    free(made);
    return status;
}

const keel_collective *keel_collectives_get(const keel_collectives *set, size_t index) {
    return index < set->count ? set->list[index] : NULL;
}

// What this rank contributes (OUT false) or gets: all of DATA, or its share.
static void look(const keel_collective *collective, bool out) {
    const keel_collective_plan *plan = &collective->plan;
    keel_tap *tap = out ? collective->out : collective->in;
    keel_site *site = out ? collective->out_site : collective->in_site;
    const bool share = is_share(plan, out);
    const size_t begin = share ? (size_t)collective->begins[plan->comm->rank] : 0;
    const size_t count = share ? (size_t)collective->counts[plan->comm->rank] : collective->count;
    char *data = (char *)collective->data + begin * keel_dtype_size(plan->dtype);
    if (tap) keel_tap_part(tap, (float *)(void *)data, begin, count);
    if (site) keel_observe(site, data, count);
}

// From here on the rank waits for others, until finish, or end_start where the call only starts it.
static void begin(keel_collective *collective, void *data, size_t count) {
    collective->data = data;
    collective->count = count;
    look(collective, false);
    collective->started = keel_seconds();
    keel_wait_begin(collective->probe);
}

static void account(keel_collective *collective, double waited_since) {
    const double now = keel_seconds();
    keel_wait_end(collective->probe);
    collective->calls++;
    collective->seconds += now - collective->started;
    collective->waited += now - waited_since;
}

static void finish(keel_collective *collective, double waited_since) {
    const keel_collective_plan *plan = &collective->plan;
    account(collective, waited_since);
    if (plan->kind == KEEL_REDUCE_SCATTER) { // MPI leaves it at the beginning
        const size_t width = keel_dtype_size(plan->dtype);
        const int rank = plan->comm->rank;
        memmove((char *)collective->data + (size_t)collective->begins[rank] * width, collective->data,
                (size_t)collective->counts[rank] * width);
    }
    look(collective, true);
    collective->data = NULL;
}

// CODE of a blocking call that BEGAN.
static keel_status end_blocking(keel_collective *collective, int code) {
    if (code != MPI_SUCCESS) return mpi_failed(collective->plan.name, code);
    finish(collective, collective->started);
    return KEEL_OK;
}

// CODE of a call that only started it.
static keel_status end_start(keel_collective *collective, int code) {
    keel_wait_end(collective->probe);
    return code == MPI_SUCCESS ? KEEL_OK : mpi_failed(collective->plan.name, code);
}

keel_status keel_all_reduce_first(keel_collective *collective, void *data, size_t count) {
    const keel_collective_plan *plan = &collective->plan;
    if (plan->comm->size == 1) return KEEL_OK;
    begin(collective, data, count);
    return end_blocking(collective, MPI_Allreduce(MPI_IN_PLACE, data, plan->whole ? 1 : (int)count, collective->type,
                                                  plan->op, plan->comm->mpi));
}

keel_status keel_all_reduce(keel_collective *collective, void *data) {
    return keel_all_reduce_first(collective, data, collective->plan.count);
}

keel_status keel_reduce_scatter(keel_collective *collective, void *data) {
    const keel_collective_plan *plan = &collective->plan;
    if (plan->comm->size == 1) return KEEL_OK;
    begin(collective, data, plan->count);
    return end_blocking(collective, MPI_Reduce_scatter(MPI_IN_PLACE, data, collective->counts, collective->type,
                                                       plan->op, plan->comm->mpi));
}

keel_status keel_all_gather(keel_collective *collective, void *data) {
    const keel_collective_plan *plan = &collective->plan;
    if (plan->comm->size == 1) return KEEL_OK;
    begin(collective, data, plan->count);
    return end_blocking(collective, MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, collective->counts,
                                                   collective->begins, collective->type, plan->comm->mpi));
}

keel_status keel_reduce(keel_collective *collective, void *data) {
    const keel_collective_plan *plan = &collective->plan;
    if (plan->comm->size == 1) return KEEL_OK;
    begin(collective, data, plan->count);
    const bool root = plan->comm->rank == 0;
    return end_blocking(collective, MPI_Reduce(root ? MPI_IN_PLACE : data, root ? data : NULL, (int)plan->count,
                                               collective->type, plan->op, 0, plan->comm->mpi));
}

keel_status keel_broadcast(keel_collective *collective, void *data) {
    const keel_collective_plan *plan = &collective->plan;
    if (plan->comm->size == 1) return KEEL_OK;
    begin(collective, data, plan->count);
    const size_t width = keel_dtype_size(plan->dtype);
    for (size_t at = 0; at < plan->count; at += MAX_PIECE) {
        const size_t take = plan->count - at < MAX_PIECE ? plan->count - at : MAX_PIECE;
        const int code = MPI_Bcast((char *)data + at * width, (int)take, collective->type, 0, plan->comm->mpi);
        if (code != MPI_SUCCESS) return mpi_failed(plan->name, code);
    }
    finish(collective, collective->started);
    return KEEL_OK;
}

keel_status keel_collective_run(keel_collective *collective, void *data) {
    switch (collective->plan.kind) {
    case KEEL_REDUCE_SCATTER:
        return keel_reduce_scatter(collective, data);
    case KEEL_ALL_GATHER:
        return keel_all_gather(collective, data);
    case KEEL_BROADCAST:
        return keel_broadcast(collective, data);
    case KEEL_REDUCE:
        return keel_reduce(collective, data);
    default:
        return keel_all_reduce(collective, data);
    }
}

// COUNTS and BEGINS [ranks] in rows, for MPI; gives the number of elements.
static size_t lay_out(const keel_collective_plan *plan, const uint32_t *rows, int *counts, int *begins) {
    size_t total = 0;
    for (int r = 0; r < plan->comm->size; r++) {
        begins[r] = (int)total;
        counts[r] = (int)rows[r];
        total += rows[r];
    }
    return total * plan->row;
}

static void look_at(keel_tap *tap, keel_site *site, void *data, size_t count) {
    if (tap) keel_tap_at(tap, data, count);
    if (site) keel_observe(site, data, count);
}

keel_status keel_all_to_all(keel_collective *collective, void *send, const uint32_t *sent, void *get,
                            const uint32_t *got) {
    const keel_collective_plan *plan = &collective->plan;
    const int ranks = plan->comm->size;
    int *counts = collective->counts;
    if (ranks == 1) return KEEL_OK;
    const size_t given = lay_out(plan, sent, counts, counts + ranks);
    const size_t taken = lay_out(plan, got, counts + 2 * ranks, counts + 3 * ranks);
    look_at(collective->in, collective->in_site, send, given);
    collective->started = keel_seconds();
    keel_wait_begin(collective->probe);
    const int code = MPI_Alltoallv(send, counts, counts + ranks, collective->type, get, counts + 2 * ranks,
                                   counts + 3 * ranks, collective->type, plan->comm->mpi);
    if (code != MPI_SUCCESS) return mpi_failed(plan->name, code);
    account(collective, collective->started);
    look_at(collective->out, collective->out_site, get, taken);
    return KEEL_OK;
}

// The checker looks for start and wait in one function.
// NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker)
keel_status keel_all_reduce_start(keel_collective *collective, void *data) {
    const keel_collective_plan *plan = &collective->plan;
    begin(collective, data, plan->count);
    const int code = MPI_Iallreduce(MPI_IN_PLACE, data, (int)plan->count, collective->type, plan->op, plan->comm->mpi,
                                    &collective->request);
    return end_start(collective, code);
}

keel_status keel_reduce_scatter_start(keel_collective *collective, void *data) {
    const keel_collective_plan *plan = &collective->plan;
    begin(collective, data, plan->count);
    const int code = MPI_Ireduce_scatter(MPI_IN_PLACE, data, collective->counts, collective->type, plan->op,
                                         plan->comm->mpi, &collective->request);
    return end_start(collective, code);
}

keel_status keel_all_gather_start(keel_collective *collective, void *data) {
    const keel_collective_plan *plan = &collective->plan;
    begin(collective, data, plan->count);
    const int code = MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, collective->counts, collective->begins,
                                     collective->type, plan->comm->mpi, &collective->request);
    return end_start(collective, code);
}

keel_status keel_send_start(keel_collective *collective, void *data) {
    const keel_collective_plan *plan = &collective->plan;
    begin(collective, data, plan->count);
    return end_start(collective, MPI_Isend(data, (int)plan->count, collective->type, plan->peer, 0, plan->comm->mpi,
                                           &collective->request));
}

keel_status keel_receive_start(keel_collective *collective, void *data) {
    const keel_collective_plan *plan = &collective->plan;
    begin(collective, data, plan->count);
    return end_start(collective, MPI_Irecv(data, (int)plan->count, collective->type, plan->peer, 0, plan->comm->mpi,
                                           &collective->request));
}

keel_status keel_collective_test(keel_collective *collective, bool *done) {
    int flag = 1;
    if (collective->data) {
        const int code = MPI_Test(&collective->request, &flag, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) return mpi_failed(collective->plan.name, code);
        if (flag) finish(collective, keel_seconds());
    }
    *done = flag;
    return KEEL_OK;
}

keel_status keel_collective_wait(keel_collective *collective) {
    if (!collective->data) return KEEL_OK;
    const double since = keel_seconds();
    keel_wait_begin(collective->probe);
    const int code = MPI_Wait(&collective->request, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return mpi_failed(collective->plan.name, code);
    finish(collective, since);
    return KEEL_OK;
}
// NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker)

void keel_collectives_progress(const keel_collectives *set) {
    int done;
    for (size_t i = 0; set && i < set->count; i++)
        if (set->list[i]->data) (void)MPI_Request_get_status(set->list[i]->request, &done, MPI_STATUS_IGNORE);
}

double keel_collectives_waited(const keel_collectives *set) {
    double seconds = 0;
    for (size_t i = 0; i < set->count; i++) seconds += set->list[i]->waited;
    return seconds;
}

// Without spinning.
static int wait_with_naps(MPI_Request *request) {
    const struct timespec nap = {.tv_nsec = 1000000};
    enum { QUICK_TRIES = 100 };
    int done = 0, code = MPI_SUCCESS;
    for (int tries = 0; !done && code == MPI_SUCCESS; tries++) {
        code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (!done && tries >= QUICK_TRIES) nanosleep(&nap, NULL);
    }
    return code;
}

keel_status keel_agree(const keel_comm *comm, keel_status status) {
    enum { TEXT_BYTES = 1024 };
    struct {
        int status;
        char text[TEXT_BYTES];
    } failure = {.status = (int)status};
    if (comm->size == 1) return status;
    int lowest = status ? comm->rank : INT_MAX;
    MPI_Request request;
    int code = MPI_Iallreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, comm->mpi, &request);
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): completed with naps
    if (code == MPI_SUCCESS) code = wait_with_naps(&request);
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker)
    if (code != MPI_SUCCESS) return mpi_failed(comm->name, code);
    if (lowest == INT_MAX) return KEEL_OK;
    if (lowest == comm->rank) snprintf(failure.text, sizeof failure.text, "%s", keel_error());
    code = MPI_Bcast(&failure, (int)sizeof failure, MPI_BYTE, lowest, comm->mpi);
    if (code != MPI_SUCCESS) return mpi_failed(comm->name, code);
    if (lowest == comm->rank) return status;
    return keel_fail((keel_status)failure.status, "%s", failure.text);
}

keel_status keel_share_text(const keel_comm *comm, int from, char **text) {
    const bool mine = comm->rank == from;
    int length = mine ? (int)strlen(*text) : 0;
    if (comm->size == 1) return KEEL_OK;
    int code = MPI_Bcast(&length, 1, MPI_INT, from, comm->mpi);
    if (code != MPI_SUCCESS) return mpi_failed(comm->name, code);
    char *shared = mine ? *text : calloc((size_t)length + 1, 1);
    keel_status status = shared ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for a text of %d bytes", length);
    status = keel_agree(comm, status);
    if (!status) {
        code = MPI_Bcast(shared, length, MPI_CHAR, from, comm->mpi);
        if (code != MPI_SUCCESS) status = mpi_failed(comm->name, code);
    }
    if (!mine && status) free(shared);
    if (!mine && !status) *text = shared;
    return status;
}
