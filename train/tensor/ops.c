#include "train/tensor/ops.h"

#include <math.h>

#include "train/tensor/vector.h"

void keel_add(float *restrict y, const float *restrict x, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

void keel_add_to(float *restrict y, const float *restrict a, const float *restrict b, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

void keel_scale(float *x, float scale, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) x[i] *= scale;
}

void keel_add_bias(float *y, const float *bias, size_t rows, size_t n) {
    for (size_t r = 0; r < rows; r++) keel_add(y + r * n, bias, n);
}

void keel_add_rows(float *sum, const float *x, size_t rows, size_t n) {
    for (size_t r = 0; r < rows; r++) keel_add(sum, x + r * n, n);
}

// Sums over a row, by lanes. TERM is an expression of vectors at offset i.
#define ROW_SUM(sum, n, term_vector, term_scalar)                                                                      \
    do {                                                                                                               \
        keel_vec lanes_ = {0};                                                                                         \
        size_t i = 0;                                                                                                  \
        for (; i + KEEL_LANES <= (n); i += KEEL_LANES) lanes_ += (term_vector);                                        \
        (sum) = keel_vec_sum(lanes_);                                                                                  \
        for (; i < (n); i++) (sum) += (term_scalar);                                                                   \
    } while (0)

KEEL_INLINE keel_vec square(keel_vec x) {
    return x * x;
}

void keel_layer_norm(float *restrict y, const float *restrict x, const float *restrict weight,
                     const float *restrict bias, float eps, float *mean, float *rstd, size_t rows, size_t n) {
    for (size_t r = 0; r < rows; r++, x += n, y += n) {
        float sum, sum_sq;
        ROW_SUM(sum, n, keel_vec_load(x + i), x[i]);
        float m = sum / (float)n;
        ROW_SUM(sum_sq, n, square(keel_vec_load(x + i) - m), (x[i] - m) * (x[i] - m));
        float s = 1.0f / sqrtf(sum_sq / (float)n + eps);
        mean[r] = m;
        rstd[r] = s;
#pragma omp simd
        for (size_t i = 0; i < n; i++) y[i] = (x[i] - m) * s * weight[i] + bias[i];
    }
}

void keel_layer_norm_backward(float *restrict dx, float *restrict dweight, float *restrict dbias,
                              const float *restrict dy, const float *restrict x, const float *restrict weight,
                              const float *mean, const float *rstd, size_t rows, size_t n) {
    for (size_t r = 0; r < rows; r++, x += n, dy += n, dx += n) {
        float m = mean[r], s = rstd[r];
        float sum, dot;
        ROW_SUM(sum, n, keel_vec_load(dy + i) * keel_vec_load(weight + i), dy[i] * weight[i]);
        ROW_SUM(dot, n, keel_vec_load(dy + i) * keel_vec_load(weight + i) * (keel_vec_load(x + i) - m),
                dy[i] * weight[i] * (x[i] - m));
        float mean_d = sum / (float)n, mean_dx = dot * s / (float)n;
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            float hat = (x[i] - m) * s;
            dx[i] += s * (dy[i] * weight[i] - mean_d - hat * mean_dx);
            dweight[i] += dy[i] * hat;
            dbias[i] += dy[i];
        }
    }
}

void keel_rms_norm(float *restrict y, const float *restrict x, const float *restrict weight, float eps, float *rstd,
                   size_t rows, size_t n) {
    for (size_t r = 0; r < rows; r++, x += n, y += n) {
        float sum_sq;
        ROW_SUM(sum_sq, n, square(keel_vec_load(x + i)), x[i] * x[i]);
        float s = 1.0f / sqrtf(sum_sq / (float)n + eps);
        rstd[r] = s;
#pragma omp simd
        for (size_t i = 0; i < n; i++) y[i] = x[i] * s * weight[i];
    }
}

void keel_rms_norm_backward(float *restrict dx, float *restrict dweight, const float *restrict dy,
                            const float *restrict x, const float *restrict weight, const float *rstd, size_t rows,
                            size_t n) {
    for (size_t r = 0; r < rows; r++, x += n, dy += n, dx += n) {
        float s = rstd[r];
        float dot;
        ROW_SUM(dot, n, keel_vec_load(dy + i) * keel_vec_load(weight + i) * keel_vec_load(x + i),
                dy[i] * weight[i] * x[i]);
        float mean_dx = dot * s / (float)n;
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            float hat = x[i] * s;
            dx[i] += s * (dy[i] * weight[i] - hat * mean_dx);
            dweight[i] += dy[i] * hat;
        }
    }
}

// Runs FUNCTION (vectors in, vector out) over N elements of one or two inputs.
#define MAP_1(y, a, n, function)                                                                                       \
    do {                                                                                                               \
        size_t i = 0;                                                                                                  \
        for (; i + KEEL_LANES <= (n); i += KEEL_LANES) keel_vec_store((y) + i, function(keel_vec_load((a) + i)));      \
        if (i < (n)) keel_vec_store_part((y) + i, function(keel_vec_load_part((a) + i, (n)-i, 0)), (n)-i);             \
    } while (0)
