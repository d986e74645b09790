// Element-wise and row-wise operations on blocks of rows that lie in cache, by the calling thread alone. Rows are
// contiguous, N elements each. Sums run in a fixed order.
#ifndef KEEL_TRAIN_TENSOR_OPS_H
#define KEEL_TRAIN_TENSOR_OPS_H

#include <stddef.h>

// y += x, n elements.
void keel_add(float *y, const float *x, size_t n);
// y = a + b, n elements.
void keel_add_to(float *y, const float *a, const float *b, size_t n);
void keel_scale(float *x, float scale, size_t n);
// Each row of Y += BIAS [n].
void keel_add_bias(float *y, const float *bias, size_t rows, size_t n);
// SUM [n] += the rows of X, one after another.
void keel_add_rows(float *sum, const float *x, size_t rows, size_t n);

// y = (x - mean) / sqrt(var + eps) * weight + bias; MEAN and RSTD [rows] are kept for the backward pass (Ba et al.
// 2016).
void keel_layer_norm(float *y, const float *x, const float *weight, const float *bias, float eps, float *mean,
                     float *rstd, size_t rows, size_t n);
// DX += gradient by x; DWEIGHT, DBIAS [n] += gradients by weight and bias.
void keel_layer_norm_backward(float *dx, float *dweight, float *dbias, const float *dy, const float *x,
                              const float *weight, const float *mean, const float *rstd, size_t rows, size_t n);
// y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019).
void keel_rms_norm(float *y, const float *x, const float *weight, float eps, float *rstd, size_t rows, size_t n);
void keel_rms_norm_backward(float *dx, float *dweight, const float *dy, const float *x, const float *weight,
                            const float *rstd, size_t rows, size_t n);

// GELU with the tanh approximation (Hendrycks and Gimpel 2016): x / (1 + exp(-2 u)), u = sqrt(2/pi) (x + 0.044715 x^3),
// which is 0.5 x (1 + tanh(u)) without its cancellation.
void keel_gelu(float *y, const float *x, size_t n);
// DX = DY * gelu'(x). DX may be DY.
void keel_gelu_backward(float *dx, const float *dy, const float *x, size_t n);

// SwiGLU (Shazeer 2020): y = gate / (1 + exp(-gate)) * up, n elements.
void keel_swiglu(float *y, const float *gate, const float *up, size_t n);
void keel_swiglu_backward(float *dgate, float *dup, const float *dy, const float *gate, const float *up, size_t n);

// Rotary positions (Su et al. 2021), rotate-half: the pair (x[i], x[i + d/2]) turns by the angle of COSINE[i], SINE[i]
// [d/2] of the row's position; D is even. HEADS heads of D side by side, in place. keel_rope_back turns the other way:
// its gradient.
void keel_rope(float *x, size_t heads, size_t d, const float *cosine, const float *sine);
void keel_rope_back(float *x, size_t heads, size_t d, const float *cosine, const float *sine);

// Pieces of a softmax. A NaN in X is passed over by the maximum and shows in the sum. -Inf if N is 0.
float keel_row_max(const float *x, size_t n);
// x = exp(x * scale - shift); gives the sum, added in float32 by lanes and in float64 from piece to piece.
double keel_row_exp(float *x, size_t n, float scale, float shift);

#endif
