// The reference kernel: every definition of stats_fields.def written as plainly as it is said. The vector kernels are
// tested against it, and leave to it what is too short for them.
#include "probe/stats_kernel.h"

enum { SCALAR_BLOCK = 1024 };

static void count_class(keel_stats *part, const keel_limits *limits, uint32_t fields, const keel_element *e) {
    const uint64_t magnitude = e->magnitude;
    part->zeros += magnitude == 0;
    part->near_zeros += magnitude < limits->near_zero;
    part->subnormals += magnitude != 0 && magnitude < limits->normal;
    if (fields & KEEL_FIELDS_HALF) {
        part->fp16_flush += magnitude != 0 && magnitude < limits->flush_end;
        part->fp16_subnormal += magnitude >= limits->flush_end && magnitude < limits->normal16;
        part->fp16_overflow += magnitude >= limits->overflow16;
    }
    if (fields & KEEL_FIELDS_PRECISION) {
        const float narrow = (float)e->value;
        const bool exact = (double)narrow == e->value;
        part->not_bf16 += !exact || (keel_bits_f32(narrow) & 0xffffu) != 0;
        part->not_tf32 += !exact || (keel_bits_f32(narrow) & 0x1fffu) != 0;
        part->not_fp16 += !exact || keel_f16_to_f32(keel_f16_from_f32(narrow)) != narrow;
    }
}

// N at most SCALAR_BLOCK.
static void short_moments(keel_stats *part, keel_moments *moments, keel_dtype dtype, const void *data, size_t n) {
    const uint64_t infinity = dtype == KEEL_F64 ? KEEL_F64_INF : KEEL_F32_INF;
    double finite[SCALAR_BLOCK];
    size_t count = 0;
    double greatest = 0;
    for (size_t i = 0; i < n; i++) {
        const keel_element e = keel_element_at(dtype, data, i);
        if (e.magnitude > infinity) {
            part->nans++;
        } else if (e.magnitude == infinity) {
            if (e.negative)
                part->neg_infs++;
            else
                part->pos_infs++;
        } else {
            const double value = e.value + 0.0; // one zero, whatever its sign
            part->min = fmin(part->min, value);
            part->max = fmax(part->max, value);
            if (value != 0) part->abs_min = fmin(part->abs_min, fabs(value));
            greatest = fmax(greatest, fabs(value));
            finite[count++] = value;
        }
    }
    if (count == 0) return;

    keel_moments block = {.count = (double)count, .exponent = keel_moments_exponent(greatest)};
    const double scale = ldexp(1, -block.exponent);
    for (size_t i = 0; i < count; i++) {
        const double x = finite[i] * scale;
        block.sum += x;
        block.sum_sq += x * x;
    }
    const double mean = block.sum / block.count;
    double deviations = 0; // what rounding leaves of the sum of deviations, and adds to the sum of their squares
    for (size_t i = 0; i < count; i++) {
        const double d = finite[i] * scale - mean;
        deviations += d;
        block.m2 += d * d;
    }
    block.m2 = fmax(0, block.m2 - deviations * deviations / block.count);
    keel_moments_merge(moments, &block);
}

void keel_scalar_moments(keel_stats *part, keel_moments *moments, keel_dtype dtype, const void *data, size_t n) {
    const unsigned char *at = data;
    while (n > 0) {
        const size_t count = n < SCALAR_BLOCK ? n : SCALAR_BLOCK;
        short_moments(part, moments, dtype, at, count);
        at += count * keel_dtype_size(dtype);
        n -= count;
    }
}

void keel_scalar_counts(keel_stats *part, const keel_limits *limits, uint32_t fields, keel_dtype dtype,
                        const void *data, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const keel_element e = keel_element_at(dtype, data, i);
        if (e.magnitude < limits->infinity) count_class(part, limits, fields, &e);
    }
}

void keel_scalar_flags(keel_stats *part, keel_dtype dtype, const void *data, size_t n) {
    const uint64_t infinity = dtype == KEEL_F64 ? KEEL_F64_INF : KEEL_F32_INF;
    for (size_t i = 0; i < n; i++) {
        const keel_element e = keel_element_at(dtype, data, i);
        part->nans += e.magnitude > infinity;
        part->pos_infs += e.magnitude == infinity && !e.negative;
        part->neg_infs += e.magnitude == infinity && e.negative;
    }
}

uint64_t keel_scalar_checksum(keel_dtype dtype, const void *data, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t bits = keel_element_at(dtype, data, i).bits;
        sum += dtype == KEEL_F64 ? keel_hash_64(bits) : keel_hash_32((uint32_t)bits);
    }
    return sum;
}

static void observe_block(keel_stats *part, keel_moments *moments, keel_pass *pass, const void *data, size_t n) {
    if (pass->fields & KEEL_FIELDS_BASE) {
        keel_scalar_moments(part, moments, pass->dtype, data, n);
        keel_scalar_counts(part, &pass->limits, pass->fields, pass->dtype, data, n);
    } else {
        keel_scalar_flags(part, pass->dtype, data, n);
    }
    if (pass->fields & KEEL_FIELDS_CHECKSUM) part->checksum += keel_scalar_checksum(pass->dtype, data, n);
}

void keel_stats_scalar(keel_stats *stats, const keel_stats_params *params, keel_dtype dtype, const void *data,
                       size_t n) {
    keel_observe_blocks(stats, params, dtype, data, n, SCALAR_BLOCK, observe_block);
}
