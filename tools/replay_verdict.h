// What a replayed step says: bad data, hardware, transient, healthy, not the data, or cannot tell.
//
// Two values of one shard agree if they differ by at most KEEL_REPLAY_AGREE, relative, or are both not finite. A value
// stands out of others as in the rules: the loss 8 robust sigmas (1.4826 MAD, at least 0.2 % of the median) and by
// max(0.1, 3 %) above their median, the gradient norm 6 sigmas of its logarithm (at least 0.05) and a factor of 2; or
// it is not finite where most of them are. Of a batch beside its neighbours, what is below 20 % and a factor of 5 must
// be sure too, by what a spread from so few values tells (keel_sample_sure_z, 5.2).
//
// Unusual batches come in any run, and most do no harm. Where the run has a history before the step and the rules find
// nothing at it, its batch is taken for bad only if it is not finite, or its loss lies KEEL_REPLAY_FAR above that of
// the others.
#ifndef KEEL_TOOLS_REPLAY_VERDICT_H
#define KEEL_TOOLS_REPLAY_VERDICT_H

#include "train/step_replay.h"

#define KEEL_REPLAY_AGREE 1e-3
#define KEEL_REPLAY_FAR   0.5

typedef enum keel_replay_cause {
    KEEL_REPLAY_BAD_DATA,  // the same everywhere
    KEEL_REPLAY_HARDWARE,  // on one rank only
    KEEL_REPLAY_TRANSIENT, // once, not again
    KEEL_REPLAY_HEALTHY,   // nothing was wrong
    KEEL_REPLAY_NOT_DATA,  // all that one rank alone can say
    KEEL_REPLAY_UNKNOWN,
} keel_replay_cause;

// What the run recorded, by step. Nothing of it need be there but the step itself.
typedef struct keel_recorded {
    uint64_t *steps; // ascending
    keel_replay_value *values;
    size_t count;
    bool judged; // there are enough before the replayed step for the rules on loss and gradient norm
    bool sick;   // which find it wrong
} keel_recorded;

enum { KEEL_REPLAY_REASON_BYTES = 768 };

typedef struct keel_replay_verdict {
    keel_replay_cause cause;
    int32_t rank;                          // HARDWARE: the broken data-parallel rank; -1: not known
    int32_t shard;                         // BAD_DATA: the data-parallel rank whose data it is
    char reason[KEEL_REPLAY_REASON_BYTES]; // with the numbers
} keel_replay_verdict;

const char *keel_replay_cause_name(keel_replay_cause cause); // "bad data", ...

// True if the reading decides by itself: a rank whose results are others than everybody else's, or a batch that stands
// out of its neighbours on every rank. A keel_replay_enough.
bool keel_replay_decides(const keel_replay_reading *reading);

// RECORDED holds the replayed step.
void keel_replay_judge(const keel_replay *replay, const keel_recorded *recorded, keel_replay_verdict *verdict);

// The middle of what LOSS (or else the gradient norm) the neighbours of a reading have; NaN where most are not finite.
double keel_replay_usual(const keel_replay_reading *reading, bool loss);

#endif
