// Private to the vector kernels: how a block is observed, over the primitives that the including file defines before
// it:
//   sum_narrow, sum_wide          sums of a block of float or double, of which observe_base judges whether they can be
//   trusted sum_finite                    the same in double, with a scale, a shift, and only over what is finite
//   count_small, count_range, count_nonfinite, count_inexact
//   has_nonfinite, checksum_of    of the elements as stored
//   widen                         16-bit elements to float
// A block stays in the first cache, so each group of fields is a loop of its own over it that needs few registers; what
// is rare is looked for only in blocks whose extremes say that it is there.
#ifndef KEEL_PROBE_STATS_VECTOR_H
#define KEEL_PROBE_STATS_VECTOR_H

static inline double lesser(double a, double b) {
    return b < a ? b : a;
}
static inline double greater(double a, double b) {
    return b > a ? b : a;
}

static inline double m2_about_mean(const block_sums *s) {
    return s->count > 0 ? greater(0, s->sum_sq - s->sum * s->sum / s->count) : 0;
}

// Float sums of squares: eight to a lane, each rounded to 2^-24, so that m2 keeps 1e-6 while it is an eighth of them.
// Squares below the normal floats may be flushed to zero, 2^-126 each, which is nothing beside one above 2^-94.
static inline bool narrow_sums_hold(double m2, double sum_sq, double greatest) {
    return m2 >= 0.125 * sum_sq && (greatest >= 0x1p-47 || greatest == 0);
}

// Double sums of squares: the deviation is more than a thousandth of the mean.
static inline bool wide_sums_hold(double m2, double sum_sq) {
    return m2 >= 1e-6 * sum_sq;
}

// Of any values: about a shift that is near their mean, scaled so that squares neither overflow nor vanish. SHIFT: a
// guess.
static keel_moments careful_moments(block_sums *s, bool wide, const void *values, size_t n, double shift) {
    sum_finite(wide, values, n, 1, shift, s);
    if (s->count == 0) return (keel_moments){0};
    const int32_t exponent = keel_moments_exponent(greater(fabs(s->min), fabs(s->max)));
    const double scale = ldexp(1, -exponent);
    double m2 = m2_about_mean(s);
    if (exponent != 0 || !wide_sums_hold(m2, s->sum_sq)) {
        sum_finite(wide, values, n, scale, shift = 0, s);
        m2 = m2_about_mean(s);
    }
    if (!wide_sums_hold(m2, s->sum_sq)) {
        sum_finite(wide, values, n, scale, shift = s->sum / s->count, s);
        m2 = m2_about_mean(s);
    }
    return (keel_moments){
        .count = s->count,
        .sum = s->sum + s->count * shift,
        .sum_sq = s->sum_sq + shift * (2 * s->sum + s->count * shift),
        .m2 = m2,
        .exponent = exponent,
    };
}

// True if the blocks before say that this one's plain sums will not hold, so that they need not be tried.
static inline bool needs_care(const keel_moments *before, const keel_stats *part, bool wide) {
    if (before->count == 0) return false;
    if (before->exponent != 0) return true;
    const double greatest = greater(-part->min, part->max);
    return wide ? !wide_sums_hold(before->m2, before->sum_sq) : !narrow_sums_hold(before->m2, before->sum_sq, greatest);
}

static void observe_base(keel_stats *part, keel_moments *moments, const keel_pass *pass, bool wide, const void *values,
                         size_t n) {
    const keel_limits *limits = &pass->limits;
    const bool half = pass->fields & KEEL_FIELDS_HALF;
    block_sums s;
    keel_moments block = {0};
    bool held = false;
    if (!needs_care(moments, part, wide)) {
        if (wide)
            sum_wide(values, n, &s);
        else
            sum_narrow(values, n, &s);
        const double greatest = greater(-s.min, s.max);
        block = (keel_moments){.count = s.count, .sum = s.sum, .sum_sq = s.sum_sq, .m2 = m2_about_mean(&s)};
        held = isfinite(s.sum_sq) && (wide ? keel_moments_exponent(greatest) == 0 && wide_sums_hold(block.m2, s.sum_sq)
                                           : narrow_sums_hold(block.m2, s.sum_sq, greatest));
    }
    if (!held) {
        const bool guess = moments->count > 0 && moments->exponent == 0;
        block = careful_moments(&s, wide, values, n, guess ? moments->sum / moments->count : 0);
        if (s.count < (double)n) count_nonfinite(part, wide, values, n);
        if (s.count == 0) return;
    }
    keel_moments_merge(moments, &block);
    part->min = lesser(part->min, s.min + 0.0); // one zero, whatever its sign
    part->max = greater(part->max, s.max + 0.0);

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
    if (least < limits->infinity) {
        const double magnitude = wide ? keel_double_of(least) : (double)keel_float_of((uint32_t)least);
        part->abs_min = lesser(part->abs_min, magnitude);
    }
    if (half) {
        const double greatest = greater(fabs(s.min), fabs(s.max));
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
