// AVX-512 (F, BW, DQ, VL).
#include <immintrin.h>

#include "probe/stats_kernel.h"

enum {
    VECTOR_BLOCK = 4096,
    GROUP = 128, // elements whose sums are taken in float, eight of them in each lane
    RANGE_LEAST_MAGNITUDE = 0x0a,
};

#include "probe/stats_block.h"

// The compute of a line keeps the CPU from running far enough ahead to have all its reads of memory under way by
// itself. Far ahead into the second cache, where more lines may be awaited, then near ahead into the first. Reading
// ahead past the end is harmless.
enum { FAR_AHEAD = 3072, NEAR_AHEAD = 1024 };

static inline void prefetch(const unsigned char *at) {
    _mm_prefetch((const char *)((uintptr_t)at + FAR_AHEAD), _MM_HINT_T1);
    _mm_prefetch((const char *)((uintptr_t)at + NEAR_AHEAD), _MM_HINT_T0);
}

static inline __mmask16 tail16(size_t n) {
    return (__mmask16)((1u << n) - 1);
}
static inline __mmask8 tail8(size_t n) {
    return (__mmask8)((1u << n) - 1);
}

// Adds the sixteen floats of X to two accumulators of double.
static inline void add_widened(__m512d sum[2], __m512 x) {
    sum[0] = _mm512_add_pd(sum[0], _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    sum[1] = _mm512_add_pd(sum[1], _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
}

// keel_hash_fold of eight products. The shuffle runs beside the multiplications, where a shift would compete with them.
static inline __m512i high_halves(__m512i x) {
    return _mm512_shuffle_epi32(x, _MM_PERM_DDBB);
}

static inline __m512i fold(__m512i product) {
    return _mm512_mul_epu32(product, high_halves(product));
}

// Sum of keel_hash_32 of the even and the odd of sixteen elements, in eight lanes.
static inline __m512i hash_sixteen(__m512i bits) {
    const __m512i x = _mm512_xor_si512(bits, _mm512_set1_epi32((int32_t)KEEL_HASH_XOR));
    const __m512i factor = _mm512_set1_epi32((int32_t)KEEL_HASH_MUL);
    return _mm512_add_epi64(fold(_mm512_mul_epu32(x, factor)), fold(_mm512_mul_epu32(high_halves(x), factor)));
}

static inline __m512i hash_eight_wide(__m512i bits) {
    const __m512i x = _mm512_xor_si512(bits, _mm512_set1_epi32((int32_t)KEEL_HASH_XOR));
    const __m512i low = _mm512_mul_epu32(x, _mm512_set1_epi32((int32_t)KEEL_HASH_MUL));
    const __m512i high = _mm512_mul_epu32(high_halves(bits), _mm512_set1_epi32((int32_t)KEEL_HASH_MUL_2));
    return fold(_mm512_add_epi64(low, _mm512_shuffle_epi32(high, _MM_PERM_CDAB)));
}

// Sixteen elements from I on: as float, and as stored.
typedef struct sixteen {
    __m512 value;
    __m512i bits;
} sixteen;

static inline sixteen load_sixteen(keel_dtype dtype, const unsigned char *data, size_t i) {
    if (dtype == KEEL_F32) {
        const __m512i bits = _mm512_loadu_si512(data + 4 * i);
        return (sixteen){_mm512_castsi512_ps(bits), bits};
    }
    const __m256i half = _mm256_loadu_si256((const __m256i *)(data + 2 * i));
    const __m512i bits = _mm512_cvtepu16_epi32(half);
    if (dtype == KEEL_F16) return (sixteen){_mm512_cvtph_ps(half), bits};
    return (sixteen){_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)), bits};
}

// The first COUNT of them; the others are 0.
static inline sixteen load_some(keel_dtype dtype, const unsigned char *data, size_t i, size_t count) {
    unsigned char padded[64] = {0};
    memcpy(padded, data + i * keel_dtype_size(dtype), count * keel_dtype_size(dtype));
    return load_sixteen(dtype, padded, 0);
}

// What a loop over floats keeps in registers, two of a kind where one alone would wait for itself.
typedef struct narrow_sums {
    __m512 max[2], min[2], least[2];
    __m512d sum[2], sum_sq[2];
    __m512i hash;
    __m512i zeros, near_zeros, below_normal, below_flush, below_normal16, least_less_one;
} narrow_sums;

