// Inside the optimizer: what keel_optimizer holds.
#ifndef KEEL_TRAIN_OPTIM_OPTIMIZER_STATE_H
#define KEEL_TRAIN_OPTIM_OPTIMIZER_STATE_H

#include "train/optim/groups.h"
#include "train/optim/offload.h"
#include "train/optim/optimizer.h"
#include "train/optim/watch.h"
#include "train/tensor/arena.h"

// Elements of a block: what one touches of weight, gradient, both states, update and direction, and the next one that
// is fetched meanwhile, fit in L1.
enum { KEEL_OPTIM_BLOCK = 1024 };

enum { KEEL_STEP_EXP_AVG, KEEL_STEP_EXP_AVG_SQ, KEEL_STEP_DIRECTION, KEEL_STEP_UPDATE, KEEL_STEP_WEIGHT };
enum { KEEL_STEP_TAPS = KEEL_STEP_WEIGHT + 1 }; // in the order of the data flow
_Static_assert((int)KEEL_STEP_TAPS == (int)KEEL_WATCH_TAPS, "a watch holds all taps of a step");

typedef struct keel_param_taps {
    keel_tap *grad;
    keel_tap *step[KEEL_STEP_TAPS];
    keel_tap *rms;
} keel_param_taps;

typedef struct keel_optim_block {
    uint32_t param;
    uint32_t n;
    size_t offset; // in the flat buffers of weights and gradients
    size_t at;     // in those of the states
} keel_optim_block;

// Blocks that all threads work on before any goes on to the next pass. Shares are of equal numbers of elements.
typedef struct keel_optim_pass {
    size_t *first_block; // [threads + 1] shares of the threads
    size_t bucket;       // that its blocks are in
    bool completes;      // after it the bucket's weights can be gathered
    size_t window;       // that its states begin in, if they are offloaded
} keel_optim_pass;

struct keel_optimizer {
    keel_optimizer_config config;
    const keel_param *params;
    size_t param_count;
    float *weights;
    const keel_zero *zero;
    bool *counts;          // [parameter] this rank's elements count in sums over ranks
    bool *counts_in_stage; // [parameter] and in those over the ranks of a stage
    keel_groups groups;
    keel_param_taps *taps; // [parameter]
    keel_optim_block *blocks;
    size_t block_count;
    double *block_sums; // [block] of squares of the gradient, then of what RMS_t is the mean of
    double *group_sums; // [group]
    float *group_clip;  // [group]
    int threads;
    size_t *shares;          // of all passes
    keel_optim_pass all;     // every block
    keel_optim_pass *passes; // of the update
    size_t pass_count;
    keel_watch *watches;           // [threads]
    float **updates, **directions; // [threads] a block each
    keel_arena arena;
    keel_offload *offload; // of the states; NULL: they are in the arena
    keel_optimizer_state states[2];
    keel_collective **gathers; // [bucket] of weights; NULL where they are complete as they are
    keel_collective *norm;     // over ranks: squares of all, of each group, and how many ranks are asked for RMS_t
    keel_collective *rms;      // over the ranks of a stage: what RMS_t is the mean of, by parameter
    double *norm_sums;         // [1 + groups + 1]
    double *rms_sums;          // [parameter]
    bool rms_everywhere;       // every rank is asked for RMS_t in this step
};

static inline bool keel_optim_asked(const keel_tap *tap) {
    return tap->site->active & KEEL_FIELDS_BASE;
}

// Blocks [FROM, TO) of one parameter, in the share of THREAD, are over.
static inline void keel_optim_watch_end(const keel_optimizer *o, const keel_optim_pass *pass, int thread,
                                        keel_tap *const *taps, size_t count, size_t from, size_t to) {
    const size_t begin = pass->first_block[thread], end = pass->first_block[thread + 1];
    const uint32_t param = o->blocks[from].param;
    const bool before = from == begin && begin > pass->first_block[0] && o->blocks[begin - 1].param == param;
    const bool after = to == end && end < pass->first_block[o->threads] && o->blocks[end].param == param;
    keel_watch_end(&o->watches[thread], taps, count, before, after);
}

#endif
