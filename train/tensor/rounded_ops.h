// Norms and exponentials with all their arithmetic in a 16-bit format, as an experiment that shows why it is kept in
// float32: the result of every operation is rounded to PRECISION (not float32), sums over a row run in float32 and are
// rounded at their end. Rows are contiguous, N elements each; by the calling thread alone.
#ifndef KEEL_TRAIN_TENSOR_ROUNDED_OPS_H
#define KEEL_TRAIN_TENSOR_ROUNDED_OPS_H

#include "train/tensor/precision.h"

// The norms of ops.h: LayerNorm, or RMSNorm where BIAS (backward: DBIAS) is NULL, which leaves MEAN alone. WEIGHT and
// BIAS have the format. DX, DWEIGHT, DBIAS are added to, in float32.
void keel_norm_rounded(keel_precision precision, float *y, const float *x, const float *weight, const float *bias,
                       float eps, float *mean, float *rstd, size_t rows, size_t n);
void keel_norm_rounded_backward(keel_precision precision, float *dx, float *dweight, float *dbias, const float *dy,
                                const float *x, const float *weight, const float *mean, const float *rstd, size_t rows,
                                size_t n);

// X = exp(X - SHIFT); gives the sum, not rounded. X has the format.
double keel_row_exp_rounded(keel_precision precision, float *x, size_t n, float shift);

#endif
