#include "collectors/mpi/merge_mpi.h"

#include <limits.h>
#include <stdlib.h>

#include "collectors/mpi/site_agreement.h"

enum { ORDER_WORDS = 3, TAG_FRAME = 3, TAG_VALUES };

typedef enum doing { ANNOUNCING, REDUCING, SENDING, RECEIVING, GATHERING, COLLECTING } doing;

typedef struct merge_mpi {
    MPI_Comm comm;
    MPI_Comm group; // ranks with this rank's table; COMM itself where all have it
    bool leads_group;
    keel_rank_groups groups;
    const keel_whole_table *whole_table; // of rank 0
    MPI_Op op;
    MPI_Datatype frame_type; // MPI_DATATYPE_NULL until the first frame
    size_t frame_bytes;
    doing doing;
    MPI_Request request;
    keel_merge_order *order; // where the announcement in flight goes
    uint64_t words[ORDER_WORDS];
    keel_frame *frame, *whole; // being reduced
    uint32_t receiving;        // rank 0: the group whose frame is awaited
    keel_frame *received;      // rank 0: for the largest frame of another group
    size_t received_bytes;
    keel_copy mine, *copies; // COPIES: rank 0, one a rank; NULL where none are compared
    keel_copy **gathered;    // where COPIES are to be found once they are
    MPI_Request *collecting; // rank 0: [collecting_count], one a rank that gives values of its own
    uint32_t collecting_count;
} merge_mpi;

static keel_status failed(int code, const char *call) {
    char text[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(code, text, &length);
    return keel_fail(KEEL_ERR_COMM, "%s: %s", call, text);
}

// A reduction of one element may still be cut: Open MPI's pipelined chain calls this for pieces of 0 elements too,
// whose buffers hold nothing yet. A frame tells its own shape.
static void merge_frames(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)type;
    if (*count == 1) keel_frame_merge(inout, in);
}

static keel_status alloc_copies(merge_mpi *m, const keel_whole_table *whole) {
    int size;
    MPI_Comm_size(m->comm, &size);
    if (whole->compares) m->copies = calloc((size_t)size, sizeof *m->copies);
    return m->copies || !whole->compares ? KEEL_OK
                                         : keel_fail(KEEL_ERR_MEMORY, "no memory for the checksums of %d ranks", size);
}

static keel_status alloc_received(merge_mpi *m, const keel_whole_table *whole) {
    if (whole->group_count < 2) return KEEL_OK;
    // No group's frame is larger than the whole's.
    m->received_bytes = keel_frame_bytes(whole->table.scalar_count, whole->table.site_count, whole->table.micro_count,
                                         keel_rank_table_micro_sites(&whole->table));
    m->received = malloc(m->received_bytes);
    return m->received ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for a frame of %zu bytes", m->received_bytes);
}

static void forget_groups(merge_mpi *m) {
    if (m->group != m->comm) MPI_Comm_free(&m->group);
    m->group = m->comm;
    keel_rank_groups_free(&m->groups);
    free(m->received);
    m->received = NULL;
    free(m->copies);
    m->copies = NULL;
    free(m->collecting);
    m->collecting = NULL;
}

static keel_status agree(void *context, const keel_rank_table *table, keel_whole_table *whole) {
    merge_mpi *m = context;
    int rank, rank_in_group;
    MPI_Comm_rank(m->comm, &rank);
    forget_groups(m);
    keel_status status = keel_site_agreement(m->comm, table, whole, &m->groups);
    if (status) return status;
    if (m->groups.count > 1) {
        const int code = MPI_Comm_split(m->comm, (int)m->groups.mine, rank, &m->group);
        if (code) {
            m->group = m->comm;
            status = failed(code, "MPI_Comm_split");
        }
    }
    MPI_Comm_rank(m->group, &rank_in_group);
    m->leads_group = rank_in_group == 0;
    if (rank == 0 && !status) {
        m->whole_table = whole;
        status = alloc_received(m, whole);
        if (!status) status = alloc_copies(m, whole);
    }
    int compares = whole->compares;
    MPI_Bcast(&compares, 1, MPI_INT, 0, m->comm);
    whole->compares = compares;
    const keel_status all = keel_all_ready(m->comm, !status);
    return status ? status : all;
}