static inline __m512i add_where(__m512i counts, __mmask16 where) {
    return _mm512_mask_add_epi32(counts, where, counts, _mm512_set1_epi32(1));
}

static inline __mmask16 below(__m512i magnitude, uint64_t limit) {
    return _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32((int32_t)limit));
}

// Extremes and counts of the elements in VALID, checksum of all.
static inline __attribute__((always_inline)) void absorb(narrow_sums *t, sum_kind kind, const keel_limits *limits,
                                                         sixteen x, __mmask16 valid, size_t k) {
    const __m512 v = x.value;
    const bool all = valid == 0xffff;
    t->max[k] = all ? _mm512_max_ps(t->max[k], v) : _mm512_mask_max_ps(t->max[k], valid, t->max[k], v);
    t->min[k] = all ? _mm512_min_ps(t->min[k], v) : _mm512_mask_min_ps(t->min[k], valid, t->min[k], v);
    if (kind.checksum) t->hash = _mm512_add_epi64(t->hash, hash_sixteen(x.bits));
    if (kind.tally != TALLY_ALL)
        t->least[k] = all ? _mm512_range_ps(t->least[k], v, RANGE_LEAST_MAGNITUDE)
                          : _mm512_mask_range_ps(t->least[k], valid, t->least[k], v, RANGE_LEAST_MAGNITUDE);
    if (kind.tally == TALLY_NONE) return;
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(INT32_MAX));
    if (kind.dtype == KEEL_F16) t->below_normal = add_where(t->below_normal, valid & below(magnitude, limits->normal));
    if (kind.half) t->below_normal16 = add_where(t->below_normal16, valid & below(magnitude, limits->normal16));
    if (kind.tally == TALLY_SUBNORMAL) return;
    if (kind.half) t->below_flush = add_where(t->below_flush, valid & below(magnitude, limits->flush_end));
    t->near_zeros = add_where(t->near_zeros, valid & below(magnitude, limits->near_zero));
    t->zeros = add_where(t->zeros, valid & below(magnitude, 1));
    // Zeros, and lanes without an element, wrap round to the greatest.
    t->least_less_one = _mm512_min_epu32(t->least_less_one, _mm512_sub_epi32(magnitude, _mm512_set1_epi32(1)));
}

static inline uint64_t lanes_total(__m512i counts) {
    return (uint32_t)_mm512_reduce_add_epi32(counts);
}

