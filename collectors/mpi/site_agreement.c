#include "collectors/mpi/site_agreement.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_COUNTS = 1, TAG_ARRAYS };
enum { COUNTS = 5, ARRAYS = 5 };
enum { TEXT_BYTES = 2 * KEEL_TABLE_TEXT_BYTES + 100 };

keel_status keel_all_ready(MPI_Comm comm, bool ready) {
    int rank, size, mine, lowest;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    mine = ready ? size : rank;
    const int code = MPI_Allreduce(&mine, &lowest, 1, MPI_INT, MPI_MIN, comm);
    if (code) return keel_fail(KEEL_ERR_COMM, "ranks cannot compare their sites: MPI error %d", code);
    if (lowest == size) return KEEL_OK;
    if (!ready) return KEEL_ERR_COMM; // it knows why
    return keel_fail(KEEL_ERR_COMM, "rank %d cannot start its monitor; its own message says why", lowest);
}

// The groups of equal HASHES, [SIZE], one a rank.
static void find_groups(const uint64_t *hashes, int size, int rank, keel_rank_groups *groups) {
    for (int r = 0; r < size; r++) {
        uint32_t g = 0;
        while (g < groups->count && hashes[groups->leaders[g]] != hashes[r]) g++;
        if (g == groups->count) groups->leaders[groups->count++] = (uint32_t)r;
        groups->of[r] = g;
    }
    groups->mine = groups->leaders[groups->of[rank]];
}

// The bytes of a table, array by array.
static void arrays_of(const keel_rank_table *table, void *arrays[ARRAYS], size_t bytes[ARRAYS]) {
    arrays[0] = table->sites;
    bytes[0] = table->site_count * sizeof *table->sites;
    arrays[1] = table->plans;
    bytes[1] = table->site_count * sizeof *table->plans;
    arrays[2] = table->op_masks;
    bytes[2] = table->site_count * sizeof *table->op_masks;
    arrays[3] = table->scalars;
    bytes[3] = table->scalar_count * sizeof *table->scalars;
    arrays[4] = table->rank_entries;
    bytes[4] = table->site_count * sizeof *table->rank_entries;
}

static void send_arrays(MPI_Comm comm, const keel_rank_table *table) {
    void *arrays[ARRAYS];
    size_t bytes[ARRAYS];
    arrays_of(table, arrays, bytes);
    for (int i = 0; i < ARRAYS; i++) MPI_Send(arrays[i], (int)bytes[i], MPI_BYTE, 0, TAG_ARRAYS, comm);
}

static void receive_arrays(MPI_Comm comm, int from, keel_rank_table *table) {
    void *arrays[ARRAYS];
    size_t bytes[ARRAYS];
    arrays_of(table, arrays, bytes);
    for (int i = 0; i < ARRAYS; i++)
        MPI_Recv(arrays[i], (int)bytes[i], MPI_BYTE, from, TAG_ARRAYS, comm, MPI_STATUS_IGNORE);
}

static keel_status receive_counts(MPI_Comm comm, const keel_rank_groups *groups, keel_rank_table *tables) {
    keel_status status = tables ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for %u tables", groups->count);
    for (uint32_t g = 1; g < groups->count; g++) {
        uint32_t counts[COUNTS];
        MPI_Recv(counts, COUNTS, MPI_UINT32_T, (int)groups->leaders[g], TAG_COUNTS, comm, MPI_STATUS_IGNORE);
        if (status) continue;
        tables[g] = (keel_rank_table){.micro_count = counts[0],
                                      .site_count = counts[1],
                                      .scalar_count = counts[2],
                                      .ranks_hash = (uint64_t)counts[3] << 32 | counts[4]};
        if (tables[g].site_count > INT_MAX / sizeof(keel_site_info))
            status = keel_fail(KEEL_ERR_LIMIT, "%u sites are too many for MPI", tables[g].site_count);
        else
            status = keel_rank_table_alloc(&tables[g]);
    }
    return status;
}

// Says on all ranks what became of rank 0's part.
static keel_status tell(MPI_Comm comm, keel_status of_0) {
    int rank, status = (int)of_0;
    char text[TEXT_BYTES] = "";
    MPI_Comm_rank(comm, &rank);
    MPI_Bcast(&status, 1, MPI_INT, 0, comm);
    if (status == KEEL_OK) return KEEL_OK;
    if (rank == 0) snprintf(text, sizeof text, "%s", keel_error());
    MPI_Bcast(text, sizeof text, MPI_CHAR, 0, comm);
    return keel_fail((keel_status)status, "%s", text);
}

static keel_status lead(MPI_Comm comm, const keel_rank_table *own, const keel_rank_groups *groups,
                        keel_whole_table *whole) {
    keel_rank_table *tables = calloc((size_t)groups->count + 1, sizeof *tables);
    keel_status status = tell(comm, receive_counts(comm, groups, tables));
    if (!status) {
        for (uint32_t g = 1; g < groups->count; g++) receive_arrays(comm, (int)groups->leaders[g], &tables[g]);
        tables[0] = *own;
        status = tell(comm, keel_whole_table_open(tables, groups->leaders, groups->count, whole));
    }
    for (uint32_t g = 1; tables && g < groups->count; g++) keel_rank_table_close(&tables[g]);
    free(tables);
    return status;
}

static keel_status follow(MPI_Comm comm, bool leader, const keel_rank_table *own) {
    const uint32_t counts[COUNTS] = {own->micro_count, own->site_count, own->scalar_count,
                                     (uint32_t)(own->ranks_hash >> 32), (uint32_t)own->ranks_hash};
    if (leader) MPI_Send(counts, COUNTS, MPI_UINT32_T, 0, TAG_COUNTS, comm);
    const keel_status status = tell(comm, KEEL_OK);
    if (status) return status;
    if (leader) send_arrays(comm, own);
    return tell(comm, KEEL_OK);
}

keel_status keel_site_agreement(MPI_Comm comm, const keel_rank_table *table, keel_whole_table *whole,
                                keel_rank_groups *out) {
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    keel_rank_groups groups = {.leaders = calloc((size_t)size, sizeof *groups.leaders),
                               .of = calloc((size_t)size, sizeof *groups.of)};
    uint64_t *hashes = malloc((size_t)size * sizeof *hashes);
    const bool room = hashes && groups.leaders && groups.of;
    if (table && !room) keel_fail(KEEL_ERR_MEMORY, "no memory for the tables of %d ranks", size);
    keel_status status = keel_all_ready(comm, table && room);
    if (!status && table && room) { // the last two are among what is ready
        const uint64_t mine = keel_rank_table_hash(table);
        MPI_Allgather(&mine, 1, MPI_UINT64_T, hashes, 1, MPI_UINT64_T, comm);
        find_groups(hashes, size, rank, &groups);
        if (rank == 0)
            status = lead(comm, table, &groups, whole);
        else
            status = follow(comm, groups.mine == (uint32_t)rank, table);
    }
    free(hashes);
    if (status) {
        keel_rank_groups_free(&groups);
        return status;
    }
    if (rank == 0 && groups.count > 1) {
        whole->group_of = groups.of;
        groups.of = NULL;
    }
    *out = groups;
    return KEEL_OK;
}

void keel_rank_groups_free(keel_rank_groups *groups) {
    free(groups->leaders);
    free(groups->of);
    *groups = (keel_rank_groups){0};
}