static keel_status confirm(void *context, bool ready) {
    const merge_mpi *m = context;
    return keel_all_ready(m->comm, ready);
}

static keel_status announce(void *context, keel_merge_order *order) {
    merge_mpi *m = context;
    m->doing = ANNOUNCING;
    m->order = order;
    m->words[0] = order->action;
    m->words[1] = order->sequence;
    m->words[2] = order->step;
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): test completes it
    const int code = MPI_Ibcast(m->words, ORDER_WORDS, MPI_UINT64_T, 0, m->comm, &m->request);
    return code ? failed(code, "MPI_Ibcast") : KEEL_OK;
}

static keel_status make_frame_type(merge_mpi *m, size_t bytes) {
    if (m->frame_bytes == bytes) return KEEL_OK;
    if (bytes > INT_MAX) return keel_fail(KEEL_ERR_LIMIT, "a frame of %zu bytes is too large for MPI", bytes);
    if (m->frame_type != MPI_DATATYPE_NULL) MPI_Type_free(&m->frame_type);
    int code = MPI_Type_contiguous((int)bytes, MPI_BYTE, &m->frame_type);
    if (!code) code = MPI_Type_commit(&m->frame_type);
    if (code) return failed(code, "MPI_Type_contiguous");
    m->frame_bytes = bytes;
    return KEEL_OK;
}

static keel_status reduce(void *context, keel_frame *frame, keel_frame *whole) {
    merge_mpi *m = context;
    const keel_status status = make_frame_type(m, keel_frame_size(frame));
    if (status) return status;
    m->doing = REDUCING;
    m->frame = frame;
    m->whole = whole;
    const void *from = m->leads_group ? MPI_IN_PLACE : frame;
    void *to = m->leads_group ? frame : NULL;
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): test completes it
    const int code = MPI_Ireduce(from, to, 1, m->frame_type, m->op, 0, m->group, &m->request);
    return code ? failed(code, "MPI_Ireduce") : KEEL_OK;
}

// The lowest rank of a group hands what it has reduced to rank 0.
static keel_status send_frame(merge_mpi *m) {
    m->doing = SENDING;
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): test completes it
    const int code = MPI_Isend(m->frame, (int)m->frame_bytes, MPI_BYTE, 0, TAG_FRAME, m->comm, &m->request);
    return code ? failed(code, "MPI_Isend") : KEEL_OK;
}

static keel_status receive_frame(merge_mpi *m, uint32_t group) {
    m->doing = RECEIVING;
    m->receiving = group;
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): test completes it
    const int code = MPI_Irecv(m->received, (int)m->received_bytes, MPI_BYTE, (int)m->groups.leaders[group], TAG_FRAME,
                               m->comm, &m->request);
    return code ? failed(code, "MPI_Irecv") : KEEL_OK;
}

static keel_status receive_values(merge_mpi *m, uint64_t *values, const keel_rank_part *parts, uint32_t count) {
    if (!m->collecting && !(m->collecting = malloc(count * sizeof(MPI_Request))))
        return keel_fail(KEEL_ERR_MEMORY, "no memory to receive from %u ranks", count);
    m->collecting_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].rank == 0) continue;
        // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): test completes it
        const int code = MPI_Irecv(values + parts[i].offset, (int)parts[i].count, MPI_UINT64_T, (int)parts[i].rank,
                                   TAG_VALUES, m->comm, &m->collecting[m->collecting_count]);
        if (code) return failed(code, "MPI_Irecv");
        m->collecting_count++;
    }
    return KEEL_OK;
}

static keel_status collect(void *context, uint64_t *values, const keel_rank_part *parts, uint32_t count) {
    merge_mpi *m = context;
    int rank;
    MPI_Comm_rank(m->comm, &rank);
    m->doing = COLLECTING;
    if (rank == 0) return receive_values(m, values, parts, count);
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): test completes it
    const int code = MPI_Isend(values, (int)parts->count, MPI_UINT64_T, 0, TAG_VALUES, m->comm, &m->request);
    return code ? failed(code, "MPI_Isend") : KEEL_OK;
}

