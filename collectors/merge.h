// Merging frames over ranks, as a table of functions, so that nothing but its MPI implementation needs MPI.
//
// Rank 0 leads: it announces which step is merged next, and then every rank takes part in that one reduction. So a rank
// 0 that falls behind skips a step on all ranks, nobody's backlog can grow, and ranks never merge different steps into
// one.
#ifndef KEEL_COLLECTORS_MERGE_H
#define KEEL_COLLECTORS_MERGE_H

#include <stdbool.h>

#include "collectors/copies.h"
#include "collectors/whole_table.h"
#include "probe/keel.h"

typedef enum keel_merge_action {
    KEEL_MERGE_STEP, // reduce the frames of that step; earlier ones that are still held are skipped
    KEEL_MERGE_SKIP, // every step up to that one is over, unmerged
    KEEL_MERGE_CLOSE,
    // Right after a reduction, where replicas are compared:
    KEEL_MERGE_AGREED, // all copies agree, or cannot be judged
    KEEL_MERGE_ASK,    // each rank gives its copy's checksum of one site
} keel_merge_action;

typedef struct keel_merge_order {
    uint64_t action;   // keel_merge_action
    uint64_t sequence; // which step end, counted from 1 in every process; ASK: keel_copies_hash of the site
    uint64_t step;     // its step number, for a check
} keel_merge_order;

// What one rank gives of its own values (rank_series.h): COUNT of eight bytes, at OFFSET of rank 0's.
typedef struct keel_rank_part {
    uint32_t rank, count;
    size_t offset;
} keel_rank_part;

// The calls of one thread. One operation at a time: announce, reduce, gather or collect, then test until done.
typedef struct keel_merge {
    void *context;
    uint32_t rank, size; // of this process; rank 0 gets the result
    bool threaded; // may be called from the merge thread; else only from the training thread (keel_poll, keel_step_end)
    // Makes the table of the whole run of the ranks' TABLEs: to *WHOLE on rank 0, which owns it and keeps it until
    // close; elsewhere only whole->compares is set. Ranks with one table are a group. Collective, blocking. TABLE NULL:
    // this rank could not start. Then, and where tables contradict each other, every rank fails, with the first
    // difference and its rank named.
    keel_status (*agree)(void *context, const keel_rank_table *table, keel_whole_table *whole);
    // After it: fails on every rank unless all are READY. Collective, blocking.
    keel_status (*confirm)(void *context, bool ready);
    // Begins to hand *ORDER from rank 0 to all others, where it is written. It must live until done.
    keel_status (*announce)(void *context, keel_merge_order *order);
    // Begins the reduction of FRAME to rank 0: in place there with one group of ranks, else into WHOLE, which is
    // cleared and has the shape of the whole run; NULL with one group and on other ranks. Both must live until done.
    // What FRAME holds then is said of no rank. Flags are merged too; which rank's step numbers come out is not said.
    keel_status (*reduce)(void *context, keel_frame *frame, keel_frame *whole);
    // Begins to bring the ranks' MINE to rank 0, where *ALL, one a rank, is valid until the next operation.
    keel_status (*gather)(void *context, const keel_copy *mine, keel_copy **all);
    // Begins to bring each PART to rank 0, whose own is where it belongs. The ranks of parts take part, and rank 0,
    // which has them all; elsewhere there is one. VALUES must live until done.
    keel_status (*collect)(void *context, uint64_t *values, const keel_rank_part *parts, uint32_t count);
    // Drives the operation; *done is set when this rank's part is over.
    keel_status (*test)(void *context, bool *done);
    // Frees the context. Collective unless ABANDONED: then nothing that an unfinished operation may touch is freed.
    void (*close)(void *context, bool abandoned);
} keel_merge;

#endif
