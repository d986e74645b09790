// The experts of a layer that this rank holds: a SwiGLU each, over rows sorted by expert. Products of all experts
// together (use_gmm), else one expert after another.
#ifndef KEEL_TRAIN_MODEL_EXPERTS_H
#define KEEL_TRAIN_MODEL_EXPERTS_H

#include "train/model/mlp.h"
#include "train/tensor/grouped.h"

typedef struct keel_experts {
    const keel_linear *down; // of one expert, the offset of the first one's matrix: [L, C, F] in all
    keel_mlp_layer mlp;      // its UP alike: [L, 2 F, C]; its state has a row for each of the experts' rows
    keel_group *groups;      // [L] rows of each local expert
    float *in, *out;         // [most rows, C]
    size_t rows;             // of the groups, without padding
    size_t padding;          // rows of zeros after them: one for each expert without a token, if enable_gmm_safe_tokens
} keel_experts;

typedef struct keel_experts_scratch { // of all layers
    float *dout, *din;                // [most rows, C]
    float *dact;                      // [most rows, F]
    float *dup;                       // [most rows, 2 F]
} keel_experts_scratch;

void keel_experts_plan_groups(const keel_context *context, keel_arena *arena, keel_experts *experts);
void keel_experts_plan_rows(const keel_context *context, keel_arena *arena, keel_experts *experts); // in, out, up
void keel_experts_plan_act(const keel_context *context, keel_arena *arena, keel_experts *experts);
void keel_experts_plan_scratch(const keel_context *context, keel_arena *arena, keel_experts_scratch *scratch);

// The rows of each expert are COUNTS [L], one expert's after another.
void keel_experts_begin(const keel_context *context, const uint32_t *counts, keel_experts *experts);
// OUT from IN.
void keel_experts_forward(const keel_context *context, const keel_experts *experts);
// The activation function's output alone, from its input as keel_experts_forward left it.
void keel_experts_act(const keel_context *context, const keel_experts *experts);
// SCRATCH->din from SCRATCH->dout, which is rounded to the format of products; gradients of the matrices into the
// context's.
void keel_experts_backward(const keel_context *context, const keel_experts *experts,
                           const keel_experts_scratch *scratch);

#endif