static inline __attribute__((always_inline)) void sum_narrow(sum_kind kind, const keel_limits *limits,
                                                             const unsigned char *data, size_t n, block_sums *out) {
    const size_t size = keel_dtype_size(kind.dtype);
    const __m512 infinity = _mm512_set1_ps(INFINITY);
    narrow_sums t = {.max = {-infinity, -infinity}, .min = {infinity, infinity}, .least = {infinity, infinity}};
    t.least_less_one = _mm512_set1_epi32(-1);
    size_t i = 0;
    for (; i + GROUP <= n; i += GROUP) {
        __m512 v[GROUP / 16];
        for (size_t k = 0; k < GROUP / 16; k++) {
            const sixteen x = load_sixteen(kind.dtype, data, i + 16 * k);
            prefetch(data + (i + 16 * k) * size);
            absorb(&t, kind, limits, x, 0xffff, k % 2);
            v[k] = x.value;
        }
        add_widened(t.sum, _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(v[0], v[1]), _mm512_add_ps(v[2], v[3])),
                                         _mm512_add_ps(_mm512_add_ps(v[4], v[5]), _mm512_add_ps(v[6], v[7]))));
        __m512 q0 = _mm512_mul_ps(v[0], v[0]), q1 = _mm512_mul_ps(v[1], v[1]);
        for (size_t k = 2; k < GROUP / 16; k += 2) {
            q0 = _mm512_fmadd_ps(v[k], v[k], q0);
            q1 = _mm512_fmadd_ps(v[k + 1], v[k + 1], q1);
        }
        add_widened(t.sum_sq, _mm512_add_ps(q0, q1));
    }
    for (; i + 16 <= n; i += 16) {
        const sixteen x = load_sixteen(kind.dtype, data, i);
        absorb(&t, kind, limits, x, 0xffff, 0);
        add_widened(t.sum, x.value);
        add_widened(t.sum_sq, _mm512_mul_ps(x.value, x.value));
    }
    out->checksum = 0;
    if (i < n) {
        const sixteen x = load_some(kind.dtype, data, i, n - i);
        const sum_kind rest = {kind.dtype, kind.tally, kind.half, false};
        absorb(&t, rest, limits, x, tail16(n - i), 0);
        add_widened(t.sum, x.value);
        add_widened(t.sum_sq, _mm512_mul_ps(x.value, x.value));
        if (kind.checksum) out->checksum = keel_scalar_checksum(kind.dtype, data + i * size, n - i);
    }
    out->checksum += (uint64_t)_mm512_reduce_add_epi64(t.hash);
    out->count = (double)n;
    out->sum = _mm512_reduce_add_pd(_mm512_add_pd(t.sum[0], t.sum[1]));
    out->sum_sq = _mm512_reduce_add_pd(_mm512_add_pd(t.sum_sq[0], t.sum_sq[1]));
    out->min = (double)_mm512_reduce_min_ps(_mm512_min_ps(t.min[0], t.min[1]));
    out->max = (double)_mm512_reduce_max_ps(_mm512_max_ps(t.max[0], t.max[1]));
    out->counts = (small_counts){
        .zeros = lanes_total(t.zeros),
        .near_zeros = lanes_total(t.near_zeros),
        .below_normal = lanes_total(t.below_normal),
        .below_flush = lanes_total(t.below_flush),
        .below_normal16 = lanes_total(t.below_normal16),
        .least = keel_least_nonzero(_mm512_reduce_min_epu32(t.least_less_one), UINT32_MAX),
    };
    if (kind.tally == TALLY_ALL)
        out->least = out->counts.zeros > 0 ? 0 : out->counts.least;
    else
        out->least = keel_bits_f32(_mm512_reduce_min_ps(_mm512_min_ps(t.least[0], t.least[1])));
}

