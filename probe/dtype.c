#include "probe/dtype.h"

#include <string.h>

size_t keel_dtype_size(keel_dtype dtype) {
    switch (dtype) {
    case KEEL_F32:
        return 4;
    case KEEL_F64:
        return 8;
    case KEEL_F16:
    case KEEL_BF16:
        return 2;
    case KEEL_DTYPE_COUNT:
        break;
    }
    return 0;
}

const char *keel_dtype_name(keel_dtype dtype) {
    switch (dtype) {
    case KEEL_F32:
        return "float32";
    case KEEL_F64:
        return "float64";
    case KEEL_F16:
        return "float16";
    case KEEL_BF16:
        return "bfloat16";
    case KEEL_DTYPE_COUNT:
        break;
    }
    return "unknown";
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// BITS without its low DROP bits, rounded to nearest even. DROP from 1 to 31.
static uint32_t round_off(uint32_t bits, unsigned drop) {
    const uint32_t half = UINT32_C(1) << (drop - 1);
    const uint32_t odd = (bits >> drop) & 1;
    return (bits + half - 1 + odd) >> drop;
}

uint16_t keel_f16_from_f32(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) { // NaN: the upper payload stays, quiet
        half = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
    } else if (magnitude >= 0x477ff000u) { // 65520, half way from 65504 to 65536
        half = 0x7c00u;
    } else if (magnitude >= 0x38800000u) { // 2^-14: a carry out of the fraction raises the exponent, as it must
        half = round_off(magnitude - ((127u - 15u) << 23), 13);
    } else if (magnitude > 0x33000000u) { // above 2^-25, half of the least subnormal, which is a tie and goes to zero
        const uint32_t exponent = magnitude >> 23;
        half = round_off((magnitude & 0x7fffffu) | 0x800000u, 126u - exponent);
    } else {
        half = 0;
    }
    return (uint16_t)(sign | half);
}

uint16_t keel_bf16_from_f32(float value) {
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    return (uint16_t)(sign | round_off(bits & 0x7fffffffu, 16));
}

float keel_f16_to_f32(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu;
    const uint32_t fraction = half & 0x3ffu;
    if (exponent == 0x1fu) {
        const uint32_t quiet = fraction ? 0x400000u : 0;
        return float_of(sign | 0x7f800000u | quiet | fraction << 13);
    }
    if (exponent != 0) return float_of(sign | (exponent + (127u - 15u)) << 23 | fraction << 13);
    const float magnitude = (float)fraction * 0x1p-24f;
    return float_of(sign | bits_of(magnitude));
}

float keel_bf16_to_f32(uint16_t bits) {
    return float_of((uint32_t)bits << 16);
}
