// Rounding to the 16-bit formats. Values of a format live in float32 arrays: every bfloat16 and every float16 is a
// float32, and a product of two of them is exact in float32, so that BLAS over such arrays computes what tensor cores
// do: inputs of the format, sums in float32, and the output rounded by whoever takes it.
#ifndef KEEL_TRAIN_TENSOR_PRECISION_H
#define KEEL_TRAIN_TENSOR_PRECISION_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "configs/train_config.h"

// IEEE 754 round to nearest, ties to even; subnormals kept; beyond the greatest finite value Inf (from 65520 in
// float16); NaN stays NaN, quiet, with the upper bits of its payload.
static inline float keel_round_to_bf16(float x) {
    uint32_t bits, rounded;
    memcpy(&bits, &x, sizeof bits);
    rounded = bits + 0x7fffu + (bits >> 16 & 1);
    rounded = (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded;
    rounded &= 0xffff0000u;
    memcpy(&x, &rounded, sizeof x);
    return x;
}

static inline float keel_round_to_f16(float x) {
    uint32_t bits, small_bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t magnitude = bits & 0x7fffffffu;
    // Below 2^-14 the format's steps are 2^-24: those of float32 from 0.5 on.
    float small;
    memcpy(&small, &magnitude, sizeof small);
    small = (small + 0.5f) - 0.5f;
    memcpy(&small_bits, &small, sizeof small_bits);
    uint32_t rounded = (magnitude + 0xfffu + (magnitude >> 13 & 1)) & ~0x1fffu;
    rounded = rounded >= 0x47800000u ? 0x7f800000u : rounded;
    rounded = magnitude < 0x38800000u ? small_bits : rounded;
    rounded = magnitude > 0x7f800000u ? (magnitude | 0x400000u) & ~0x1fffu : rounded;
    rounded |= bits & 0x80000000u;
    memcpy(&x, &rounded, sizeof x);
    return x;
}

static inline float keel_round_one(keel_precision precision, float x) {
    switch (precision) {
    case KEEL_BFLOAT16:
        return keel_round_to_bf16(x);
    case KEEL_FLOAT16:
        return keel_round_to_f16(x);
    default:
        return x;
    }
}

// OUT [n] = IN [n] rounded, by the calling thread alone; OUT may be IN.
void keel_round_copy(keel_precision precision, float *out, const float *in, size_t n);
// X [n] in place. Nothing to do for float32.
static inline void keel_round(keel_precision precision, float *x, size_t n) {
    if (precision != KEEL_FLOAT32) keel_round_copy(precision, x, x, n);
}

#endif
