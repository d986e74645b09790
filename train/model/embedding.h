// Token embedding, and GPT-2's learned positions, with the first norm.
#ifndef KEEL_TRAIN_MODEL_EMBEDDING_H
#define KEEL_TRAIN_MODEL_EMBEDDING_H

#include "train/model/crossing.h"
#include "train/model/norm.h"

typedef struct keel_embedding {
    size_t token, position;        // offsets of [V, C] and [P, C]; position KEEL_NO_PARAM: none
    const keel_crossing *crossing; // where the table's rows are shared out: each token is on one rank
    float *all;                    // [N, C], memory that is free between the layers
    keel_tap *tap;
} keel_embedding;

// TOKENS [B, T + 1], the inputs are [:, :-1], checked. FIRST is the join of layer 0's first norm: its stream becomes
// the embedding.
void keel_embedding_forward(const keel_context *context, const keel_embedding *embedding, const uint32_t *tokens,
                            const keel_join *first);
// DSTREAM [R, C]. The gradient of the token embedding is overwritten, or added to what the head has put there if tied.
void keel_embedding_backward(const keel_context *context, const keel_embedding *embedding, const uint32_t *tokens,
                             float *dstream);

#endif
