// From tokens to rows sorted by expert, and back.
//
// With a capacity each expert takes ceil(capacity_factor K T / E) assignments of one sequence: all first choices in
// order of position, then the second choices, and so on. An assignment beyond it is dropped: it contributes nothing,
// and the token's other weights stay what they are.
#ifndef KEEL_TRAIN_MODEL_DISPATCH_H
#define KEEL_TRAIN_MODEL_DISPATCH_H

#include "train/model/context.h"

#define KEEL_DROPPED UINT32_MAX

typedef struct keel_dispatch {
    uint32_t *slot;   // [N, K] row of an assignment, or KEEL_DROPPED
    uint32_t *source; // [rows] assignment of a row: token * K + choice
    uint32_t *counts; // [E] rows of each expert, one expert's after another
    size_t rows;
} keel_dispatch;

size_t keel_dispatch_most_rows(const keel_context *context);
void keel_dispatch_plan(const keel_context *context, keel_arena *arena, keel_dispatch *dispatch);

// From CHOSEN [N, K], the experts of each token. NEXT [E] is scratch.
void keel_dispatch_make(const keel_context *context, const uint32_t *chosen, uint32_t *next, keel_dispatch *dispatch);

// Below, SCRATCH [N K, C] is where tokens and rows meet halfway unless use_fused_ops_permute goes the way in one pass,
// with the same result; NULL then.

// ROWS [rows, C] = the tokens of the rows, from TOKENS [N, C].
void keel_dispatch_to_rows(const keel_context *context, const keel_dispatch *dispatch, const float *tokens,
                           float *scratch, float *rows);
// TOKENS [N, C] = sums of the tokens' rows, each times its weight of WEIGHTS [N, K] (NULL: 1).
void keel_dispatch_to_tokens(const keel_context *context, const keel_dispatch *dispatch, const float *rows,
                             const float *weights, float *scratch, float *tokens);
// Gradients of the weighted sum by the rows, DROWS [rows, C], and by the weights, DWEIGHTS [N, K], 0 where dropped.
void keel_dispatch_backward(const keel_context *context, const keel_dispatch *dispatch, const float *dtokens,
                            const float *rows, const float *weights, float *scratch, float *drows, float *dweights);

#endif
