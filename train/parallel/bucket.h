// The gradient of a step: micro-batches are added up, and as the last one's backward pass makes pieces of the sum
// final, from the end of the flat buffer to its start, buckets of it are reduced over the data-parallel ranks while the
// pass goes on: to all of them, or each rank's share to it alone where the optimizer is shared out.
//
//     for each micro-batch:
//         float *grad = keel_buckets_begin(buckets, micro);
//         keel_model_forward(..., grad, ...); keel_model_backward(model, keel_buckets_ready, buckets);
//     keel_buckets_finish(buckets);      keel_buckets_gradient(buckets) is now the sum over micro-batches and ranks
#ifndef KEEL_TRAIN_PARALLEL_BUCKET_H
#define KEEL_TRAIN_PARALLEL_BUCKET_H

#include "train/model/model.h"
#include "train/parallel/collective.h"
#include "train/parallel/zero.h"

typedef struct keel_buckets keel_buckets;

typedef struct keel_buckets_plan {
    const keel_model *model;
    size_t accumulation; // micro-batches of a step
    const keel_zero *zero;
    keel_precision precision; // of the sums over ranks: each rank's part is rounded to it, and the running sum after
                              // each addition, as a ring of that dtype does; the data that is sent stays float32
    const keel_mesh *mesh;
    keel_taps *taps;
    keel_collectives *collectives;
} keel_buckets_plan;

// Registers grad_unreduced of every parameter (this rank's own, per micro-batch: layout partial) and the collectives of
// the buckets; none with one rank. Everything in PLAN is borrowed.
keel_status keel_buckets_open(const keel_buckets_plan *plan, keel_buckets **buckets);
void keel_buckets_close(keel_buckets *buckets); // NULL is fine
// REDUCED sees the gradient of parameter PARAM after the reduction. Where nothing is reduced, added up or rounded, that
// is the tensor which grad_unreduced sees.
void keel_buckets_pair(keel_buckets *buckets, size_t param, keel_tap *reduced);
size_t keel_buckets_bytes(const keel_buckets *buckets); // allocated

// The buffer [numel, flat] that micro-batch MICRO of the step writes its gradient to.
float *keel_buckets_begin(keel_buckets *buckets, size_t micro);
// A keel_grad_ready; its context is the buckets.
void keel_buckets_ready(void *buckets, size_t begin);
// LOCAL: from the next step on nothing is reduced over the data, and the gradient of a step is that of this rank's
// own. All ranks alike.
void keel_buckets_set_local(keel_buckets *buckets, bool local);
// Takes part in what is left of the step's reductions with whatever there is, for a rank that cannot go on: the others
// must not wait for ever.
void keel_buckets_give_up(keel_buckets *buckets);
// Waits for all.
keel_status keel_buckets_finish(keel_buckets *buckets);
// Divides the sum by the loss scale.
void keel_buckets_unscale(keel_buckets *buckets, double scale);
// Flat, 64-byte aligned. Where the optimizer is shared out, what this rank owns of it is valid after
// keel_buckets_finish.
float *keel_buckets_gradient(keel_buckets *buckets);

#endif
