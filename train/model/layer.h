// One layer, forward and backward: norm, attention, join, norm, MLP. What joins its output to the residual stream is
// the first norm of the layer above, or the last of the model: both are taken while a block of rows is in cache.
#ifndef KEEL_TRAIN_MODEL_LAYER_H
#define KEEL_TRAIN_MODEL_LAYER_H

#include "train/model/attention.h"
#include "train/model/crossing.h"
#include "train/model/mlp.h"
#include "train/model/moe.h"
#include "train/model/norm.h"
#include "train/model/parameters.h"
#include "train/model/places.h"

// What a layer keeps of a forward pass. What it does not keep lies in memory that all such layers share, and is
// computed again before the backward pass (Chen et al. 2016). How tokens are routed to experts is always kept.
typedef enum keel_keep {
    KEEL_KEEP_ALL,
    KEEL_KEEP_PRODUCTS, // all but the attention's core and the activation function's output
    KEEL_KEEP_STREAM    // what comes in, alone
} keel_keep;

// What a layer is made of, and what it keeps of one micro-batch for the backward pass.
typedef struct keel_layer {
    const keel_layer_params *params;
    const keel_layer_crossings *crossings;
    keel_keep keep;
    keel_join join1; // embedding or the layer below joins, norm1
    keel_attention_layer attention;
    keel_join join2; // attention joins, norm2
    keel_mlp_layer mlp;
    keel_moe_layer moe; // in its place, with experts
} keel_layer;

// Memory that all layers use in turn.
typedef struct keel_work {
    keel_attention attention;
    keel_layer again; // its states: of the layers that keep less, the one that is computed now
    float *branch;    // [N, C] output of the branch that joins next, without its bias; backward, the gradient by one
    float *dnarrow;   // [N, C]
    float *dwide;     // [N, sum_width] gradient by the widest products
    float *dact;      // [N, F]; dwide for GPT-2; NULL with experts
    keel_moe moe;
} keel_work;

// All but WORK->attention and WORK->again.
void keel_work_plan(const keel_context *context, keel_arena *arena, keel_work *work);
// WORK->again, for layers that keep no less than LEAST.
void keel_work_plan_again(const keel_context *context, keel_arena *arena, keel_keep least, keel_work *work);
void keel_layer_plan(const keel_context *context, keel_arena *arena, const keel_work *work, keel_layer *layer);
// All but join1, which has its branch from below.
void keel_layer_connect(const keel_context *context, const keel_layer_params *params,
                        const keel_layer_crossings *crossings, const keel_layer_places *places, keel_layer *layer);

// join1 has its stream and norm. WORK->branch becomes the layer's last product, which joins join2.state.stream.
keel_status keel_layer_forward(const keel_context *context, const keel_work *work, keel_layer *layer);
// What a layer that keeps less did not keep, as it was, but for what joins behind it, which no gradient needs.
keel_status keel_layer_again(const keel_context *context, const keel_work *work, const keel_layer *layer);
// DSTREAM [R, C]: gradient by the stream above the layer, becomes that by the stream below it. The parameters'
// gradients go to the context's gradients and are told of; that of the last product's bias is formed by who joins it.
keel_status keel_layer_backward(const keel_context *context, const keel_work *work, const keel_layer *layer,
                                float *dstream);

#endif
