// The way of a frame from the end of a step to the recorder: merged over the ranks, on a thread of its own or driven by
// the training thread; straight on where there is one process.
//
//     rank 0   IDLE -> ANNOUNCING -> REDUCING -> IDLE                    for the oldest frame that it holds,
//                                                                        or a skip where it holds none
//     others   IDLE -> ANNOUNCING -> AWAITING_STEP -> REDUCING -> IDLE   as rank 0 says
//
// Where values of single ranks are asked for, those that give some go on REDUCING -> COLLECTING, and rank 0 with them.
//
// Where replicas are compared each reduction is followed by rank 0's word on whether they agree, REDUCING -> JUDGING,
// and where they do not, by the checksums of one site from all ranks, -> ASKING -> IDLE: so that the row names the
// rank.
//
// A rank that has no frame of the step to be merged gives an empty one, flagged KEEL_STEP_DROPPED. An operation that
// outlives its limit is abandoned, with all that follow: frames stay local.
#ifndef KEEL_COLLECTORS_MERGE_STAGE_H
#define KEEL_COLLECTORS_MERGE_STAGE_H

#include "collectors/frame_pool.h"
#include "collectors/merge.h"
#include "collectors/rank_series.h"
#include "collectors/recorder.h"

typedef struct keel_merge_stage keel_merge_stage;

typedef struct keel_merge_stage_options {
    const keel_merge *merge;       // NULL: one process. Borrowed, like the others
    const keel_whole_table *whole; // complete on rank 0
    keel_copies *copies;           // of this rank
    const keel_rank_series_table *ranks;
    keel_frame_pool *pool;
    keel_recorder *recorder;
    double timeout_seconds; // counted while this process runs: being stopped does not use it up
} keel_merge_stage_options;

keel_status keel_merge_stage_open(const keel_merge_stage_options *options, keel_merge_stage **stage);

// The calls of the training thread.
// A step is over: SLOT holds it, NULL where it was not recorded here. Never waits.
void keel_merge_stage_submit(keel_merge_stage *stage, keel_slot *slot);
void keel_merge_stage_poll(keel_merge_stage *stage);
// Waits until every step submitted is with the recorder, or given up. Collective.
void keel_merge_stage_drain(keel_merge_stage *stage);
// True from the moment on that a merge was abandoned.
bool keel_merge_stage_abandoned(const keel_merge_stage *stage);

typedef struct keel_merge_totals {
    uint64_t ended;   // steps submitted
    uint64_t missing; // merges to which this rank had nothing to give
    bool abandoned;
} keel_merge_totals;

// Passes on what is left and ends, together with the other ranks; alone where they could not agree to start. Ends in
// bounded time.
void keel_merge_stage_close(keel_merge_stage *stage, bool together, keel_merge_totals *totals);

#endif
