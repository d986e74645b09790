// Causal attention with grouped queries, by tiles: no matrix of T x T exists. The forward pass keeps one number for a
// row, the logarithm of the sum of its exponentials, from which the backward pass forms the tiles again (Dao et al.
// 2022).
//
// In bfloat16 and float16 scores are rounded as outputs of a product; probabilities, not yet divided by their sum,
// where they are inputs of one.
#ifndef KEEL_TRAIN_MODEL_ATTENTION_H
#define KEEL_TRAIN_MODEL_ATTENTION_H

#include "train/model/linear.h"
#include "train/model/position.h"

// Shared by all layers.
typedef struct keel_attention {
    keel_position position;
    float *scratch; // [threads, scratch_size]
    size_t scratch_size;
    float *greatest;     // [B, H]
    float *dq, *dk, *dv; // [B, H, T, Dp], Dp: D in whole vectors. Every query head forms its own share of dk and dv
} keel_attention;

// What a layer keeps.
typedef struct keel_attention_state {
    float *qkv;  // [N, (H + 2 H_k) D]: rows of q, k, v; q and k rotated where RoPE is used
    float *core; // [N, H D]: outputs of the heads side by side
    float *lse;  // [B, H, T]
} keel_attention_state;

typedef struct keel_attention_layer {
    const keel_linear *qkv;
    keel_attention_state state;
    keel_tap *qkv_tap, *qkv_grad_tap;
    keel_tap *core_tap, *core_grad_tap;
    keel_tap *logit_tap; // [B, H]: of each head the greatest |q.k / sqrt(d)|
} keel_attention_layer;

void keel_attention_plan(const keel_context *context, keel_arena *arena, keel_attention *attention);
void keel_attention_plan_qkv(const keel_context *context, keel_arena *arena, keel_attention_state *state);
void keel_attention_plan_core(const keel_context *context, keel_arena *arena, keel_attention_state *state); // and lse

// STATE.qkv holds the product without its bias: adds the bias, rotates q and k, and computes STATE.core and STATE.lse.
void keel_attention_forward(const keel_context *context, const keel_attention *attention,
                            const keel_attention_layer *layer);
// The second half of it: STATE.core and STATE.lse from a STATE.qkv that is complete.
void keel_attention_core(const keel_context *context, const keel_attention *attention,
                         const keel_attention_layer *layer);
// DCORE [N, H D] is rounded to its format, else left as it is, but for a fault. DQKV [N, (H + 2 H_k) D]: gradient by
// the product; the bias's gradient goes to the context's gradients.
void keel_attention_backward(const keel_context *context, const keel_attention *attention,
                             const keel_attention_layer *layer, float *dcore, float *dqkv);

#endif