// An operation of MPI has ended: begins the next one of the reduction, or sets *DONE.
static keel_status go_on(merge_mpi *m, bool *done) {
    switch (m->doing) {
    case ANNOUNCING:
        *m->order = (keel_merge_order){m->words[0], m->words[1], m->words[2]};
        break;
    case REDUCING:
        if (m->groups.count < 2 || !m->leads_group) break;
        if (!m->whole) return send_frame(m);
        keel_frame_merge_at(m->whole, m->frame, &m->whole_table->maps[0]);
        return receive_frame(m, 1);
    case RECEIVING:
        keel_frame_merge_at(m->whole, m->received, &m->whole_table->maps[m->receiving]);
        if (m->receiving + 1 < m->groups.count) return receive_frame(m, m->receiving + 1);
        break;
    case GATHERING:
        *m->gathered = m->copies;
        break;
    case COLLECTING:
    case SENDING:
        break;
    }
    *done = true;
    return KEEL_OK;
}

static keel_status test(void *context, bool *done) {
    merge_mpi *m = context;
    int flag = 0;
    *done = false;
    int code = MPI_Test(&m->request, &flag, MPI_STATUS_IGNORE);
    if (!code && flag && m->doing == COLLECTING && m->collecting)
        code = MPI_Testall((int)m->collecting_count, m->collecting, &flag, MPI_STATUSES_IGNORE);
    if (code) return failed(code, "MPI_Test");
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): the next call tests again
    return flag ? go_on(m, done) : KEEL_OK;
}

static keel_status gather(void *context, const keel_copy *mine, keel_copy **all) {
    merge_mpi *m = context;
    m->doing = GATHERING;
    m->mine = *mine;
    m->gathered = all;
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): test completes it
    const int code =
        MPI_Igather(&m->mine, sizeof m->mine, MPI_BYTE, m->copies, sizeof m->mine, MPI_BYTE, 0, m->comm, &m->request);
    return code ? failed(code, "MPI_Igather") : KEEL_OK;
}

static void close_merge(void *context, bool abandoned) {
    merge_mpi *m = context;
    if (abandoned) return; // MPI still uses the buffers and the communicators
    if (m->frame_type != MPI_DATATYPE_NULL) MPI_Type_free(&m->frame_type);
    forget_groups(m);
    MPI_Op_free(&m->op);
    MPI_Comm_free(&m->comm);
    free(m);
}

keel_status keel_merge_mpi_open(MPI_Comm comm, bool threaded, keel_merge *merge) {
    merge_mpi *m = calloc(1, sizeof *m);
    // Duplicating is collective: a rank without memory takes part, and fails after it.
    MPI_Comm own;
    int code = MPI_Comm_dup(comm, &own);
    if (code || !m) {
        free(m);
        return code ? failed(code, "MPI_Comm_dup") : keel_fail(KEEL_ERR_MEMORY, "no memory for the merge");
    }
    MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    m->comm = m->group = own;
    m->frame_type = MPI_DATATYPE_NULL;
    m->request = MPI_REQUEST_NULL;
    code = MPI_Op_create(merge_frames, 1, &m->op);
    if (code) {
        MPI_Comm_free(&m->comm);
        free(m);
        return failed(code, "MPI_Op_create");
    }
    int rank, size;
    MPI_Comm_rank(own, &rank);
    MPI_Comm_size(own, &size);
    m->leads_group = rank == 0; // until the ranks agree: all have one table
    *merge = (keel_merge){.context = m,
                          .rank = (uint32_t)rank,
                          .size = (uint32_t)size,
                          .threaded = threaded,
                          .agree = agree,
                          .confirm = confirm,
                          .announce = announce,
                          .reduce = reduce,
                          .gather = gather,
                          .collect = collect,
                          .test = test,
                          .close = close_merge};
    return KEEL_OK;
}
