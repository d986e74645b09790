// Private to the kernels: what they must agree on to the bit. Thresholds, the checksum, the sets of fields.
#ifndef KEEL_PROBE_STATS_KERNEL_H
#define KEEL_PROBE_STATS_KERNEL_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "probe/stats.h"
#include "probe/stats_moments.h"

// A kernel closes a record after this many elements and merges it: bounds 32-bit lane counters and the growth of
// rounding errors.
#define KEEL_CHUNK ((size_t)1 << 20)

static inline uint32_t keel_bits_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float keel_float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t keel_bits_f64(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double keel_double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#define KEEL_F32_INF UINT32_C(0x7f800000)
#define KEEL_F64_INF UINT64_C(0x7ff0000000000000)

// The groups that come with those asked for: shares need the counts of base, and every observation takes the flags.
// HALF has no meaning without a scale that is positive and finite.
static inline uint32_t keel_stats_fields(const keel_stats_params *params) {
    uint32_t fields = params->fields & (KEEL_FIELDS_ALL | KEEL_FIELDS_FLAGS);
    if (!(params->scale > 0) || !isfinite(params->scale)) fields &= ~(uint32_t)KEEL_FIELDS_HALF;
    if (fields & (KEEL_FIELDS_HALF | KEEL_FIELDS_PRECISION)) fields |= KEEL_FIELDS_BASE;
    return fields ? fields | KEEL_FIELDS_FLAGS : 0;
}

// The least magnitude v with v * scale > BOUND (or >= BOUND): the sign of fma is that of the exact difference.
static inline uint64_t keel_first_magnitude(bool wide, double scale, double bound, bool strict) {
    const uint64_t infinity = wide ? KEEL_F64_INF : KEEL_F32_INF;
    const double greatest = wide ? DBL_MAX : (double)FLT_MAX;
    double guess = bound / scale;
    if (!(guess < greatest)) guess = greatest;
    uint64_t bits = wide ? keel_bits_f64(guess) : keel_bits_f32((float)guess);
    for (bool rising = false;;) {
        const double v = wide ? keel_double_of(bits) : (double)keel_float_of((uint32_t)bits);
        const double above = fma(v, scale, -bound);
        const bool beyond = bits >= infinity || above > 0 || (!strict && above == 0);
        if (beyond && (rising || bits == 0)) return bits;
        if (beyond) {
            bits--;
        } else {
            bits++;
            rising = true;
        }
    }
}

static inline keel_limits keel_limits_of(const keel_stats_params *params, uint32_t fields, keel_dtype dtype) {
    const bool wide = dtype == KEEL_F64;
    keel_limits limits = {.infinity = wide ? KEEL_F64_INF : KEEL_F32_INF};
    uint64_t *end = limits.end;
    end[KEEL_LIMIT_ZEROS] = 1;
    if (params->eps > 0) end[KEEL_LIMIT_NEAR_ZERO] = keel_first_magnitude(wide, 1, params->eps, false);
    if (fields & KEEL_FIELDS_HALF) {
        end[KEEL_LIMIT_FLUSH] = keel_first_magnitude(wide, params->scale, 0x1p-25, true);
        end[KEEL_LIMIT_NORMAL16] = keel_first_magnitude(wide, params->scale, 0x1p-14 - 0x1p-25, false);
        limits.overflow16 = keel_first_magnitude(wide, params->scale, 65520, false);
    }
    switch (dtype) {
    case KEEL_F64:
        end[KEEL_LIMIT_NORMAL] = keel_bits_f64(DBL_MIN);
        break;
    case KEEL_F16:
        end[KEEL_LIMIT_NORMAL] = keel_bits_f32(0x1p-14f);
        break;
    default:
        end[KEEL_LIMIT_NORMAL] = keel_bits_f32(FLT_MIN);
        break;
    }
    for (unsigned l = 0; l < KEEL_LIMIT_COUNT; l++)
        if (end[l] > limits.greatest_end) limits.greatest_end = end[l];
    return limits;
}

// The checksum is the sum over elements, mod 2^64, of a hash of the element's bits, so that order and cut do not
// matter. Of 32 bits y the hash is y^2: two different y below 2^32 have squares that differ mod 2^64, so that a change
// of one element always shows; changes y to y + d and z to z - d cancel only if they exchange the two values; any
// others cancel where d (2 y + d) = e (2 z - e), which random values meet about once in 2^32. A multiplication of 32
// bits is what vector units have. Elements of 16 bits are hashed with a constant above, without which small squares
// would meet too often; of a double the square of the upper half is rotated, so that it meets the other's low end.
#define KEEL_HASH_ABOVE UINT32_C(0x9e370000)

static inline uint64_t keel_hash_32(uint32_t bits) {
    return (uint64_t)bits * bits;
}

static inline uint64_t keel_hash_16(uint16_t bits) {
    return keel_hash_32(KEEL_HASH_ABOVE | bits);
}

static inline uint64_t keel_hash_64(uint64_t bits) {
    const uint64_t high = keel_hash_32((uint32_t)(bits >> 32));
    return keel_hash_32((uint32_t)bits) + (high << 32 | high >> 32);
}

static inline uint64_t keel_hash(keel_dtype dtype, uint64_t bits) {
    if (dtype == KEEL_F64) return keel_hash_64(bits);
    return dtype == KEEL_F32 ? keel_hash_32((uint32_t)bits) : keel_hash_16((uint16_t)bits);
}

// One element in the terms of keel_limits.
typedef struct keel_element {
    double value;
    uint64_t magnitude; // bits without the sign
    uint64_t bits;      // as stored
    bool negative;
} keel_element;

static inline keel_element keel_element_of_f32(float value, uint64_t bits) {
    const uint32_t widened = keel_bits_f32(value);
    return (keel_element){
        .value = (double)value, .magnitude = widened & 0x7fffffffu, .bits = bits, .negative = widened >> 31 != 0};
}

static inline keel_element keel_element_at(keel_dtype dtype, const void *data, size_t i) {
    const unsigned char *at = (const unsigned char *)data + i * keel_dtype_size(dtype);
    if (dtype == KEEL_F64) {
        uint64_t bits;
        memcpy(&bits, at, sizeof bits);
        return (keel_element){
            .value = keel_double_of(bits), .magnitude = bits & INT64_MAX, .bits = bits, .negative = bits >> 63 != 0};
    }
    if (dtype == KEEL_F32) {
        uint32_t bits;
        memcpy(&bits, at, sizeof bits);
        return keel_element_of_f32(keel_float_of(bits), bits);
    }
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return keel_element_of_f32(dtype == KEEL_F16 ? keel_f16_to_f32(bits) : keel_bf16_to_f32(bits), bits);
}

// From the least of the magnitudes less one, among which zeros have wrapped round to WRAPPED.
static inline uint64_t keel_least_nonzero(uint64_t least_less_one, uint64_t wrapped) {
    return least_less_one == wrapped ? UINT64_MAX : least_less_one + 1;
}

// Adds a block of N elements to the stream's part and moments.
typedef void keel_block_kernel(keel_stats_stream *stream, const void *data, size_t n);

// True if none of the counts of the precision group can still grow. A format that holds the dtype counts nothing.
static inline bool keel_precision_done(keel_dtype dtype, const keel_stats *before, const keel_stats *part) {
    const bool bf16 = before->not_bf16 + part->not_bf16 >= KEEL_SATURATE_AT || dtype == KEEL_BF16;
    const bool fp16 = before->not_fp16 + part->not_fp16 >= KEEL_SATURATE_AT || dtype == KEEL_F16;
    const bool tf32 = before->not_tf32 + part->not_tf32 >= KEEL_SATURATE_AT || dtype == KEEL_F16 || dtype == KEEL_BF16;
    return bf16 && fp16 && tf32;
}

static inline void keel_stream_join_plain(keel_stats_stream *stream) {
    keel_moments *plain = &stream->plain;
    if (plain->count == 0) return;
    plain->m2 = fmax(0, plain->sum_sq - plain->sum * plain->sum / plain->count);
    keel_moments_merge(&stream->moments, plain);
    *plain = (keel_moments){0};
}

static inline void keel_stream_join_counts(keel_stats_stream *stream) {
    keel_stats *part = &stream->part;
    uint64_t *below = stream->below;
    part->zeros += below[KEEL_LIMIT_ZEROS];
    part->near_zeros += below[KEEL_LIMIT_NEAR_ZERO];
    part->subnormals += below[KEEL_LIMIT_NORMAL] - below[KEEL_LIMIT_ZEROS];
    if (stream->fields & KEEL_FIELDS_HALF) {
        part->fp16_flush += below[KEEL_LIMIT_FLUSH] - below[KEEL_LIMIT_ZEROS];
        part->fp16_subnormal += below[KEEL_LIMIT_NORMAL16] - below[KEEL_LIMIT_FLUSH];
    }
    memset(below, 0, sizeof stream->below);
}

// The chunk is over: STATS takes it.
static inline void keel_stream_close(keel_stats_stream *stream, keel_stats *stats) {
    keel_stats *part = &stream->part;
    keel_stream_join_plain(stream);
    keel_stream_join_counts(stream);
    part->sum = stream->moments.sum;
    part->sum_sq = stream->moments.sum_sq;
    part->m2 = stream->moments.m2;
    part->exponent = stream->moments.exponent;
    keel_stats_merge(stats, part);
    keel_stats_clear(part);
    stream->moments = (keel_moments){0};
}

// The frame of every kernel: cuts the tensor into blocks that stay in the first cache, and closes chunks.
static inline void keel_observe_blocks(keel_stats_stream *stream, keel_stats *stats, const void *data, size_t n,
                                       size_t block_size, keel_block_kernel *block) {
    if (!stream->asked) return;
    const unsigned char *at = data;
    stream->part.fields = stream->asked;
    while (n > 0) {
        size_t count = n < block_size ? n : block_size;
        if (count > KEEL_CHUNK - stream->part.n) count = KEEL_CHUNK - stream->part.n;
        if ((stream->fields & KEEL_FIELDS_PRECISION) && keel_precision_done(stream->dtype, stats, &stream->part))
            stream->fields &= ~(uint32_t)KEEL_FIELDS_PRECISION;
        block(stream, at, count);
        stream->part.n += count;
        at += count * keel_dtype_size(stream->dtype);
        n -= count;
        if (stream->part.n == KEEL_CHUNK) {
            keel_stream_close(stream, stats);
            stream->part.fields = stream->asked;
        }
    }
}

// The scalar kernel's block, for elements that are too few for a vector kernel, and its count of the precision group.
keel_block_kernel keel_scalar_block;
void keel_scalar_precision(keel_stats *part, keel_dtype dtype, const void *data, size_t n);

keel_stats_kernel keel_stats_scalar;
keel_stats_kernel keel_stats_avx2;
keel_stats_kernel keel_stats_avx512;

#endif
