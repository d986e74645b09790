#include "train/tensor/rounded_ops.h"

#include <math.h>

#include "train/tensor/ops.h"

static float sum(const float *x, size_t n) {
    float total = 0;
    for (size_t i = 0; i < n; i++) total += x[i];
    return total;
}

void keel_norm_rounded(keel_precision precision, float *y, const float *x, const float *weight, const float *bias,
                       float eps, float *mean, float *rstd, size_t rows, size_t n) {
    const keel_precision p = precision;
    for (size_t r = 0; r < rows; r++, x += n, y += n) {
        keel_round_copy(p, y, x, n);
        if (bias) {
            mean[r] = keel_round_one(p, sum(y, n) / (float)n);
            for (size_t i = 0; i < n; i++) y[i] -= mean[r];
            keel_round(p, y, n);
        }
        float squares = 0;
        for (size_t i = 0; i < n; i++) squares += keel_round_one(p, y[i] * y[i]);
        const float variance = keel_round_one(p, squares / (float)n);
        rstd[r] = keel_round_one(p, 1.0f / keel_round_one(p, sqrtf(keel_round_one(p, variance + eps))));
        keel_scale(y, rstd[r], n);
        keel_round(p, y, n);
        for (size_t i = 0; i < n; i++) y[i] *= weight[i];
        keel_round(p, y, n);
        if (!bias) continue;
        keel_add(y, bias, n);
        keel_round(p, y, n);
    }
}

void keel_norm_rounded_backward(keel_precision precision, float *dx, float *dweight, float *dbias, const float *dy,
                                const float *x, const float *weight, const float *mean, const float *rstd, size_t rows,
                                size_t n) {
    const keel_precision p = precision;
    for (size_t r = 0; r < rows; r++, x += n, dy += n, dx += n) {
        const float m = dbias ? mean[r] : 0, s = rstd[r];
        float mean_d = 0, mean_dx = 0;
        for (size_t i = 0; i < n; i++) {
            const float d = keel_round_one(p, dy[i]);
            const float hat = keel_round_one(p, keel_round_one(p, keel_round_one(p, x[i]) - m) * s);
            const float dhat = keel_round_one(p, d * weight[i]);
            mean_d += dhat;
            mean_dx += keel_round_one(p, dhat * hat);
            dweight[i] += keel_round_one(p, d * hat);
            if (dbias) dbias[i] += d;
        }
        mean_d = dbias ? keel_round_one(p, mean_d / (float)n) : 0;
        mean_dx = keel_round_one(p, mean_dx / (float)n);
        for (size_t i = 0; i < n; i++) {
            const float hat = keel_round_one(p, keel_round_one(p, keel_round_one(p, x[i]) - m) * s);
            const float dhat = keel_round_one(p, keel_round_one(p, dy[i]) * weight[i]);
            const float centred = keel_round_one(p, dhat - mean_d);
            dx[i] += keel_round_one(p, s * keel_round_one(p, centred - keel_round_one(p, hat * mean_dx)));
        }
    }
}

double keel_row_exp_rounded(keel_precision precision, float *x, size_t n, float shift) {
    for (size_t i = 0; i < n; i++) x[i] -= shift;
    keel_round(precision, x, n);
    (void)keel_row_exp(x, n, 1, 0);
    keel_round(precision, x, n);
    return (double)sum(x, n);
}
