#include "collectors/mpi/merge_mpi.h"

#include <limits.h>
#include <stdlib.h>

#include "collectors/mpi/site_agreement.h"

enum { ORDER_WORDS = 3 };

typedef struct merge_mpi {
    MPI_Comm comm;
    MPI_Op op;
    MPI_Datatype frame_type; // MPI_DATATYPE_NULL until the first frame
    size_t frame_bytes;
    MPI_Request request;
    keel_merge_order *order; // where the announcement in flight goes; NULL: none is
    uint64_t words[ORDER_WORDS];
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

static keel_status agree(void *context, const keel_probe *probe, const keel_site_plan *plans) {
    const merge_mpi *m = context;
    return keel_site_agreement(m->comm, probe, plans);
}

static keel_status announce(void *context, keel_merge_order *order) {
    merge_mpi *m = context;
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

static keel_status reduce(void *context, keel_frame *frame, size_t bytes) {
    merge_mpi *m = context;
    const keel_status status = make_frame_type(m, bytes);
    if (status) return status;
    int rank;
    MPI_Comm_rank(m->comm, &rank);
    const void *from = rank == 0 ? MPI_IN_PLACE : frame;
    void *to = rank == 0 ? frame : NULL;
    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): test completes it
    const int code = MPI_Ireduce(from, to, 1, m->frame_type, m->op, 0, m->comm, &m->request);
    return code ? failed(code, "MPI_Ireduce") : KEEL_OK;
}

static keel_status test(void *context, bool *done) {
    merge_mpi *m = context;
    int flag = 0;
    const int code = MPI_Test(&m->request, &flag, MPI_STATUS_IGNORE);
    if (code) return failed(code, "MPI_Test");
    if (flag && m->order) {
        *m->order = (keel_merge_order){m->words[0], m->words[1], m->words[2]};
        m->order = NULL;
    }
    *done = flag;
    return KEEL_OK;
}

static void close_merge(void *context, bool abandoned) {
    merge_mpi *m = context;
    if (abandoned) return; // MPI still uses the buffers and the communicator
    if (m->frame_type != MPI_DATATYPE_NULL) MPI_Type_free(&m->frame_type);
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
    m->comm = own;
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
    *merge = (keel_merge){.context = m,
                          .rank = (uint32_t)rank,
                          .size = (uint32_t)size,
                          .threaded = threaded,
                          .agree = agree,
                          .announce = announce,
                          .reduce = reduce,
                          .test = test,
                          .close = close_merge};
    return KEEL_OK;
}
