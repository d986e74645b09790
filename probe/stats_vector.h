// Private to the vector kernels: how a block is observed, by the pass of stats_sums.h and those of stats_passes.h.
//
// A block stays in the first cache. One pass takes sums, extremes and checksum of all; what is rare is looked for in
// passes of their own, only over blocks whose extremes say that it is there. What is left of a tensor beyond whole
// vectors goes to the scalar kernel.
#ifndef KEEL_PROBE_STATS_VECTOR_H
#define KEEL_PROBE_STATS_VECTOR_H

#include "probe/stats_passes.h"

static inline double lesser(double a, double b) {
    return b < a ? b : a;
}
static inline double greater(double a, double b) {
    return b > a ? b : a;
}

static inline double m2_about_mean(const block_sums *s) {
    return s->count > 0 ? greater(0, s->sum_sq - s->sum * s->sum / s->count) : 0;
}

// Float sums of squares: 32 to a lane, each rounded to 2^-24, so that m2 keeps 1e-6 while it is an eighth of them.
// Squares below the normal floats may be flushed to zero, 2^-126 each, which is nothing beside one above 2^-94.
static inline bool narrow_sums_hold(double count, double sum, double sum_sq, double greatest) {
    return sum * sum <= 0.875 * count * sum_sq && (greatest >= 0x1p-47 || greatest == 0);
}

// Double sums of squares: the deviation is more than a thousandth of the mean.
static inline bool wide_sums_hold(double m2, double sum_sq) {
    return m2 >= 1e-6 * sum_sq;
}

static bool plain_sums_hold(const block_sums *s, bool wide) {
    const double greatest = greater(-s->min, s->max);
    if (!isfinite(s->sum_sq)) return false;
    return wide ? keel_moments_exponent(greatest) == 0 && wide_sums_hold(m2_about_mean(s), s->sum_sq)
                : narrow_sums_hold(s->count, s->sum, s->sum_sq, greatest);
}

// True if the blocks before say that this one's plain sums will not hold, so that they need not be tried.
static bool needs_care(const keel_moments *before, const keel_stats *part, bool wide) {
    if (before->count == 0) return false;
    if (before->exponent != 0) return true;
    return wide ? !wide_sums_hold(before->m2, before->sum_sq)
                : !narrow_sums_hold(before->count, before->sum, before->sum_sq, greater(-part->min, part->max));
}