static inline __attribute__((always_inline)) void sum_wide(bool checksum, const unsigned char *data, size_t n,
                                                           block_sums *out) {
    __m512d max[2] = {_mm512_set1_pd(-INFINITY), _mm512_set1_pd(-INFINITY)};
    __m512d min[2] = {_mm512_set1_pd(INFINITY), _mm512_set1_pd(INFINITY)};
    __m512d least[2] = {_mm512_set1_pd(INFINITY), _mm512_set1_pd(INFINITY)};
    __m512d sum[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    __m512d sum_sq[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    __m512i hash = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (size_t k = 0; k < 2; k++) {
            const __m512i bits = _mm512_loadu_si512(data + 8 * (i + 8 * k));
            const __m512d v = _mm512_castsi512_pd(bits);
            max[k] = _mm512_max_pd(max[k], v);
            min[k] = _mm512_min_pd(min[k], v);
            least[k] = _mm512_range_pd(least[k], v, RANGE_LEAST_MAGNITUDE);
            sum[k] = _mm512_add_pd(sum[k], v);
            sum_sq[k] = _mm512_fmadd_pd(v, v, sum_sq[k]);
            if (checksum) hash = _mm512_add_epi64(hash, hash_eight_wide(bits));
        }
    }
    out->checksum = (uint64_t)_mm512_reduce_add_epi64(hash);
    if (checksum) out->checksum += keel_scalar_checksum(KEEL_F64, data + 8 * i, n - i);
    for (; i < n; i += 8) {
        const __mmask8 k = n - i < 8 ? tail8(n - i) : 0xff;
        const __m512d v = _mm512_maskz_loadu_pd(k, data + 8 * i);
        max[0] = _mm512_mask_max_pd(max[0], k, max[0], v);
        min[0] = _mm512_mask_min_pd(min[0], k, min[0], v);
        least[0] = _mm512_mask_range_pd(least[0], k, least[0], v, RANGE_LEAST_MAGNITUDE);
        sum[0] = _mm512_add_pd(sum[0], v);
        sum_sq[0] = _mm512_fmadd_pd(v, v, sum_sq[0]);
    }
    out->count = (double)n;
    out->sum = _mm512_reduce_add_pd(_mm512_add_pd(sum[0], sum[1]));
    out->sum_sq = _mm512_reduce_add_pd(_mm512_add_pd(sum_sq[0], sum_sq[1]));
    out->min = _mm512_reduce_min_pd(_mm512_min_pd(min[0], min[1]));
    out->max = _mm512_reduce_max_pd(_mm512_max_pd(max[0], max[1]));
    out->least = keel_bits_f64(_mm512_reduce_min_pd(_mm512_min_pd(least[0], least[1])));
}

// From a choice at run time to constants.
static inline __attribute__((always_inline)) void sum_as(sum_kind kind, bool checksum, const keel_limits *limits,
                                                         const void *data, size_t n, block_sums *out) {
    if (checksum)
        sum_narrow((sum_kind){kind.dtype, kind.tally, kind.half, true}, limits, data, n, out);
    else
        sum_narrow((sum_kind){kind.dtype, kind.tally, kind.half, false}, limits, data, n, out);
}

static inline __attribute__((always_inline)) void sum_dtype(keel_dtype dtype, sum_kind kind, const keel_limits *limits,
                                                            const void *data, size_t n, block_sums *out) {
    const sum_kind none = {dtype, TALLY_NONE, false, false};
    const sum_kind subnormal = {dtype, TALLY_SUBNORMAL, false, false};
    const sum_kind subnormal_half = {dtype, TALLY_SUBNORMAL, true, false};
    const sum_kind all = {dtype, TALLY_ALL, false, false};
    const sum_kind all_half = {dtype, TALLY_ALL, true, false};
    if (kind.tally == TALLY_NONE)
        sum_as(none, kind.checksum, limits, data, n, out);
    else if (kind.tally == TALLY_SUBNORMAL && kind.half)
        sum_as(subnormal_half, kind.checksum, limits, data, n, out);
    else if (kind.tally == TALLY_SUBNORMAL)
        sum_as(subnormal, kind.checksum, limits, data, n, out);
    else if (kind.half)
        sum_as(all_half, kind.checksum, limits, data, n, out);
    else
        sum_as(all, kind.checksum, limits, data, n, out);
}

static void sum_plainly(sum_kind kind, const keel_limits *limits, const void *data, size_t n, block_sums *out) {
    switch (kind.dtype) {
    case KEEL_F64:
        if (kind.checksum)
            sum_wide(true, data, n, out);
        else
            sum_wide(false, data, n, out);
        break;
    case KEEL_F16:
        sum_dtype(KEEL_F16, kind, limits, data, n, out);
        break;
    case KEEL_BF16:
        sum_dtype(KEEL_BF16, kind, limits, data, n, out);
        break;
    default:
        sum_dtype(KEEL_F32, kind, limits, data, n, out);
        break;
    }
}

// Eight values as double, from I on; *VALID: those that exist.
static inline __m512d load_eight(bool wide, const void *values, size_t i, size_t n, __mmask8 *valid) {
    *valid = n - i < 8 ? tail8(n - i) : 0xff;
    if (wide) return _mm512_maskz_loadu_pd(*valid, (const double *)values + i);
    return _mm512_cvtps_pd(_mm256_maskz_loadu_ps(*valid, (const float *)values + i));
}

static inline __m512i magnitude_of(__m512d x) {
    return _mm512_and_si512(_mm512_castpd_si512(x), _mm512_set1_epi64(INT64_MAX));
}

// Sums of (x scale - shift) and its square over the finite x; extremes of the finite x themselves.
static void sum_finite(bool wide, const void *values, size_t n, double scale, double shift, block_sums *out) {
    const __m512i infinity = _mm512_set1_epi64((int64_t)KEEL_F64_INF);
    __m512d max = _mm512_set1_pd(-INFINITY), min = _mm512_set1_pd(INFINITY), least = min;
    __m512d s = _mm512_setzero_pd(), q = s;
    size_t count = 0;
    for (size_t i = 0; i < n; i += 8) {
        __mmask8 k;
        const __m512d x = load_eight(wide, values, i, n, &k);
        k &= _mm512_cmplt_epu64_mask(magnitude_of(x), infinity);
        count += (size_t)__builtin_popcount(k);
        max = _mm512_mask_max_pd(max, k, max, x);
        min = _mm512_mask_min_pd(min, k, min, x);
        least = _mm512_mask_range_pd(least, k, least, x, RANGE_LEAST_MAGNITUDE);
        const __m512d d = _mm512_maskz_fmsub_pd(k, x, _mm512_set1_pd(scale), _mm512_set1_pd(shift));
        s = _mm512_add_pd(s, d);
        q = _mm512_fmadd_pd(d, d, q);
    }
    *out = (block_sums){
        .count = (double)count,
        .sum = _mm512_reduce_add_pd(s),
        .sum_sq = _mm512_reduce_add_pd(q),
        .min = _mm512_reduce_min_pd(min),
        .max = _mm512_reduce_max_pd(max),
        .least = bits_of(wide, _mm512_reduce_min_pd(least)),
    };
}

static void count_nonfinite(keel_stats *part, bool wide, const void *values, size_t n) {
    const __m512i infinity = _mm512_set1_epi64((int64_t)KEEL_F64_INF);
    for (size_t i = 0; i < n; i += 8) {
        __mmask8 k;
        const __m512d x = load_eight(wide, values, i, n, &k);
        const __m512i magnitude = magnitude_of(x);
        const __mmask8 infinite = _mm512_mask_cmpeq_epu64_mask(k, magnitude, infinity);
        const __mmask8 negative = infinite & _mm512_movepi64_mask(_mm512_castpd_si512(x));
        part->nans += (uint64_t)__builtin_popcount(_mm512_mask_cmpgt_epu64_mask(k, magnitude, infinity));
        part->neg_infs += (uint64_t)__builtin_popcount(negative);
        part->pos_infs += (uint64_t)__builtin_popcount(infinite & (__mmask8)~negative);
    }
}

// Magnitudes as bits: 16 of 32 bits or 8 of 64, zero where there is no element.
typedef struct lanes {
    __m512i magnitude;
    __mmask16 valid;
} lanes;

static inline lanes load_lanes(bool wide, const void *values, size_t i, size_t n) {
    if (wide) {
        const __mmask8 k = n - i < 8 ? tail8(n - i) : 0xff;
        const __m512i bits = _mm512_maskz_loadu_epi64(k, (const double *)values + i);
        return (lanes){_mm512_and_si512(bits, _mm512_set1_epi64(INT64_MAX)), k};
    }
    const __mmask16 k = n - i < 16 ? tail16(n - i) : 0xffff;
    const __m512i bits = _mm512_maskz_loadu_epi32(k, (const float *)values + i);
    return (lanes){_mm512_and_si512(bits, _mm512_set1_epi32(INT32_MAX)), k};
}

static inline __m512i set1(bool wide, uint64_t x) {
    return wide ? _mm512_set1_epi64((int64_t)x) : _mm512_set1_epi32((int32_t)x);
}

static inline __m512i add_below(bool wide, __m512i counts, lanes l, __m512i limit) {
    const __m512i one = set1(wide, 1);
    if (wide) {
        const __mmask8 below = _mm512_mask_cmplt_epu64_mask((__mmask8)l.valid, l.magnitude, limit);
        return _mm512_mask_add_epi64(counts, below, counts, one);
    }
    const __mmask16 below = _mm512_mask_cmplt_epu32_mask(l.valid, l.magnitude, limit);
    return _mm512_mask_add_epi32(counts, below, counts, one);
}

static inline uint64_t total(bool wide, __m512i counts) {
    return wide ? (uint64_t)_mm512_reduce_add_epi64(counts) : (uint32_t)_mm512_reduce_add_epi32(counts);
}

// Inlined with constants, so that each combination is a loop of its own.
static inline __attribute__((always_inline)) void count_small_as(small_counts *out, bool wide, bool half, bool zeros,
                                                                 const keel_limits *limits, const void *values,
                                                                 size_t n) {
    const size_t step = wide ? 8 : 16;
    const __m512i one = set1(wide, 1), near_zero = set1(wide, limits->near_zero), normal = set1(wide, limits->normal);
    const __m512i flush_end = set1(wide, limits->flush_end), normal16 = set1(wide, limits->normal16);
    __m512i near_zeros = _mm512_setzero_si512(), zero_count = near_zeros, below_normal = near_zeros;
    __m512i below_flush = near_zeros, below_normal16 = near_zeros, least = set1(wide, UINT64_MAX);
    for (size_t i = 0; i < n; i += step) {
        const lanes l = load_lanes(wide, values, i, n);
        near_zeros = add_below(wide, near_zeros, l, near_zero);
        below_normal = add_below(wide, below_normal, l, normal);
        if (half) {
            below_flush = add_below(wide, below_flush, l, flush_end);
            below_normal16 = add_below(wide, below_normal16, l, normal16);
        }
        if (zeros) {
            zero_count = add_below(wide, zero_count, l, one);
            // Zeros, and lanes without an element, wrap round to the greatest.
            least = wide ? _mm512_min_epu64(least, _mm512_sub_epi64(l.magnitude, one))
                         : _mm512_min_epu32(least, _mm512_sub_epi32(l.magnitude, one));
        }
    }
    *out = (small_counts){
        .near_zeros = total(wide, near_zeros),
        .zeros = total(wide, zero_count),
        .below_normal = total(wide, below_normal),
        .below_flush = total(wide, below_flush),
        .below_normal16 = total(wide, below_normal16),
        .least = wide ? keel_least_nonzero(_mm512_reduce_min_epu64(least), UINT64_MAX)
                      : keel_least_nonzero(_mm512_reduce_min_epu32(least), UINT32_MAX),
    };
}

static void count_small(small_counts *out, bool wide, bool half, bool zeros, const keel_limits *limits,
                        const void *values, size_t n) {
    if (wide)
        count_small_as(out, true, half, zeros, limits, values, n);
    else if (half)
        count_small_as(out, false, true, zeros, limits, values, n);
    else
        count_small_as(out, false, false, zeros, limits, values, n);
}

// Magnitudes from FIRST up to before END.
static uint64_t count_range(bool wide, uint64_t first, uint64_t end, const void *values, size_t n) {
    const size_t step = wide ? 8 : 16;
    __m512i below_first = _mm512_setzero_si512(), below_end = below_first;
    for (size_t i = 0; i < n; i += step) {
        const lanes l = load_lanes(wide, values, i, n);
        below_first = add_below(wide, below_first, l, set1(wide, first));
        below_end = add_below(wide, below_end, l, set1(wide, end));
    }
    return total(wide, below_end) - total(wide, below_first);
}

static inline void count_inexact_floats(keel_stats *part, __m256i bits, __mmask8 finite, __mmask8 inexact) {
    const __m256 x = _mm256_castsi256_ps(bits);
    const __m256i back = _mm256_castps_si256(_mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)));
    const __mmask8 bf16 = inexact | _mm256_test_epi32_mask(bits, _mm256_set1_epi32(0xffff));
    const __mmask8 tf32 = inexact | _mm256_test_epi32_mask(bits, _mm256_set1_epi32(0x1fff));
    const __mmask8 fp16 = inexact | _mm256_cmpneq_epi32_mask(bits, back);
    part->not_bf16 += (uint64_t)__builtin_popcount(bf16 & finite);
    part->not_tf32 += (uint64_t)__builtin_popcount(tf32 & finite);
    part->not_fp16 += (uint64_t)__builtin_popcount(fp16 & finite);
}

