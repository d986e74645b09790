// Private to the vector kernels: the passes that only some blocks need, over the same types and lengths as
// stats_sums.h.
#ifndef KEEL_PROBE_STATS_PASSES_H
#define KEEL_PROBE_STATS_PASSES_H

#include "probe/stats_sums.h"

// ---- passes over floats or doubles (WIDE) ----

static inline vdouble load_doubles(bool wide, const unsigned char *values, size_t i) {
    return wide ? vd_load(values + 8 * i) : vd_load_floats(values + 4 * i);
}

// Sums of x SCALE - SHIFT and its square, extremes of x itself: of all, or of the finite x where SOME are not.
ALWAYS_INLINE void sum_about(bool some, bool wide, const unsigned char *values, size_t n, double scale, double shift,
                             block_sums *out) {
    const vdouble zero = vd_set(0), highest = vd_set(INFINITY), lowest = vd_set(-INFINITY);
    vdouble max = lowest, min = highest, least = highest, sum = zero, sum_sq = zero;
    uint64_t count = 0;
    for (size_t i = 0; i < n; i += LANES / 2) {
        const vdouble x = load_doubles(wide, values, i);
        vdouble d = vd_fms(x, vd_set(scale), vd_set(shift)), x_or_lowest = x, x_or_highest = x;
        if (some) {
            const vmask finite = vd_finite(x);
            count += vmask_count(finite);
            d = vd_select(finite, d, zero);
            x_or_lowest = vd_select(finite, x, lowest);
            x_or_highest = vd_select(finite, x, highest);
        }
        max = vd_max(max, x_or_lowest);
        min = vd_min(min, x_or_highest);
        least = vd_least(least, x_or_highest);
        sum = vd_add(sum, d);
        sum_sq = vd_fma(d, d, sum_sq);
    }
    out->count = (double)(some ? count : n);
    out->sum = vd_sum(sum);
    out->sum_sq = vd_sum(sum_sq);
    out->min = vd_min_of(min);
    out->max = vd_max_of(max);
    out->least = bits_of(wide, vd_min_of(least));
}

static void sum_finite(bool wide, const void *values, size_t n, double scale, double shift, block_sums *out) {
    if (wide)
        sum_about(false, true, values, n, scale, shift, out);
    else
        sum_about(false, false, values, n, scale, shift, out);
    if (isfinite(out->sum_sq)) return;
    if (wide)
        sum_about(true, true, values, n, scale, shift, out);
    else
        sum_about(true, false, values, n, scale, shift, out);
}

static void count_nonfinite(keel_stats *part, bool wide, const unsigned char *values, size_t n) {
    for (size_t i = 0; i < n; i += LANES / 2) {
        const vdouble x = load_doubles(wide, values, i);
        part->nans += vmask_count(vd_unordered(x));
        part->pos_infs += vmask_count(vd_equal(x, vd_set(INFINITY)));
        part->neg_infs += vmask_count(vd_equal(x, vd_set(-INFINITY)));
    }
}

static inline vint magnitudes(bool wide, const unsigned char *values, size_t i) {
    return wide ? vi_and(vi_load(values + 8 * i), vi_set64(INT64_MAX))
                : vi_and(vi_load(values + 4 * i), vi_set32(INT32_MAX));
}

ALWAYS_INLINE uint64_t count_under_as(bool wide, uint64_t end, const unsigned char *values, size_t n) {
    vint counts = vi_set64(0);
    for (size_t i = 0; i < n; i += wide ? LANES / 2 : LANES) {
        const vint x = magnitudes(wide, values, i);
        counts =
            wide ? vi_count_below64(counts, x, vi_set64(end)) : vi_count_below32(counts, x, vi_set32((uint32_t)end));
    }
    return wide ? vi_sum64(counts) : vi_sum32(counts);
}

// Magnitudes below END.
static uint64_t count_under(bool wide, uint64_t end, const void *values, size_t n) {
    return wide ? count_under_as(true, end, values, n) : count_under_as(false, end, values, n);
}

// The least magnitude that is not 0; above infinity of zeros.
static uint64_t least_nonzero(bool wide, const void *values, size_t n) {
    vint least = vi_set64(UINT64_MAX); // less one, so that zeros wrap round to the greatest
    for (size_t i = 0; i < n; i += wide ? LANES / 2 : LANES) {
        const vint x = magnitudes(wide, values, i);
        least = wide ? vi_min64(least, vi_sub64(x, vi_set64(1))) : vi_min32(least, vi_sub32(x, vi_set32(1)));
    }
    return wide ? keel_least_nonzero(vi_min_of64(least), UINT64_MAX)
                : keel_least_nonzero(vi_min_of32(least), UINT32_MAX);
}

// COUNTS + 1 where A and MASK share a bit and X is finite, as all values are where SOME are not is false.
ALWAYS_INLINE vint count_shared(bool some, vint counts, vint x, vint a, vint mask) {
    return some ? vi_count_shared_below32(counts, x, a, mask, vi_set32(KEEL_F32_INF))
                : vi_count_shared32(counts, a, mask);
}

