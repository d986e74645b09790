// Merging frames over ranks, as a table of functions, so that nothing but its MPI implementation needs MPI.
#ifndef KEEL_COLLECTORS_MERGE_H
#define KEEL_COLLECTORS_MERGE_H

#include <stdbool.h>

#include "probe/keel.h"

typedef struct keel_merge {
    void *context;
    uint32_t rank, size; // of this process; rank 0 gets the result
    bool threaded;       // test may be called from the merge thread; else only from the training thread (keel_poll, keel_step_end)
    // Checks that all ranks registered the same sites and scalars (by hash); collective; fails with the first difference named.
    keel_status (*agree)(void *context, const keel_probe *probe);
    // Starts the reduction of FRAME (BYTES long) to rank 0, in place there. One at a time.
    keel_status (*start)(void *context, keel_frame *frame, size_t bytes);
    // Drives it; *done is set when this rank's part is over.
    keel_status (*test)(void *context, bool *done);
    void (*close)(void *context); // frees the context; collective unless a merge was abandoned
} keel_merge;

#endif
