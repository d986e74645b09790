// Private to the vector kernels: how a block is observed, over the primitives that the including file defines before
// it:
//   sum_narrow, sum_wide          sums of a block of float or double, assuming that all is finite and near enough to
//   zero sum_finite                    the same with care, also of what is not count_small, count_range,
//   count_nonfinite, count_inexact has_nonfinite, checksum_of    of the elements as stored widen 16-bit elements to
//   float
// A block stays in the first cache, so each group of fields is a loop of its own over it that needs few registers; what
// is rare is looked for only in blocks whose extremes say that it is there.
#ifndef KEEL_PROBE_STATS_VECTOR_H
#define KEEL_PROBE_STATS_VECTOR_H

// True if the sums lost too much of the spread: the mean is over a thousand times the deviation.
static inline bool is_offset(double m2, double sum_sq) {
    return m2 < 1e-6 * sum_sq;
}

static inline double m2_of(const block_sums *s) {
    return s->count > 0 ? fmax(0, s->sum_sq - s->sum * s->sum / s->count) : 0;
}

// In three passes at most: exponent, sums, and once more about the mean where that dominates.
static void observe_with_care(block_sums *s, keel_moments *block, bool wide, const void *values, size_t n) {
    sum_finite(wide, values, n, 1, 0, s);
    block->exponent = keel_moments_exponent(fmax(fabs(s->min), fabs(s->max)));
    const double scale = ldexp(1, -block->exponent);
    if (s->count > 0 && block->exponent != 0) sum_finite(wide, values, n, scale, 0, s);
    block->sum = s->sum;
    block->sum_sq = s->sum_sq;
    block->m2 = m2_of(s);
    if (s->count > 0 && is_offset(block->m2, block->sum_sq)) {
        block_sums about_mean;
        sum_finite(wide, values, n, scale, s->sum / s->count, &about_mean);
        block->m2 = m2_of(&about_mean);
    }
}

static void observe_base(keel_stats *part, keel_moments *moments, const keel_pass *pass, bool wide, const void *values,
                         size_t n) {
    const keel_limits *limits = &pass->limits;
    const bool half = pass->fields & KEEL_FIELDS_HALF;
    block_sums s;
    if (wide)
        sum_wide(values, n, &s);
    else
        sum_narrow(values, n, &s);
    keel_moments block = {.sum = s.sum, .sum_sq = s.sum_sq, .m2 = m2_of(&s)};
    double greatest = fmax(fabs(s.min), fabs(s.max));
    if (!isfinite(s.sum_sq) || keel_moments_exponent(greatest) != 0 || is_offset(block.m2, block.sum_sq)) {
        observe_with_care(&s, &block, wide, values, n);
        if (s.count < (double)n) count_nonfinite(part, wide, values, n);
        if (s.count == 0) return;
        greatest = fmax(fabs(s.min), fabs(s.max));
    }
    block.count = s.count;
    keel_moments_merge(moments, &block);
    part->min = fmin(part->min, s.min + 0.0); // one zero, whatever its sign
    part->max = fmax(part->max, s.max + 0.0);

    uint64_t least = wide ? keel_bits_f64(s.least) : keel_bits_f32((float)s.least);
    if (least < limits->near_zero || least < limits->normal || least < limits->normal16) {
        small_counts small;
        count_small(&small, wide, half, least == 0, limits, values, n);
        part->zeros += small.zeros;
        part->near_zeros += small.near_zeros;
        if (half) {
            part->fp16_flush += small.below_flush - small.zeros;
            part->fp16_subnormal += small.below_normal16 - small.below_flush;
        }
        if (least == 0) least = small.least;
        if (least < limits->normal) part->subnormals += count_range(wide, 1, limits->normal, values, n);
    }
    if (least < limits->infinity)
        part->abs_min = fmin(part->abs_min, wide ? keel_double_of(least) : (double)keel_float_of((uint32_t)least));
    if (half) {
        const uint64_t most = wide ? keel_bits_f64(greatest) : keel_bits_f32((float)greatest);
        if (most >= limits->overflow16)
            part->fp16_overflow += count_range(wide, limits->overflow16, limits->infinity, values, n);
    }
    if (pass->fields & KEEL_FIELDS_PRECISION) count_inexact(part, wide, values, n);
}

static void observe_block(keel_stats *part, keel_moments *moments, const keel_pass *pass, const void *data, size_t n) {
    float widened[VECTOR_BLOCK];
    const bool narrow16 = pass->dtype == KEEL_F16 || pass->dtype == KEEL_BF16;
    const bool wide = pass->dtype == KEEL_F64;
    if (pass->fields & KEEL_FIELDS_CHECKSUM) part->checksum += checksum_of(pass->dtype, data, n);
    if (!(pass->fields & KEEL_FIELDS_BASE) && !has_nonfinite(pass->dtype, data, n)) return;
    if (narrow16) widen(pass->dtype, data, n, widened);
    const void *values = narrow16 ? widened : data;
    if (pass->fields & KEEL_FIELDS_BASE)
        observe_base(part, moments, pass, wide, values, n);
    else
        count_nonfinite(part, wide, values, n);
}

#endif
