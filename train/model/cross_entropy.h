// Cross entropy of a row of logits and its gradient, in three steps, between which ranks that have parts of the row
// complete what each has of its own. By the calling thread alone.
#ifndef KEEL_TRAIN_MODEL_CROSS_ENTROPY_H
#define KEEL_TRAIN_MODEL_CROSS_ENTROPY_H

#include "train/tensor/precision.h"

// The target is in another rank's part.
#define KEEL_NO_TARGET SIZE_MAX

typedef struct keel_row_loss {
    keel_precision precision; // every operation's result, if it is not float32
    float *logits;            // [n]
    size_t n;
    size_t target; // index of it, or KEEL_NO_TARGET
} keel_row_loss;

// *GREATEST: logit of the part; *CHOSEN: the target's logit, or 0.
void keel_row_loss_begin(const keel_row_loss *row, float *greatest, double *chosen);
// GREATEST of the whole row. Logits become exponentials, *TOTAL their sum.
void keel_row_loss_sum(const keel_row_loss *row, float greatest, double *total);
// All of the whole row. The loss; if SCALE is not 0 the part becomes SCALE * (softmax - onehot).
double keel_row_loss_end(const keel_row_loss *row, float greatest, double total, double chosen, float scale);

#endif
