// The reference kernel: every definition of stats_fields.def written as plainly as it is said. The vector kernels are
// tested against it, and leave to it what is too short for them.
#include "probe/stats_kernel.h"
#include "probe/stats_moments.h"

enum { BLOCK = 1024 };

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

static void observe_block(keel_stats *part, keel_moments *moments, const keel_limits *limits, uint32_t fields,
                          keel_dtype dtype, const void *data, size_t n) {
    double finite[BLOCK];
    size_t count = 0;
    double greatest = 0;
    for (size_t i = 0; i < n; i++) {
        const keel_element e = keel_element_at(dtype, data, i);
        if (fields & KEEL_FIELDS_CHECKSUM)
            part->checksum += dtype == KEEL_F64 ? keel_hash_64(e.bits) : keel_hash_32((uint32_t)e.bits);
        if (e.magnitude > limits->infinity) {
            part->nans++;
        } else if (e.magnitude == limits->infinity) {
            if (e.negative)
                part->neg_infs++;
            else
                part->pos_infs++;
        } else if (fields & KEEL_FIELDS_BASE) {
            const double value = e.value + 0.0; // one zero, whatever its sign
            count_class(part, limits, fields, &e);
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
    double deviations = 0; // what rounding leaves of the sum of deviations, and takes from the sum of their squares
    for (size_t i = 0; i < count; i++) {
        const double d = finite[i] * scale - mean;
        deviations += d;
        block.m2 += d * d;
    }
    block.m2 = fmax(0, block.m2 - deviations * deviations / block.count);
    keel_moments_merge(moments, &block);
}

void keel_stats_scalar(keel_stats *stats, const keel_stats_params *params, keel_dtype dtype, const void *data,
                       size_t n) {
    const uint32_t fields = keel_stats_fields(params);
    const keel_limits limits = keel_limits_of(params, fields, dtype);
    const unsigned char *at = data;
    do {
        const size_t chunk = n < KEEL_CHUNK ? n : KEEL_CHUNK;
        keel_stats part;
        keel_stats_clear(&part);
        part.fields = fields;
        part.n = chunk;
        keel_moments moments = {0};
        for (size_t i = 0; i < chunk; i += BLOCK) {
            const size_t block = chunk - i < BLOCK ? chunk - i : BLOCK;
            observe_block(&part, &moments, &limits, fields, dtype, at, block);
            at += block * keel_dtype_size(dtype);
        }
        part.sum = moments.sum;
        part.sum_sq = moments.sum_sq;
        part.m2 = moments.m2;
        part.exponent = moments.exponent;
        keel_stats_merge(stats, &part);
        n -= chunk;
    } while (n > 0);
}