// A format that holds the dtype is left out. What TF32 cannot hold has too many bits for the others too, so that
// vectors of nothing else, of which float32 is full, take one look.
ALWAYS_INLINE void count_inexact_as(keel_stats *part, bool some, bool bfloats, bool halves, const unsigned char *floats,
                                    size_t n) {
    const bool plain = !some && !bfloats && !halves;
    vint bf16 = vi_set64(0), tf32 = bf16, fp16 = bf16;
    uint64_t beyond = 0;
    for (size_t i = 0; i < n; i += LANES) {
        const vint bits = vi_load(floats + 4 * i);
        if (plain && vi_all_share32(bits, vi_set32(0x1fff))) {
            beyond += LANES;
            continue;
        }
        if (!bfloats) bf16 = count_shared(some, bf16, bits, bits, vi_set32(0xffff));
        if (!bfloats && !halves) tf32 = count_shared(some, tf32, bits, bits, vi_set32(0x1fff));
        if (!halves) {
            const vint lost = vi_xor(bits, vf_bits(vf_through_half(float_of_bits(bits))));
            fp16 = count_shared(some, fp16, bits, lost, vi_set32(UINT32_MAX));
        }
    }
    part->not_bf16 += beyond;
    part->not_tf32 += beyond;
    part->not_fp16 += beyond;
    if (beyond == n) return;
    part->not_bf16 += vi_sum32(bf16);
    part->not_tf32 += vi_sum32(tf32);
    part->not_fp16 += vi_sum32(fp16);
}

ALWAYS_INLINE void count_inexact_dtype(keel_stats *part, bool some, keel_dtype dtype, const void *floats, size_t n) {
    if (dtype == KEEL_BF16)
        count_inexact_as(part, some, true, false, floats, n);
    else if (dtype == KEEL_F16)
        count_inexact_as(part, some, false, true, floats, n);
    else
        count_inexact_as(part, some, false, false, floats, n);
}

// Half holds every bfloat16 that is not beyond its range, but for those below 2^-17 that are not 0.
static void count_inexact_bfloats(keel_stats *part, const unsigned char *data, size_t n) {
    const vint one = vi_set32(0x00010001), end = vi_set32(0x36ff36ff);
    vint fp16 = vi_set64(0);
    for (size_t i = 0; i < n; i += 2 * LANES) {
        // Zeros wrap to the greatest.
        const bool pair = i + 2 * LANES <= n;
        if (pair && !vi_any_below16(vi_sub16(vi_and(vi_load(data + 2 * i), vi_set32(0x7fff7fff)), one), end)) continue;
        for (size_t k = i; k < i + 2 * LANES && k < n; k += LANES) {
            const vfloat x = load_elements(KEEL_BF16, data + 2 * k).value;
            fp16 = vi_count_shared32(fp16, vi_xor(vf_bits(x), vf_bits(vf_through_half(x))), vi_set32(UINT32_MAX));
        }
    }
    part->not_fp16 += vi_sum32(fp16);
}

// SOME of the values may not be finite.
static void count_inexact(keel_stats *part, bool some, keel_dtype dtype, const void *floats, size_t n) {
    if (some)
        count_inexact_dtype(part, true, dtype, floats, n);
    else
        count_inexact_dtype(part, false, dtype, floats, n);
}

static void widen(keel_dtype dtype, const unsigned char *data, size_t n, float *out) {
    for (size_t i = 0; i < n; i += LANES) vf_store(out + i, load_elements(dtype, data + 2 * i).value);
}

// What the passes after the first one read: the block itself, or a copy of 16-bit elements as float.
static const void *as_floats(keel_dtype dtype, const void *data, size_t n, float *widened) {
    if (dtype == KEEL_F32 || dtype == KEEL_F64) return data;
    widen(dtype, data, n, widened);
    return widened;
}

// ---- flags alone ----

ALWAYS_INLINE vint most_of(bool lanes16, vint most, const unsigned char *at, vint mask) {
    prefetch(at);
    const vint x = vi_and(vi_load(at), mask);
    return lanes16 ? vi_max16(most, x) : vi_max32(most, x);
}

// The greatest exponents, in lanes of 16 bits or of 32.
ALWAYS_INLINE vint greatest_exponents(bool lanes16, const unsigned char *data, size_t bytes, vint mask) {
    vint a = vi_set64(0), b = a;
    size_t i = 0;
    for (; i + 2 * sizeof(vint) <= bytes; i += 2 * sizeof(vint)) {
        a = most_of(lanes16, a, data + i, mask);
        b = most_of(lanes16, b, data + i + sizeof(vint), mask);
    }
    if (i < bytes) a = most_of(lanes16, a, data + i, mask);
    return lanes16 ? vi_max16(a, b) : vi_max32(a, b);
}

// True if an exponent is all ones. Of a double the high half alone has one.
static bool has_nonfinite(keel_dtype dtype, const unsigned char *data, size_t n) {
    const size_t bytes = n * keel_dtype_size(dtype);
    if (dtype == KEEL_F16 || dtype == KEEL_BF16) {
        const uint32_t exponent = dtype == KEEL_F16 ? 0x7c00 : 0x7f80;
        const vint all_ones = vi_set32(exponent * 0x10001u);
        return vi_any_equal16(greatest_exponents(true, data, bytes, all_ones), all_ones);
    }
    const uint32_t exponent = dtype == KEEL_F64 ? (uint32_t)(KEEL_F64_INF >> 32) : KEEL_F32_INF;
    const vint mask = dtype == KEEL_F64 ? vi_set64(KEEL_F64_INF) : vi_set32(exponent);
    return vi_any_equal32(greatest_exponents(false, data, bytes, mask), vi_set32(exponent));
}

#endif
