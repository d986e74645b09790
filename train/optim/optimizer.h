// An optimizer is one file behind these functions. It works on flat buffers in blocks that fit in cache and observes
// each block as it is updated.
#ifndef KEEL_TRAIN_OPTIM_OPTIMIZER_H
#define KEEL_TRAIN_OPTIM_OPTIMIZER_H

#include "train/model/model.h"

typedef struct keel_optimizer keel_optimizer;

// In the reduction phase the sites of grad_reduced have orders from here on: after the collectives they come from.
enum { KEEL_ORDER_GRAD_REDUCED = 1 << 16 };

// Parameter groups are resolved by name here (first pattern that is found); KEEL_ERR_CONFIG for a bad pattern or one
// that no parameter falls to. Registers taps of weight, grad_reduced, exp_avg, exp_avg_sq, update, adam_direction for
// every parameter; data-parallel ranks hold replicas. MODEL, TAPS and MESH must outlive the optimizer. One of adam_rms,
// too: RMS_t = sqrt(mean(g^2 / max(v_hat, eps^2))), g after clipping, v_hat bias-corrected and including g (Wortsman et
// al. 2023), computed on steps on which it is asked for.
keel_status keel_optimizer_open(const keel_optimizer_config *config, keel_model *model, keel_taps *taps,
                                const keel_mesh *mesh, keel_optimizer **optimizer);
void keel_optimizer_close(keel_optimizer *optimizer); // NULL is fine

keel_tap *keel_optimizer_grad_tap(keel_optimizer *optimizer, size_t param); // of grad_reduced

// Global L2 norm of GRAD over every parameter, float64 accumulation, in a fixed order (the same bits on all ranks and
// for any number of threads); observes grad_reduced. NaN or Inf where the gradient holds one. To be called before every
// keel_optimizer_step, which takes the norms of groups with a clipping of their own from it.
double keel_optimizer_grad_norm(keel_optimizer *optimizer, float *grad);

typedef struct keel_update {
    double lr;          // of this update
    double clip_factor; // global: min(1, max_norm / (grad_norm + 1e-6)), 1 without clipping; groups' own clipping comes
                        // on top: of what is left of the group's norm
    uint64_t update;    // t of this update, from 1
} keel_update;

// One AdamW update (Loshchilov and Hutter 2019; decoupled decay: p -= lr * decay * p): weights in place. GRAD is left
// as it is.
void keel_optimizer_step(keel_optimizer *optimizer, const float *grad, const keel_update *update);
// A skipped step: nothing changes; weight, exp_avg, exp_avg_sq are observed as they are, update as zeros; there is no
// adam_direction to observe.
void keel_optimizer_skip(keel_optimizer *optimizer);

// States for checkpoints: "exp_avg", "exp_avg_sq", flat, same layout as the weights.
typedef struct keel_optimizer_state {
    const char *name;
    float *data;
} keel_optimizer_state;
const keel_optimizer_state *keel_optimizer_states(keel_optimizer *optimizer, size_t *count);
size_t keel_optimizer_bytes(const keel_optimizer *optimizer);

// Learning rate of update T (from 1): warm-up lr t / warmup for t <= warmup, then constant, linear or cosine to lr_end
// at total_steps, and lr_end after it.
double keel_lr_at(const keel_lr_config *config, uint64_t t);
// min(1, max_norm / (grad_norm + 1e-6)).
double keel_clip_factor(double grad_norm, double max_norm);

#endif
