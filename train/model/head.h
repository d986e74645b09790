// The head: logits, cross entropy and their gradients, in chunks of rows. A chunk's logits become the gradient by them
// while they exist, so that no matrix of [N, V] does. Where the vocabulary is shared out, no rank has a whole row: a
// chunk's rows are completed by their greatest logit, their sum of exponentials and the target's logit.
#ifndef KEEL_TRAIN_MODEL_HEAD_H
#define KEEL_TRAIN_MODEL_HEAD_H

#include "train/model/crossing.h"
#include "train/model/linear.h"

typedef struct keel_head {
    const keel_linear *linear; // [V, C]
    const keel_crossings *crossings;
    size_t chunk_rows;
    float *logits;     // [chunk_rows, V]
    float *greatest;   // [chunk_rows]
    double (*sums)[2]; // [chunk_rows]: of a row's exponentials, and the target's logit
    float *losses;     // [N]
    float *dnormed;    // [N, C]: gradient by the head's input
    keel_tap *tap, *grad_tap;
} keel_head;

// HEAD->chunk_rows for the context's sizes.
void keel_head_size(const keel_context *context, keel_head *head);
void keel_head_plan(const keel_context *context, keel_arena *arena, keel_head *head);

// NORMED [N, C], of which the rank's own rows are there; TOKENS [B, T + 1], the targets are [:, 1:], checked. Sum of
// the losses in nats, added in float64 row by row. If the context has gradients: HEAD->dnormed and the gradient of the
// head's weight (overwritten), of loss_sum
// * SCALE.
double keel_head_run(const keel_context *context, const keel_head *head, float *normed, const uint32_t *tokens,
                     double scale);

#endif
