#include "collectors/mpi/site_agreement.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 400 };

typedef struct tables {
    const keel_probe *probe;
    const keel_site_plan *plans;
    uint32_t sites, count; // count: sites and scalars, and one item for the rest
} tables;

static void describe_site(const tables *t, uint32_t id, char *text) {
    const keel_site_info *site = keel_probe_site_info(t->probe, id);
    const keel_site_plan *plan = &t->plans[id];
    char shape[96] = "";
    for (uint32_t d = 0, used = 0; d < site->ndim && used < sizeof shape; d++)
        used += (uint32_t)snprintf(shape + used, sizeof shape - used, "%s%" PRIu64, d ? "x" : "", site->shape[d]);
    snprintf(text, TEXT_BYTES,
             "site %s (%s, %s [%s], %s of %u, %s, place %u, module %s, layer %d, stage %d, fields %#x, every %" PRIu64
             " from %" PRIu64 " count %" PRIu64 ", eps %g%s)",
             site->name, keel_quantity_name(site->quantity), keel_dtype_name(site->dtype), shape,
             keel_layout_name(site->layout), site->replica_count, keel_phase_name(site->phase), site->order,
             site->module, site->layer, site->stage, plan->fields, plan->schedule.every, plan->schedule.start,
             plan->schedule.count, plan->eps, plan->per_micro ? ", per micro-batch" : "");
}

static void describe_item(const tables *t, uint32_t i, char *text) {
    if (i >= t->count)
        snprintf(text, TEXT_BYTES, "nothing more");
    else if (i == 0)
        snprintf(text, TEXT_BYTES, "%u micro-batches", keel_probe_micro_count(t->probe));
    else if (i <= t->sites)
        describe_site(t, i - 1, text);
    else
        snprintf(text, TEXT_BYTES, "scalar %s (merge %d)", keel_probe_scalar_name(t->probe, i - 1 - t->sites),
                 (int)keel_probe_scalar_merge(t->probe, i - 1 - t->sites));
}

// FNV-1a, 64 bits.
static uint64_t hash_text(const char *text) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t hash_item(const tables *t, uint32_t i) {
    char text[TEXT_BYTES];
    describe_item(t, i, text);
    return hash_text(text);
}

// The first item at which this rank's table is not rank 0's; LONG_MAX if there is none.
static long first_difference(const tables *t, const uint64_t *hashes_of_0, uint32_t count_of_0) {
    const uint32_t both = t->count < count_of_0 ? t->count : count_of_0;
    for (uint32_t i = 0; i < both; i++)
        if (hash_item(t, i) != hashes_of_0[i]) return i;
    return t->count == count_of_0 ? LONG_MAX : both;
}

// The lowest rank that is not ready; the number of ranks if all are.
static int first_unready(MPI_Comm comm, bool ready) {
    int rank, size, mine, lowest;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    mine = ready ? size : rank;
    MPI_Allreduce(&mine, &lowest, 1, MPI_INT, MPI_MIN, comm);
    return lowest;
}

keel_status keel_site_agreement(MPI_Comm comm, const keel_probe *probe, const keel_site_plan *plans) {
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    tables t = {.probe = probe, .plans = plans};
    t.sites = keel_probe_site_count(probe);
    t.count = 1 + t.sites + keel_probe_scalar_count(probe);
    uint32_t count_of_0 = t.count;
    int code = MPI_Bcast(&count_of_0, 1, MPI_UINT32_T, 0, comm);
    if (code) return keel_fail(KEEL_ERR_COMM, "ranks cannot compare their sites: MPI error %d", code);

    uint64_t *hashes = malloc(count_of_0 * sizeof *hashes);
    const int unready = first_unready(comm, plans && hashes);
    if (unready < size || !plans || !hashes) { // the last two are among the first
        free(hashes);
        if (!plans) return KEEL_ERR_COMM;
        return keel_fail(KEEL_ERR_COMM, "rank %d cannot start its monitor; its own message says why", unready);
    }
    if (rank == 0)
        for (uint32_t i = 0; i < t.count; i++) hashes[i] = hash_item(&t, i);
    MPI_Bcast(hashes, (int)count_of_0, MPI_UINT64_T, 0, comm);
    struct {
        long item;
        int rank;
    } mine = {first_difference(&t, hashes, count_of_0), rank}, first;
    free(hashes);
    MPI_Allreduce(&mine, &first, 1, MPI_LONG_INT, MPI_MINLOC, comm);
    if (first.item == LONG_MAX) return KEEL_OK;

    char theirs[TEXT_BYTES] = "", of_0[TEXT_BYTES] = "";
    if (rank == first.rank) describe_item(&t, (uint32_t)first.item, theirs);
    if (rank == 0) describe_item(&t, (uint32_t)first.item, of_0);
    MPI_Bcast(theirs, TEXT_BYTES, MPI_CHAR, first.rank, comm);
    MPI_Bcast(of_0, TEXT_BYTES, MPI_CHAR, 0, comm);
    return keel_fail(KEEL_ERR_USAGE, "rank %d registered %s where rank 0 registered %s", first.rank, theirs, of_0);
}
