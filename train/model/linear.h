// y = x W + b over [rows, in]. GPT-2 stores W as [in, out] (Conv1D), LLaMA as [out, in] (Linear).
//
// In bfloat16 and float16 the inputs have the format already: W in the context's weights, X and DY from the passes that
// made them. The sums are float32, and stay so here: the pass that takes them adds the bias and rounds, gradients after
// they were observed.
#ifndef KEEL_TRAIN_MODEL_LINEAR_H
#define KEEL_TRAIN_MODEL_LINEAR_H

#include "train/model/context.h"

#define KEEL_NO_PARAM SIZE_MAX

typedef struct keel_linear {
    size_t in, out;
    bool out_in;   // stored as [out, in]
    size_t weight; // offset in the flat buffers
    size_t bias;   // KEEL_NO_PARAM: none. Added by the pass that follows the product, while a block of rows is in cache
} keel_linear;

static inline const float *keel_linear_bias(const keel_context *context, const keel_linear *linear) {
    return linear->bias == KEEL_NO_PARAM ? NULL : context->weights + linear->bias;
}

// None of them counts its time: the caller knows what it is part of.
// Y [rows, out] = X [rows, in] W.
void keel_linear_forward(const keel_context *context, const keel_linear *linear, size_t rows, const float *x, float *y);
// DX [rows, in] = DY [rows, out] W^T.
void keel_linear_backward_input(const keel_context *context, const keel_linear *linear, size_t rows, const float *dy,
                                float *dx);
// Gradient of W from X and DY, into the context's gradients, added if ACCUMULATE.
void keel_linear_backward_weight(const keel_context *context, const keel_linear *linear, size_t rows, const float *x,
                                 const float *dy, bool accumulate);

#endif
