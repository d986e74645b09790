// The feed-forward layer: GELU (GPT-2), or SwiGLU with gate and up side by side in one product (LLaMA).
#ifndef KEEL_TRAIN_MODEL_MLP_H
#define KEEL_TRAIN_MODEL_MLP_H

#include "train/model/linear.h"

typedef struct keel_mlp_state {
    float *up;  // [N, F] or [N, 2 F]: input of the activation
    float *act; // [N, F]
} keel_mlp_state;

typedef struct keel_mlp_layer {
    const keel_linear *up;
    keel_mlp_state state;
    keel_tap *up_tap, *up_grad_tap;
    keel_tap *act_tap, *act_grad_tap;
} keel_mlp_layer;

void keel_mlp_plan_up(const keel_context *context, keel_arena *arena, size_t rows, keel_mlp_state *state);
void keel_mlp_plan_act(const keel_context *context, keel_arena *arena, size_t rows, keel_mlp_state *state);
// STATE.up holds the product without its bias: adds the bias and computes STATE.act.
void keel_mlp_activate(const keel_context *context, const keel_mlp_layer *layer);
// The second half of it: STATE.act from a STATE.up that has its bias.
void keel_mlp_act(const keel_context *context, const keel_mlp_layer *layer);
// DACT [N, F] -> DUP [N, F] or [N, 2 F]; the bias's gradient goes to the context's gradients. DUP may be DACT for GELU.
void keel_mlp_activate_backward(const keel_context *context, const keel_mlp_layer *layer, float *dact, float *dup);

// The same for rows [FIRST, FIRST + COUNT), of which an mlp without bias may have any number, part after part between
// begin and end.
void keel_mlp_activate_begin(const keel_mlp_layer *layer);
void keel_mlp_activate_rows(const keel_context *context, const keel_mlp_layer *layer, size_t first, size_t count);
void keel_mlp_activate_end(const keel_mlp_layer *layer);
void keel_mlp_activate_backward_begin(const keel_mlp_layer *layer);
void keel_mlp_activate_backward_rows(const keel_context *context, const keel_mlp_layer *layer, float *dact, float *dup,
                                     size_t first, size_t count);
void keel_mlp_activate_backward_end(const keel_mlp_layer *layer);

#endif
