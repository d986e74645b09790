#include "train/tensor/precision.h"

// One element at a time to the eye; the compiler makes vectors of these loops.
static void round_to_bf16(float *out, const float *in, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) out[i] = keel_round_to_bf16(in[i]);
}

static void round_to_f16(float *out, const float *in, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) out[i] = keel_round_to_f16(in[i]);
}

void keel_round_copy(keel_precision precision, float *out, const float *in, size_t n) {
    switch (precision) {
    case KEEL_BFLOAT16:
        round_to_bf16(out, in, n);
        break;
    case KEEL_FLOAT16:
        round_to_f16(out, in, n);
        break;
    default:
        if (out != in) memcpy(out, in, n * sizeof *out);
        break;
    }
}
