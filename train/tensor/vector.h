// Vectors of float32 in the compiler's own vector extension, as wide as the CPU that the trainer is compiled for.
#ifndef KEEL_TRAIN_TENSOR_VECTOR_H
#define KEEL_TRAIN_TENSOR_VECTOR_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define KEEL_LANES 16
#elif defined(__AVX__)
#include <immintrin.h>
#define KEEL_LANES 8
#else
#define KEEL_LANES 4
#endif

#define KEEL_INLINE static inline __attribute__((always_inline))

typedef float keel_vec __attribute__((vector_size(4 * KEEL_LANES)));
typedef int32_t keel_veci __attribute__((vector_size(4 * KEEL_LANES)));
typedef float keel_vec_memory __attribute__((vector_size(4 * KEEL_LANES), aligned(4), may_alias));

// Half as many float64.
typedef double keel_vec64 __attribute__((vector_size(4 * KEEL_LANES)));

// The least multiple of the vector's length that holds N.
KEEL_INLINE size_t keel_vec_round_up(size_t n) {
    return (n + KEEL_LANES - 1) / KEEL_LANES * KEEL_LANES;
}

KEEL_INLINE keel_vec keel_vec_load(const float *p) {
    return *(const keel_vec_memory *)p;
}
KEEL_INLINE void keel_vec_store(float *p, keel_vec v) {
    *(keel_vec_memory *)p = v;
}
KEEL_INLINE keel_vec keel_vec_set(float x) {
    return x - (keel_vec){0};
}

// KEEL_LANES / 2 elements, widened. (The compiler's own conversion works in pieces of two.)
KEEL_INLINE keel_vec64 keel_vec64_load(const float *p) {
#if defined(__AVX512F__)
    return (keel_vec64)_mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif defined(__AVX__)
    return (keel_vec64)_mm256_cvtps_pd(_mm_loadu_ps(p));
#else
    return (keel_vec64){(double)p[0], (double)p[1]};
#endif
}

// The first N < KEEL_LANES elements; the others are FILL.
KEEL_INLINE keel_vec keel_vec_load_part(const float *p, size_t n, float fill) {
    keel_vec v = keel_vec_set(fill);
    memcpy(&v, p, n * sizeof(float));
    return v;
}
KEEL_INLINE void keel_vec_store_part(float *p, keel_vec v, size_t n) {
    memcpy(p, &v, n * sizeof(float));
}

KEEL_INLINE keel_vec keel_vec_select(keel_veci mask, keel_vec yes, keel_vec no) {
    return (keel_vec)((mask & (keel_veci)yes) | (~mask & (keel_veci)no));
}
// The greater; B where A is NaN.
KEEL_INLINE keel_vec keel_vec_max(keel_vec a, keel_vec b) {
    return keel_vec_select(a > b, a, b);
}

// By halves, so that the order of additions is fixed.
KEEL_INLINE float keel_vec_sum(keel_vec v) {
    for (int half = KEEL_LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) v[i] += v[i + half];
    return v[0];
}
KEEL_INLINE float keel_vec_greatest(keel_vec v) {
    float greatest = v[0];
    for (int i = 1; i < KEEL_LANES; i++) greatest = v[i] > greatest ? v[i] : greatest;
    return greatest;
}

// Where an AVX-512 unit has square roots and quotients wait for its divider, products do not: an estimate of 14 bits
// and a step of Newton's are within an ulp or two.

KEEL_INLINE keel_vec keel_vec_sqrt(keel_vec x) {
#if defined(__AVX512DQ__)
    const __m512 a = (__m512)x, estimate = _mm512_rsqrt14_ps(a), root = _mm512_mul_ps(a, estimate);
    const __m512 half = _mm512_set1_ps(0.5f);
    const __m512 error = _mm512_fnmadd_ps(root, _mm512_mul_ps(half, estimate), half);
    const __mmask16 plain = (__mmask16)~_mm512_fpclass_ps_mask(a, 0x02 | 0x04 | 0x08); // not +0, -0, +Inf
    return (keel_vec)_mm512_mask_fmadd_ps(_mm512_mask_mov_ps(a, plain, root), plain, error, root);
#elif defined(__AVX__)
    return (keel_vec)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < KEEL_LANES; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

// X / Y, for |Y| below 2^126 or infinite.
KEEL_INLINE keel_vec keel_vec_div(keel_vec x, keel_vec y) {
#if defined(__AVX512DQ__)
    const __m512 a = (__m512)x, b = (__m512)y, estimate = _mm512_rcp14_ps(b);
    const __mmask16 plain = (__mmask16)~_mm512_fpclass_ps_mask(b, 0x02 | 0x04 | 0x08 | 0x10); // not 0, not infinite
    const __m512 error = _mm512_fnmadd_ps(b, estimate, _mm512_set1_ps(1));
    const __m512 inverse = _mm512_mask_fmadd_ps(estimate, plain, error, estimate);
    const __m512 quotient = _mm512_mul_ps(a, inverse);
    return (keel_vec)_mm512_mask3_fmadd_ps(_mm512_fnmadd_ps(b, quotient, a), inverse, quotient, plain);
#else
    return x / y;
#endif
}

// exp(x) with a relative error below 1.5e-7 where the result is a normal number; 0 below -87.7, +Inf above 88.38; NaN
// stays NaN. Argument reduction after Cody and Waite (1980), minimax polynomial of (e^r - 1 - r) / r^2 on |r| <= ln(2)
// / 2.
KEEL_INLINE keel_vec keel_vec_exp(keel_vec x) {
    x = keel_vec_select(x > 88.8f, keel_vec_set(88.8f), x);
    x = keel_vec_select(x < -88.0f, keel_vec_set(-88.0f), x);
    const float shift = 12582912.0f; // 1.5 * 2^23: rounds to an integer and leaves it in the low bits
    keel_vec t = x * 1.44269504f + shift;
    keel_vec n = t - shift;
    keel_vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    keel_vec p = r * 0x1.6a23cep-10f + 0x1.123a2p-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    keel_vec e = p * (r * r) + r + 1.0f;
    keel_veci power = ((keel_veci)t - 0x4b400000 + 127) << 23;
    return e * (keel_vec)power;
}

#endif