// Of any values: about a shift that is near their mean, scaled so that squares neither overflow nor vanish. SHIFT: a
// guess.
static keel_moments careful_moments(block_sums *s, bool wide, const void *values, size_t n, double shift) {
    sum_finite(wide, values, n, 1, shift, s);
    if (s->count == 0) return (keel_moments){0};
    const int32_t exponent = keel_moments_exponent(greater(-s->min, s->max));
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

static void list_limits(keel_limit_list *list, const keel_limits *limits, uint32_t set) {
    if (list->set == set) return;
    *list = (keel_limit_list){.set = set};
    for (unsigned l = 0; l < KEEL_LIMIT_COUNT; l++) {
        if (!(set & 1u << l)) continue;
        list->which[list->count] = (keel_limit)l;
        list->end[list->count++] = (uint32_t)limits->end[l];
    }
}

// What a block's magnitudes say of the limits.
typedef struct block_limits {
    uint32_t needed; // must be counted below, ZEROS where some are; below each other limit are ALL, or the zeros alone
    uint32_t all;
} block_limits;

static inline block_limits limits_of(const keel_limits *limits, bool zeros, uint64_t least, uint64_t greatest) {
    const uint32_t all = limits_above(limits->end, greatest);
    const uint32_t needed = (limits_above(limits->end, least) & ~all) | (uint32_t)zeros << KEEL_LIMIT_ZEROS;
    return (block_limits){needed, all};
}

static void add_counts(keel_stats_stream *stream, block_limits of, bool zeros, uint64_t count, const uint64_t *below) {
    for (unsigned l = 0; l < KEEL_LIMIT_COUNT; l++) {
        if (of.all & 1u << l)
            stream->below[l] += count;
        else if (of.needed & 1u << l)
            stream->below[l] += below[l];
        else if (zeros && stream->limits.end[l] > 0)
            stream->below[l] += below[KEEL_LIMIT_ZEROS];
    }
}

// A block of LENGTH elements as they are stored.
typedef struct block {
    const void *data;
    size_t length;
    const void *values; // as float or double: 16-bit elements are widened only for what needs a second pass
    float *widened;     // [BLOCK_FLOATS], where they then are
} block;

static const void *values_of(block *b, keel_dtype dtype) {
    if (!b->values) b->values = as_floats(dtype, b->data, b->length, b->widened);
    return b->values;
}

// Sums, extremes, checksum and what is not finite. Returns the set of limits that it counted below.
static uint32_t sum_block(keel_stats_stream *stream, block *b, block_sums *s) {
    keel_stats *part = &stream->part;
    keel_moments *moments = &stream->moments;
    const bool wide = stream->dtype == KEEL_F64, checksum = stream->fields & KEEL_FIELDS_CHECKSUM;
    if (stream->plain.count > 0 || !needs_care(moments, part, wide)) {
        list_limits(&stream->counting, &stream->limits, wide ? 0 : stream->needed[0] | stream->needed[1]);
        sum_plainly(stream->dtype, checksum, &stream->counting, b->data, b->length, s);
        if (checksum) part->checksum += s->checksum;
        if (plain_sums_hold(s, wide)) {
            const keel_moments sums = {.count = s->count, .sum = s->sum, .sum_sq = s->sum_sq, .m2 = m2_about_mean(s)};
            if (wide) {
                keel_moments_merge(moments, &sums);
            } else {
                stream->plain.count += s->count;
                stream->plain.sum += s->sum;
                stream->plain.sum_sq += s->sum_sq;
            }
            return stream->counting.set;
        }
    } else if (checksum) {
        part->checksum += checksum_of(stream->dtype, b->data, b->length);
    }
    keel_stream_join_plain(stream);
    const void *values = values_of(b, stream->dtype);
    const bool guess = moments->count > 0 && moments->exponent == 0;
    const keel_moments sums = careful_moments(s, wide, values, b->length, guess ? moments->sum / moments->count : 0);
    if (s->count < (double)b->length) count_nonfinite(part, wide, values, b->length);
    if (s->count > 0) keel_moments_merge(moments, &sums);
    return 0;
}

// Counts below the limits, of which the pass of sums has COUNTED some.
static void count_block(keel_stats_stream *stream, block *b, block_sums *s, uint32_t counted, uint64_t greatest) {
    const keel_limits *limits = &stream->limits;
    const bool wide = stream->dtype == KEEL_F64, zeros = s->least == 0 && greatest > 0;
    uint64_t least = greatest > 0 ? s->least : UINT64_MAX; // of those that are not 0
    if (zeros)
        least = counted & 1u << KEEL_LIMIT_ZEROS ? s->counts.least
                                                 : least_nonzero(wide, values_of(b, stream->dtype), b->length);
    stream->least_before = s->least;
    stream->needed[1] = stream->needed[0];
    stream->needed[0] = 0;
    if (least < limits->infinity) stream->part.abs_min = lesser(stream->part.abs_min, value_of(wide, least));
    if (s->least >= limits->greatest_end) return;
    const block_limits of = limits_of(limits, zeros, least, greatest);
    const uint32_t apart = of.needed & ~counted;
    for (unsigned l = 0; apart && l < KEEL_LIMIT_COUNT; l++)
        if (apart & 1u << l)
            s->counts.below[l] = count_under(wide, limits->end[l], values_of(b, stream->dtype), b->length);
    add_counts(stream, of, zeros, (uint64_t)s->count, s->counts.below);
    stream->needed[0] = of.needed;
}

static void count_precision(keel_stats_stream *stream, block *b, double count, uint64_t greatest) {
    keel_stats *part = &stream->part;
    const bool finite = count == (double)b->length;
    if (stream->dtype == KEEL_F64)
        keel_scalar_precision(part, stream->dtype, b->data, b->length);
    else if (stream->dtype == KEEL_BF16 && finite && greatest <= keel_bits_f32(65504))
        count_inexact_bfloats(part, b->data, b->length);
    else
        count_inexact(part, !finite, stream->dtype, values_of(b, stream->dtype), b->length);
}

static void observe_base(keel_stats_stream *stream, const void *data, size_t n) {
    keel_stats *part = &stream->part;
    const bool wide = stream->dtype == KEEL_F64;
    float widened[BLOCK_FLOATS];
    block b = {.data = data, .length = n, .widened = widened};
    block_sums s;
    const uint32_t counted = sum_block(stream, &b, &s);
    if (s.count == 0) return;
    part->min = lesser(part->min, s.min + 0.0); // one zero, whatever its sign
    part->max = greater(part->max, s.max + 0.0);
    const uint64_t greatest = bits_of(wide, fabs(greater(-s.min, s.max)));
    count_block(stream, &b, &s, counted, greatest);
    if ((stream->fields & KEEL_FIELDS_HALF) && greatest >= stream->limits.overflow16)
        part->fp16_overflow +=
            (uint64_t)s.count - count_under(wide, stream->limits.overflow16, values_of(&b, stream->dtype), n);
    if (stream->fields & KEEL_FIELDS_PRECISION) count_precision(stream, &b, s.count, greatest);
}

static void observe_block(keel_stats_stream *stream, const void *data, size_t n) {
    keel_stats *part = &stream->part;
    const keel_dtype dtype = stream->dtype;
    const size_t lanes = dtype == KEEL_F64 ? LANES / 2 : LANES;
    const size_t rest = n % (stream->fields & KEEL_FIELDS_BASE ? lanes : sizeof(vint) / keel_dtype_size(dtype));
    const size_t whole = n - rest;
    if (whole > 0 && (stream->fields & KEEL_FIELDS_BASE)) {
        observe_base(stream, data, whole);
    } else if (whole > 0) {
        if (stream->fields & KEEL_FIELDS_CHECKSUM) part->checksum += checksum_of(dtype, data, whole);
        float widened[BLOCK_FLOATS];
        if (has_nonfinite(dtype, data, whole))
            count_nonfinite(part, dtype == KEEL_F64, as_floats(dtype, data, whole, widened), whole);
    }
    if (rest > 0) {
        const unsigned char *at = (const unsigned char *)data + whole * keel_dtype_size(dtype);
        keel_scalar_block(stream, at, rest);
    }
}

#endif
