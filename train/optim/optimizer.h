// An optimizer is one file behind these functions. It works on flat buffers in blocks that fit in cache and observes
// each block as it is updated.
#ifndef KEEL_TRAIN_OPTIM_OPTIMIZER_H
#define KEEL_TRAIN_OPTIM_OPTIMIZER_H

#include "train/parallel/zero.h"

typedef struct keel_optimizer keel_optimizer;

// In the reduction phase the sites of grad_reduced have orders from here on: after the collectives they come from.
enum { KEEL_ORDER_GRAD_REDUCED = 1 << 16 };
// Behind all parameters, in the reduction and in the update: collectives over what was seen of them.
enum { KEEL_ORDER_BEHIND_PARAMS = 1 << 24 };

typedef struct keel_optimizer_plan {
    const keel_optimizer_config *config; // copied
    keel_model *model;
    keel_taps *taps;
    const keel_zero *zero;         // what of it this rank owns
    keel_collectives *collectives; // those of the optimizer are declared here; NULL where ZERO needs none
} keel_optimizer_plan;

// Keeps states of what this rank owns, and updates that alone. Parameter groups are resolved by name here (first
// pattern that is found); KEEL_ERR_CONFIG for a bad pattern or one that no parameter falls to. Registers taps of
// weight, grad_reduced, exp_avg, exp_avg_sq, update, adam_direction for every parameter: what this rank owns, laid out
// as keel_zero_describe says. What the plan points to must outlive the optimizer. One of adam_rms, too: RMS_t =
// sqrt(mean(g^2 / max(v_hat, eps^2))) over the whole parameter, g after clipping, v_hat bias-corrected and including g
// (Wortsman et al. 2023), computed on steps on which it is asked for, on every rank.
keel_status keel_optimizer_open(const keel_optimizer_plan *plan, keel_optimizer **optimizer);
void keel_optimizer_close(keel_optimizer *optimizer); // NULL is fine

// False where no parameter of this stage falls to the configured group GROUP; with one stage that is refused.
bool keel_optimizer_uses_group(const keel_optimizer *optimizer, size_t group);

keel_tap *keel_optimizer_grad_tap(keel_optimizer *optimizer, size_t param); // of grad_reduced

// *NORM: global L2 norm of GRAD over every parameter once, float64 accumulation, in a fixed order (the same bits on all
// ranks and for any number of threads); observes grad_reduced. NaN or Inf where the gradient holds one. To be called
// before every keel_optimizer_step, which takes the norms of groups with a clipping of their own from it. Collective
// where no rank owns everything.
keel_status keel_optimizer_grad_norm(keel_optimizer *optimizer, float *grad, double *norm);
// Sum of the squares of a gradient that is not reduced over the data: what the ranks that work on the same data have to
// add up, each with what no rank before it holds. Not collective.
double keel_optimizer_local_square(keel_optimizer *optimizer, float *grad);

typedef struct keel_update {
    double lr;          // of this update
    double clip_factor; // global: min(1, max_norm / (grad_norm + 1e-6)), 1 without clipping; groups' own clipping comes
                        // on top: of what is left of the group's norm
    uint64_t update;    // t of this update, from 1
    bool leave;         // this rank changes nothing of its own, while the others do
} keel_update;

// One AdamW update (Loshchilov and Hutter 2019; decoupled decay: p -= lr * decay * p) of what this rank owns, in place;
// the weights of other owners are gathered. GRAD is left as it is. Collective where the optimizer is shared out. A rank
// whose states are lost (keel_optimizer_check) takes part in all of that and fails alone.
keel_status keel_optimizer_step(keel_optimizer *optimizer, const float *grad, const keel_update *update);
// A step skipped by all ranks: nothing changes; weight, exp_avg, exp_avg_sq are observed as they are, update as zeros;
// there is no adam_direction to observe.
void keel_optimizer_skip(keel_optimizer *optimizer);

// KEEL_ERR_CONFIG, with the place and the owner, for a FAULT of one element on a rank that does not update it. TAP:
// that FAULT strikes at, anyone's; NULL is fine.
keel_status keel_optimizer_check_fault(const keel_optimizer *optimizer, const keel_fault_config *fault,
                                       const keel_tap *tap);

// States for checkpoints: "exp_avg", "exp_avg_sq", flat: what this rank owns (keel_zero_span.at).
typedef struct keel_optimizer_state {
    const char *name;
    float *data;
} keel_optimizer_state;
const keel_optimizer_state *keel_optimizer_states(keel_optimizer *optimizer, size_t *count);
// Whoever reads or writes states outside an update takes so many elements of each at most, then lets them rest, so that
// what lies in a file leaves memory again. The same number on all ranks.
size_t keel_optimizer_portion(const keel_optimizer *optimizer);
void keel_optimizer_rest(keel_optimizer *optimizer);
// KEEL_ERR_IO where states in a file could not be written and are lost, in an update or by keel_optimizer_rest.
keel_status keel_optimizer_check(keel_optimizer *optimizer);
size_t keel_optimizer_bytes(const keel_optimizer *optimizer);  // in memory, at most
size_t keel_optimizer_disk(const keel_optimizer *optimizer);   // in a file, read and written at each update; 0: none
double keel_optimizer_waited(const keel_optimizer *optimizer); // seconds that all updates have waited for that

// Learning rate of update T (from 1): warm-up lr t / warmup for t <= warmup, then constant, linear or cosine to lr_end
// at total_steps, and lr_end after it.
double keel_lr_at(const keel_lr_config *config, uint64_t t);
// min(1, max_norm / (grad_norm + 1e-6)).
double keel_clip_factor(double grad_norm, double max_norm);

#endif