static void count_inexact(keel_stats *part, bool wide, const void *values, size_t n) {
    const __m512i infinity = _mm512_set1_epi64((int64_t)KEEL_F64_INF);
    for (size_t i = 0; i < n; i += 8) {
        __mmask8 k;
        const __m512d x = load_eight(wide, values, i, n, &k);
        const __mmask8 finite = _mm512_mask_cmplt_epu64_mask(k, magnitude_of(x), infinity);
        const __m256 narrow = _mm512_cvtpd_ps(x);
        const __mmask8 inexact = wide ? _mm512_cmp_pd_mask(_mm512_cvtps_pd(narrow), x, _CMP_NEQ_UQ) : 0;
        count_inexact_floats(part, _mm256_castps_si256(narrow), finite, inexact);
    }
}

static void widen(keel_dtype dtype, const void *data, size_t n, float *out) {
    const uint16_t *x = data;
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 k = n - i < 16 ? tail16(n - i) : 0xffff;
        const __m256i bits = _mm256_maskz_loadu_epi16(k, x + i);
        const __m512 wider = dtype == KEEL_F16
                                 ? _mm512_cvtph_ps(bits)
                                 : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
        _mm512_storeu_ps(out + i, wider);
    }
}

// True if any exponent is all ones. In lanes of 16 or 32 bits, of which those of a double's low half are masked off.
static bool has_nonfinite(keel_dtype dtype, const void *data, size_t n) {
    const unsigned char *at = data;
    const size_t bytes = n * keel_dtype_size(dtype);
    const bool narrow = dtype == KEEL_F16 || dtype == KEEL_BF16;
    const __m512i mask = dtype == KEEL_F64   ? _mm512_set1_epi64((int64_t)KEEL_F64_INF)
                         : dtype == KEEL_F32 ? _mm512_set1_epi32((int32_t)KEEL_F32_INF)
                         : dtype == KEEL_F16 ? _mm512_set1_epi16(0x7c00)
                                             : _mm512_set1_epi16(0x7f80);
    __m512i most0 = _mm512_setzero_si512(), most1 = most0;
    size_t i = 0;
    for (; i + 128 <= bytes; i += 128) {
        const __m512i a = _mm512_and_si512(_mm512_loadu_si512(at + i), mask);
        const __m512i b = _mm512_and_si512(_mm512_loadu_si512(at + i + 64), mask);
        most0 = narrow ? _mm512_max_epu16(most0, a) : _mm512_max_epu32(most0, a);
        most1 = narrow ? _mm512_max_epu16(most1, b) : _mm512_max_epu32(most1, b);
    }
    for (; i < bytes; i += 64) {
        const __mmask64 k = bytes - i < 64 ? (UINT64_C(1) << (bytes - i)) - 1 : UINT64_MAX;
        const __m512i a = _mm512_and_si512(_mm512_maskz_loadu_epi8(k, at + i), mask);
        most0 = narrow ? _mm512_max_epu16(most0, a) : _mm512_max_epu32(most0, a);
    }
    if (narrow) return _mm512_cmpeq_epu16_mask(_mm512_max_epu16(most0, most1), mask) != 0;
    // The low half of a double's mask is 0 like what is left of it: only high halves may decide.
    const __m512i most = _mm512_max_epu32(most0, most1);
    return (_mm512_cmpeq_epu32_mask(most, mask) & _mm512_test_epi32_mask(mask, mask)) != 0;
}