#define MAP_2(y, a, b, n, function)                                                                                    \
    do {                                                                                                               \
        size_t i = 0;                                                                                                  \
        for (; i + KEEL_LANES <= (n); i += KEEL_LANES)                                                                 \
            keel_vec_store((y) + i, function(keel_vec_load((a) + i), keel_vec_load((b) + i)));                         \
        if (i < (n))                                                                                                   \
            keel_vec_store_part(                                                                                       \
                (y) + i, function(keel_vec_load_part((a) + i, (n)-i, 0), keel_vec_load_part((b) + i, (n)-i, 0)),       \
                (n)-i);                                                                                                \
    } while (0)

#define GELU_SCALE 1.5957691216f // 2 sqrt(2 / pi)
#define GELU_CUBE  0.044715f

KEEL_INLINE keel_vec sigmoid(keel_vec x) {
    return 1.0f / (1.0f + keel_vec_exp(-x));
}

KEEL_INLINE keel_vec gelu(keel_vec x) {
    keel_vec u = GELU_SCALE * x * (1.0f + GELU_CUBE * (x * x));
    return x * sigmoid(u);
}

KEEL_INLINE keel_vec gelu_backward(keel_vec dy, keel_vec x) {
    keel_vec sq = x * x;
    keel_vec s = sigmoid(GELU_SCALE * x * (1.0f + GELU_CUBE * sq));
    keel_vec du = GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * sq);
    return dy * (s + x * (s * (1.0f - s)) * du);
}

void keel_gelu(float *y, const float *x, size_t n) {
    MAP_1(y, x, n, gelu);
}

void keel_gelu_backward(float *dx, const float *dy, const float *x, size_t n) {
    MAP_2(dx, dy, x, n, gelu_backward);
}

KEEL_INLINE keel_vec swiglu(keel_vec gate, keel_vec up) {
    return gate * sigmoid(gate) * up;
}

void keel_swiglu(float *y, const float *gate, const float *up, size_t n) {
    MAP_2(y, gate, up, n, swiglu);
}

KEEL_INLINE void swiglu_backward(keel_vec dy, keel_vec gate, keel_vec up, keel_vec *dgate, keel_vec *dup) {
    keel_vec s = sigmoid(gate);
    *dup = dy * gate * s;
    *dgate = dy * up * (s * (1.0f + gate * (1.0f - s)));
}

void keel_swiglu_backward(float *dgate, float *dup, const float *dy, const float *gate, const float *up, size_t n) {
    size_t i = 0;
    keel_vec a, b;
    for (; i + KEEL_LANES <= n; i += KEEL_LANES) {
        swiglu_backward(keel_vec_load(dy + i), keel_vec_load(gate + i), keel_vec_load(up + i), &a, &b);
        keel_vec_store(dgate + i, a);
        keel_vec_store(dup + i, b);
    }
    if (i < n) {
        size_t rest = n - i;
        swiglu_backward(keel_vec_load_part(dy + i, rest, 0), keel_vec_load_part(gate + i, rest, 0),
                        keel_vec_load_part(up + i, rest, 0), &a, &b);
        keel_vec_store_part(dgate + i, a, rest);
        keel_vec_store_part(dup + i, b, rest);
    }
}

KEEL_INLINE void rotate(float *x, size_t heads, size_t d, const float *restrict cosine, const float *restrict sine,
                        float direction) {
    size_t half = d / 2;
    for (size_t h = 0; h < heads; h++) {
        float *restrict low = x + h * d, *restrict high = low + half;
#pragma omp simd
        for (size_t i = 0; i < half; i++) {
            float a = low[i], b = high[i], s = direction * sine[i];
            low[i] = a * cosine[i] - b * s;
            high[i] = b * cosine[i] + a * s;
        }
    }
}

void keel_rope(float *x, size_t heads, size_t d, const float *cosine, const float *sine) {
    rotate(x, heads, d, cosine, sine, 1.0f);
}

void keel_rope_back(float *x, size_t heads, size_t d, const float *cosine, const float *sine) {
    rotate(x, heads, d, cosine, sine, -1.0f);
}

float keel_row_max(const float *x, size_t n) {
    keel_vec lanes = keel_vec_set(-INFINITY);
    size_t i = 0;
    for (; i + KEEL_LANES <= n; i += KEEL_LANES) lanes = keel_vec_max(keel_vec_load(x + i), lanes);
    float greatest = keel_vec_greatest(lanes);
    for (; i < n; i++) greatest = x[i] > greatest ? x[i] : greatest;
    return greatest;
}

double keel_row_exp(float *x, size_t n, float scale, float shift) {
    enum { PIECE = 64 * KEEL_LANES };
    double total = 0;
    size_t i = 0;
    while (i + KEEL_LANES <= n) {
        size_t end = i + PIECE < n ? i + PIECE : n;
        keel_vec lanes = {0};
        for (; i + KEEL_LANES <= end; i += KEEL_LANES) {
            keel_vec e = keel_vec_exp(keel_vec_load(x + i) * scale - shift);
            keel_vec_store(x + i, e);
            lanes += e;
        }
        total += (double)keel_vec_sum(lanes);
    }
    if (i < n) {
        keel_vec e = keel_vec_exp(keel_vec_load_part(x + i, n - i, 0) * scale - shift);
        keel_vec_store_part(x + i, e, n - i);
        for (size_t j = 0; j < n - i; j++) total += (double)e[j];
    }
    return total;
}
