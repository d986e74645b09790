// The router of a layer: which experts a token goes to and with what weight, always in float32.
//
//     logits = x W^T, p = softmax(logits) over all E experts; a token goes to the K experts of greatest p (of equal
//     ones the first) with the weights p_e, which norm_topk_prob divides by their sum (Jiang et al. 2024) balance = E
//     sum_e load_e mean(p_e), where load_e is the share of all assignments that go to expert e, before any is dropped;
//     only p has a gradient (Fedus et al. 2022) z = mean(logsumexp(logits)^2) (Zoph et al. 2022)
//
// Both losses join the cross entropy with their factors, summed over layers. Loads and means are those of a micro-batch
// of all data-parallel ranks together, so that nothing depends on how many of them share it. They are products of
// means: of a step of several micro-batches the loss is the mean of the micro-batches' own, not that of the whole
// batch.
#ifndef KEEL_TRAIN_MODEL_ROUTER_H
#define KEEL_TRAIN_MODEL_ROUTER_H

#include "train/model/linear.h"

// What the routing of a micro-batch comes to, as float64 side by side: one reduction takes all of it.
enum { KEEL_ROUTED_DROPPED, KEEL_ROUTED_Z, KEEL_ROUTED_FIXED }; // dropped assignments, sum of logsumexp^2
static inline size_t keel_routed_count(const keel_context *context) {
    return KEEL_ROUTED_FIXED + 2 * context->experts;
}
static inline double *keel_routed_load(double *routed) { // [E] assignments
    return routed + KEEL_ROUTED_FIXED;
}
static inline double *keel_routed_probability(const keel_context *context, double *routed) { // [E] sums of p
    return routed + KEEL_ROUTED_FIXED + context->experts;
}

typedef struct keel_router_state {
    float *probs;     // [N, E]
    float *logsumexp; // [N]
    uint32_t *chosen; // [N, K], by falling p
    float *weights;   // [N, K]
    double *routed;   // of this rank's tokens, later of all data-parallel ranks'
} keel_router_state;

typedef struct keel_router {
    const keel_linear *linear; // [E, C]
    keel_router_state state;
    keel_tap *tap, *grad_tap; // of the logits
} keel_router;

void keel_router_plan_state(const keel_context *context, keel_arena *arena, keel_router_state *state);

// X [N, C]. Fills STATE; of STATE.routed all but the dropped assignments.
void keel_router_forward(const keel_context *context, const keel_router *router, const float *x);

// DWEIGHTS [N, K]: gradient by the weights. Adds what comes through the router to DX [N, C], on the first tensor rank,
// whose sum over these ranks is wanted, and writes the gradient of
// its matrix; DLOGITS [N, E] is scratch. The gradients of both losses, of which STATE.routed of all ranks is needed,
// come with it.
void keel_router_backward(const keel_context *context, const keel_router *router, const float *x, const float *dweights,
                          float *dlogits, float *dx);

#endif
