// A mixture of experts, which takes the place of a layer's mlp: router, dispatch, experts, and the weighted sum of what
// they give.
#ifndef KEEL_TRAIN_MODEL_MOE_H
#define KEEL_TRAIN_MODEL_MOE_H

#include "train/model/crossing.h"
#include "train/model/dispatch.h"
#include "train/model/exchange.h"
#include "train/model/experts.h"
#include "train/model/places.h"
#include "train/model/router.h"

typedef struct keel_moe_common { // what the micro-batches of a layer have in common
    keel_collective *routing;    // its sums over data-parallel ranks; NULL: there is one
    keel_exchange_ways ways;
    keel_routing_totals totals; // of all of them
} keel_moe_common;

typedef struct keel_moe_layer {
    keel_moe_common *common;
    keel_router router;
    keel_dispatch dispatch;
    keel_exchange exchange;
    keel_experts experts;
    float *returned; // [rows, C] of dispatch: what the experts have made of them; theirs itself where all are here
    const keel_routing_taps *taps;
    keel_collective *weights; // completes gradients by the weights over tensor ranks; NULL: there is one
} keel_moe_layer;

typedef struct keel_moe { // what the layers share
    keel_experts_scratch experts;
    keel_exchange_scratch exchange;
    float *sent;     // [rows, C] of dispatch, on their way; NULL where all experts are here
    float *halfway;  // [N K, C]; NULL with use_fused_ops_permute
    float *dweights; // [N, K]
    float *dlogits;  // [N, E]
    uint32_t *next;  // [E]
    float *load;     // [E]
} keel_moe;

void keel_moe_plan(const keel_context *context, keel_arena *arena, keel_moe *moe);
void keel_moe_plan_layer(const keel_context *context, keel_arena *arena, keel_moe_layer *layer); // how tokens go
// The experts' rows, but for what their activation function gives (keel_experts_plan_act).
void keel_moe_plan_rows(const keel_context *context, keel_arena *arena, keel_moe_layer *layer);

// Declares the collectives of layer INDEX among COLLECTIVES. To be called before the places are registered.
keel_status keel_moe_open(const keel_context *context, keel_collectives *collectives, size_t index,
                          keel_moe_common *common);
void keel_moe_connect(keel_moe_common *common, keel_moe_layer *layer);

// X [N, C] -> Y [N, C], this tensor rank's summand of it. Adds to LAYER->common->totals.
keel_status keel_moe_forward(const keel_context *context, const keel_moe *moe, keel_moe_layer *layer, const float *x,
                             float *y);
// The experts' rows alone, of a routing that is known.
keel_status keel_moe_form_rows(const keel_context *context, const keel_moe *moe, const keel_moe_layer *layer,
                               const float *x);
// DY [N, C] -> DX [N, C], a summand too; gradients of the router's and the experts' matrices into the context's.
keel_status keel_moe_backward(const keel_context *context, const keel_moe *moe, const keel_moe_layer *layer,
                              const float *x, const float *dy, float *dx);

#endif
