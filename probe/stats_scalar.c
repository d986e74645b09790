// The reference kernel: every definition of stats_fields.def written as plainly as it is said. The vector kernels are
// tested against it, and leave to it what is too short for them.
#include "probe/stats_kernel.h"

enum { SCALAR_BLOCK = 1024 };

static void count_precision(keel_stats *part, keel_dtype dtype, const keel_element *e) {
    const float narrow = dtype == KEEL_F64 ? (float)e->value : keel_float_of((uint32_t)e->magnitude);
    const bool exact = dtype != KEEL_F64 || (double)narrow == e->value;
    const uint32_t bits = keel_bits_f32(narrow);
    part->not_bf16 += !exact || (bits & 0xffffu) != 0;
    part->not_tf32 += !exact || (bits & 0x1fffu) != 0;
    part->not_fp16 += !exact || keel_bits_f32(keel_f16_to_f32(keel_f16_from_f32(narrow))) != bits;
}

static void count_class(keel_stats_stream *stream, const keel_element *e) {
    keel_stats *part = &stream->part;
    const uint64_t *end = stream->limits.end;
    const uint64_t magnitude = e->magnitude;
    part->zeros += magnitude == 0;
    part->near_zeros += magnitude < end[KEEL_LIMIT_NEAR_ZERO];
    part->subnormals += magnitude != 0 && magnitude < end[KEEL_LIMIT_NORMAL];
    if (stream->fields & KEEL_FIELDS_HALF) {
        part->fp16_flush += magnitude != 0 && magnitude < end[KEEL_LIMIT_FLUSH];
        part->fp16_subnormal += magnitude >= end[KEEL_LIMIT_FLUSH] && magnitude < end[KEEL_LIMIT_NORMAL16];
        part->fp16_overflow += magnitude >= stream->limits.overflow16;
    }
    if (stream->fields & KEEL_FIELDS_PRECISION) count_precision(part, stream->dtype, e);
}

static void count_nonfinite(keel_stats *part, uint64_t infinity, const keel_element *e) {
    part->nans += e->magnitude > infinity;
    part->pos_infs += e->magnitude == infinity && !e->negative;
    part->neg_infs += e->magnitude == infinity && e->negative;
}

// Sums of N finite values, at most SCALAR_BLOCK, in two passes.
static keel_moments moments_of(const double *finite, size_t n, double greatest) {
    keel_moments m = {.count = (double)n, .exponent = keel_moments_exponent(greatest)};
    const double scale = ldexp(1, -m.exponent);
    for (size_t i = 0; i < n; i++) {
        const double x = finite[i] * scale;
        m.sum += x;
        m.sum_sq += x * x;
    }
    const double mean = m.sum / m.count;
    double deviations = 0; // what rounding leaves of the sum of deviations, and adds to the sum of their squares
    for (size_t i = 0; i < n; i++) {
        const double d = finite[i] * scale - mean;
        deviations += d;
        m.m2 += d * d;
    }
    m.m2 = fmax(0, m.m2 - deviations * deviations / m.count);
    return m;
}

void keel_scalar_block(keel_stats_stream *stream, const void *data, size_t n) {
    keel_stats *part = &stream->part;
    const bool base = stream->fields & KEEL_FIELDS_BASE;
    const bool checksum = stream->fields & KEEL_FIELDS_CHECKSUM;
    double finite[SCALAR_BLOCK];
    size_t count = 0;
    double greatest = 0;
    for (size_t i = 0; i < n; i++) {
        const keel_element e = keel_element_at(stream->dtype, data, i);
        if (checksum) part->checksum += keel_hash(stream->dtype, e.bits);
        if (e.magnitude >= stream->limits.infinity) {
            count_nonfinite(part, stream->limits.infinity, &e);
        } else if (base) {
            const double value = e.value + 0.0; // one zero, whatever its sign
            part->min = fmin(part->min, value);
            part->max = fmax(part->max, value);
            if (value != 0) part->abs_min = fmin(part->abs_min, fabs(value));
            greatest = fmax(greatest, fabs(value));
            count_class(stream, &e);
            finite[count++] = value;
        }
    }
    if (count == 0) return;
    const keel_moments block = moments_of(finite, count, greatest);
    keel_moments_merge(&stream->moments, &block);
}

void keel_scalar_precision(keel_stats *part, keel_dtype dtype, const void *data, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const keel_element e = keel_element_at(dtype, data, i);
        if (e.magnitude < (dtype == KEEL_F64 ? KEEL_F64_INF : KEEL_F32_INF)) count_precision(part, dtype, &e);
    }
}

void keel_stats_scalar(keel_stats_stream *stream, keel_stats *stats, const void *data, size_t n) {
    keel_observe_blocks(stream, stats, data, n, SCALAR_BLOCK, keel_scalar_block);
}
