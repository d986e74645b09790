#include "train/model/cross_entropy.h"

#include <math.h>

#include "train/tensor/ops.h"
#include "train/tensor/rounded_ops.h"

void keel_row_loss_begin(const keel_row_loss *row, float *greatest, double *chosen) {
    keel_round(row->precision, row->logits, row->n);
    *greatest = keel_row_max(row->logits, row->n);
    *chosen = row->target == KEEL_NO_TARGET ? 0 : (double)row->logits[row->target];
}

void keel_row_loss_sum(const keel_row_loss *row, float greatest, double *total) {
    *total = row->precision == KEEL_FLOAT32 ? keel_row_exp(row->logits, row->n, 1.0f, greatest)
                                            : keel_row_exp_rounded(row->precision, row->logits, row->n, greatest);
}

static double end_rounded(const keel_row_loss *row, float greatest, double sum, double chosen, float scale) {
    const keel_precision precision = row->precision;
    const float total = keel_round_one(precision, (float)sum);
    float *logits = row->logits;
    if (scale != 0) {
        for (size_t i = 0; i < row->n; i++) logits[i] /= total;
        keel_round(precision, logits, row->n);
        if (row->target != KEEL_NO_TARGET) logits[row->target] = keel_round_one(precision, logits[row->target] - 1);
        keel_scale(logits, scale, row->n);
        keel_round(precision, logits, row->n);
    }
    const float log_total = keel_round_one(precision, greatest + keel_round_one(precision, logf(total)));
    return (double)keel_round_one(precision, log_total - (float)chosen);
}

double keel_row_loss_end(const keel_row_loss *row, float greatest, double total, double chosen, float scale) {
    if (row->precision != KEEL_FLOAT32) return end_rounded(row, greatest, total, chosen, scale);
    if (scale != 0) {
        keel_scale(row->logits, (float)((double)scale / total), row->n);
        if (row->target != KEEL_NO_TARGET) row->logits[row->target] -= scale;
    }
    return (double)greatest + log(total) - chosen;
}
