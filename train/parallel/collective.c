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

static const char *const kind_names[] = {[KEEL_ALL_REDUCE] = "all_reduce", [KEEL_BROADCAST] = "broadcast"};

static keel_status mpi_failed(const char *name, int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, text, &length);
    return keel_fail(KEEL_ERR_COMM, "%s: %s", name, text);
}

static keel_status make_type(keel_collective *made) {
    made->type = made->plan.dtype == KEEL_F64 ? MPI_DOUBLE : MPI_FLOAT;
    if (!made->plan.whole) return KEEL_OK;
    int code = MPI_Type_contiguous((int)made->plan.count, made->type, &made->type);
    if (code == MPI_SUCCESS) code = MPI_Type_commit(&made->type);
    return code == MPI_SUCCESS ? KEEL_OK : mpi_failed(made->plan.name, code);
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
        if (set->list[i]->plan.whole) MPI_Type_free(&set->list[i]->type);
        free((char *)set->list[i]->plan.name);
        free(set->list[i]);
    }
    free(set->list);
    free(set);
}

static keel_status add_site(keel_collectives *set, const keel_collective_plan *plan, bool out, keel_tap **tap,
                            keel_site **site) {
    keel_site_info info = {.quantity = out ? KEEL_COLLECTIVE_OUT : KEEL_COLLECTIVE_IN,
                           .dtype = plan->dtype,
                           .layout = out ? KEEL_LAYOUT_REPLICA : KEEL_LAYOUT_PARTIAL,
                           .phase = KEEL_PHASE_REDUCTION,
                           .order = (uint32_t)(2 * set->count + out),
                           .layer = -1,
                           .ndim = 1,
                           .shape = {plan->count},
                           .numel = plan->count,
                           .replica_index = out ? (uint32_t)plan->comm->rank : 0,
                           .replica_count = out ? (uint32_t)plan->comm->size : 1};
    snprintf(info.name, sizeof info.name, "%s", plan->name);
    snprintf(info.module, sizeof info.module, "%s", kind_names[plan->kind]);
    if (plan->dtype == KEEL_F32) return keel_taps_add(set->taps, &info, tap);
    return keel_site_add(keel_taps_probe(set->taps), &info, site);
}

keel_status keel_collectives_add(keel_collectives *set, const keel_collective_plan *plan,
                                 keel_collective **collective) {
    keel_collective *made = calloc(1, sizeof *made);
    keel_collective **list = realloc(set->list, (set->count + 1) * sizeof *list);
    if (list) set->list = list;
    char *name = strdup(plan->name);
    keel_status status = KEEL_OK;
    if (!made || !list || !name) {
        status = keel_fail(KEEL_ERR_MEMORY, "no memory for collectives");
        goto fail;
    }
    made->plan = *plan;
    made->plan.name = name;
    made->bytes = plan->count * keel_dtype_size(plan->dtype);
    made->request = MPI_REQUEST_NULL;
    status = make_type(made);
    if (status) goto fail;
    if (plan->when == KEEL_EVERY_STEP && plan->comm->size > 1) {
        status = add_site(set, &made->plan, false, &made->in, &made->in_site);
        if (!status) status = add_site(set, &made->plan, true, &made->out, &made->out_site);
        if (status) goto fail;
    }
    set->list[set->count++] = made;
    *collective = made;
    return KEEL_OK;
fail:
    free(name);
    free(made);
    return status;
}

const keel_collective *keel_collectives_get(const keel_collectives *set, size_t index) {
    return index < set->count ? set->list[index] : NULL;
}

static void begin(keel_collective *collective, void *data) {
    if (collective->in) keel_tap_at(collective->in, data, collective->plan.count);
    if (collective->in_site) keel_observe(collective->in_site, data, collective->plan.count);
    collective->data = data;
    collective->started = keel_seconds();
}

static void finish(keel_collective *collective, double waited_since) {
    const double now = keel_seconds();
    collective->calls++;
    collective->seconds += now - collective->started;
    collective->waited += now - waited_since;
    if (collective->out) keel_tap_at(collective->out, collective->data, collective->plan.count);
    if (collective->out_site) keel_observe(collective->out_site, collective->data, collective->plan.count);
    collective->data = NULL;
}

keel_status keel_all_reduce(keel_collective *collective, void *data) {
    const keel_collective_plan *plan = &collective->plan;
    if (plan->comm->size == 1) return KEEL_OK;
    begin(collective, data);
    const int count = plan->whole ? 1 : (int)plan->count;
    const int code = MPI_Allreduce(MPI_IN_PLACE, data, count, collective->type, plan->op, plan->comm->mpi);
    if (code != MPI_SUCCESS) return mpi_failed(plan->name, code);
    finish(collective, collective->started);
    return KEEL_OK;
}

keel_status keel_broadcast(keel_collective *collective, void *data) {
    const keel_collective_plan *plan = &collective->plan;
    if (plan->comm->size == 1) return KEEL_OK;
    begin(collective, data);
    const size_t width = keel_dtype_size(plan->dtype);
    for (size_t at = 0; at < plan->count; at += MAX_PIECE) {
        const size_t take = plan->count - at < MAX_PIECE ? plan->count - at : MAX_PIECE;
        const int code = MPI_Bcast((char *)data + at * width, (int)take, collective->type, 0, plan->comm->mpi);
        if (code != MPI_SUCCESS) return mpi_failed(plan->name, code);
    }
    finish(collective, collective->started);
    return KEEL_OK;
}

// The checker looks for start and wait in one function.
// NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker)
keel_status keel_all_reduce_start(keel_collective *collective, void *data) {
    const keel_collective_plan *plan = &collective->plan;
    begin(collective, data);
    const int code = MPI_Iallreduce(MPI_IN_PLACE, data, (int)plan->count, collective->type, plan->op, plan->comm->mpi,
                                    &collective->request);
    return code == MPI_SUCCESS ? KEEL_OK : mpi_failed(plan->name, code);
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
    const int code = MPI_Wait(&collective->request, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return mpi_failed(collective->plan.name, code);
    finish(collective, since);
    return KEEL_OK;
}
// NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker)

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