static uint64_t checksum_of(keel_dtype dtype, const void *data, size_t n) {
    const size_t size = keel_dtype_size(dtype);
    const size_t step = size == 8 ? 8 : 16;
    const size_t whole = n - n % step;
    const unsigned char *at = data;
    __m512i sum = _mm512_setzero_si512();
    if (dtype == KEEL_F32) {
        for (size_t i = 0; i < whole; i += 16)
            sum = _mm512_add_epi64(sum, hash_sixteen(_mm512_loadu_si512(at + 4 * i)));
    } else if (dtype == KEEL_F64) {
        for (size_t i = 0; i < whole; i += 8)
            sum = _mm512_add_epi64(sum, hash_eight_wide(_mm512_loadu_si512(at + 8 * i)));
    } else {
        for (size_t i = 0; i < whole; i += 16) {
            const __m256i bits = _mm256_loadu_si256((const __m256i *)(at + 2 * i));
            sum = _mm512_add_epi64(sum, hash_sixteen(_mm512_cvtepu16_epi32(bits)));
        }
    }
    return (uint64_t)_mm512_reduce_add_epi64(sum) + keel_scalar_checksum(dtype, at + whole * size, n - whole);
}

#include "probe/stats_vector.h"

void keel_stats_avx512(keel_stats *stats, const keel_stats_params *params, keel_dtype dtype, const void *data,
                       size_t n) {
    const size_t block = dtype == KEEL_F64 ? VECTOR_BLOCK / 2 : VECTOR_BLOCK;
    keel_observe_blocks(stats, params, dtype, data, n, block, observe_block);
}
