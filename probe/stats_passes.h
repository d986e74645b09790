// Private to the vector kernels: the passes over a block, in terms of the vector types and primitives that the
// including file defines before it: vfloat of LANES floats, vdouble of half as many, vint, vmask. Lengths are multiples
// of LANES (doubles: of half).
#ifndef KEEL_PROBE_STATS_PASSES_H
#define KEEL_PROBE_STATS_PASSES_H

#include "probe/stats_kernel.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum {
    BLOCK_BYTES = 16384, // of floats or doubles
    BLOCK_FLOATS = BLOCK_BYTES / 4,
    GROUP = 8,  // vectors of floats that are at hand at a time
    GROUPS = 4, // of them that are added as floats: at most 32 values to a lane
};

static size_t block_elements(keel_dtype dtype) {
    return dtype == KEEL_F64 ? BLOCK_BYTES / 8 : BLOCK_FLOATS;
}

// The work on a line keeps the CPU from running so far ahead that enough reads of memory are under way. Far ahead into
// the second cache, where more lines may be awaited, then near ahead into the first. To reach past the end is harmless.
enum { FAR_AHEAD = 3072, NEAR_AHEAD = 1024 };

// Inlined by force: gcc 12 takes a function that only prefetches for one without effect, and drops the call.
ALWAYS_INLINE void prefetch(const unsigned char *at) {
    _mm_prefetch((const char *)at + FAR_AHEAD, _MM_HINT_T1);
    _mm_prefetch((const char *)at + NEAR_AHEAD, _MM_HINT_T0);
}

// ---- what a block gives ----

// What the pass of sums counts besides. The least magnitude of a block tells whether it holds anything to count; where
// the block before did, counting in the same pass spares a second one. Each step takes only what the one before may
// lack.
typedef enum tally {
    TALLY_NONE,
    TALLY_SUBNORMAL, // below the normals of fp16, where asked, and of the dtype where that is f16: common among
                     // ordinary values
    TALLY_SMALL,     // near zeros and what fp16 flushes as well
    TALLY_ALL,       // zeros as well, and the least magnitude beside them
} tally;

// Which pass of sums: known at compile time, so that each combination is a loop of its own.
typedef struct sum_kind {
    keel_dtype dtype;
    tally tally;
    bool half, checksum;
} sum_kind;

// Counts of magnitudes below a limit.
typedef struct small_counts {
    uint64_t zeros, near_zeros, below_normal, below_flush, below_normal16;
    uint64_t least; // non-zero magnitude, as bits; above infinity of nothing
} small_counts;

typedef struct block_sums {
    double count; // finite values
    double sum, sum_sq;
    double min, max;
    uint64_t least;      // magnitude as bits, zeros included
    small_counts counts; // what the tally asked for
    uint64_t checksum;   // where asked
} block_sums;

static inline uint64_t bits_of(bool wide, double x) {
    return wide ? keel_bits_f64(x) : keel_bits_f32((float)x);
}

static inline double value_of(bool wide, uint64_t bits) {
    return wide ? keel_double_of(bits) : (double)keel_float_of((uint32_t)bits);
}

// ---- checksum ----

static inline vint square_low(vint x) {
    return vi_mul32(x, x);
}

// Of elements of 32 bits, even and odd ones added.
static inline vint hash_narrow(vint y) {
    return vi_add64(square_low(y), square_low(vi_high_halves(y)));
}

static inline vint hash_wide(vint y) {
    return vi_add64(square_low(y), vi_swap_halves(square_low(vi_high_halves(y))));
}

// What is hashed of elements as they are stored; 16 bits are widened.
static inline vint hashed_bits(keel_dtype dtype, vint bits) {
    return dtype == KEEL_F32 ? bits : vi_xor(bits, vi_set32(KEEL_HASH_ABOVE));
}

static uint64_t checksum_of(keel_dtype dtype, const unsigned char *data, size_t n) {
    vint sum = vi_set64(0);
    switch (dtype) {
    case KEEL_F32:
        for (size_t i = 0; i < n; i += LANES) sum = vi_add64(sum, hash_narrow(vi_load(data + 4 * i)));
        break;
    case KEEL_F64:
        for (size_t i = 0; i < n; i += LANES / 2) sum = vi_add64(sum, hash_wide(vi_load(data + 8 * i)));
        break;
    default:
        for (size_t i = 0; i < n; i += LANES)
            sum = vi_add64(sum, hash_narrow(hashed_bits(dtype, widen_bits(data + 2 * i))));
        break;
    }
    return vi_sum64(sum);
}

// ---- the pass of sums ----

// LANES elements: as float, and as stored.
typedef struct elements {
    vfloat value;
    vint bits;
} elements;

static inline elements load_elements(keel_dtype dtype, const unsigned char *at) {
    if (dtype == KEEL_F32) {
        const vint bits = vi_load(at);
        return (elements){float_of_bits(bits), bits};
    }
    const vint bits = widen_bits(at);
    return (elements){dtype == KEEL_F16 ? load_f16(at) : bf16_of_bits(bits), bits};
}

// What the loop over floats keeps in registers; two of a kind where one would wait for itself.
typedef struct narrow_state {
    vfloat max[2], min[2], least[2];
    vdouble sum[2], sum_sq[2];
    vint hash;
    vint zeros, near_zeros, below_normal, below_flush, below_normal16, least_less_one;
} narrow_state;

// Counts and checksum of a vector; what is told from elements as they are STORED is left out.
ALWAYS_INLINE void tally_vector(narrow_state *t, sum_kind kind, const keel_limits *limits, elements x, bool stored) {
    if (kind.checksum) t->hash = vi_add64(t->hash, hash_narrow(hashed_bits(kind.dtype, x.bits)));
    if (kind.tally == TALLY_NONE) return;
    const vint magnitude = vi_and(vf_bits(x.value), vi_set32(INT32_MAX));
    if (kind.dtype == KEEL_F16 && !stored)
        t->below_normal = vi_count_below32(t->below_normal, magnitude, vi_set32((uint32_t)limits->normal));
    if (kind.half && !stored)
        t->below_normal16 = vi_count_below32(t->below_normal16, magnitude, vi_set32((uint32_t)limits->normal16));
    if (kind.tally == TALLY_SUBNORMAL) return;
    if (kind.half && !stored)
        t->below_flush = vi_count_below32(t->below_flush, magnitude, vi_set32((uint32_t)limits->flush_end));
    if (!stored) t->near_zeros = vi_count_below32(t->near_zeros, magnitude, vi_set32((uint32_t)limits->near_zero));
    if (kind.tally == TALLY_SMALL) return;
    t->zeros = vi_count_below32(t->zeros, magnitude, vi_set32(1));
    t->least_less_one = vi_min32(t->least_less_one, vi_sub32(magnitude, vi_set32(1))); // zeros wrap to the greatest
}

// The same and the extremes, in half K of the state.
ALWAYS_INLINE void absorb(narrow_state *t, sum_kind kind, const keel_limits *limits, elements x, size_t k) {
    t->max[k] = vf_max(t->max[k], x.value);
    t->min[k] = vf_min(t->min[k], x.value);
    if (kind.tally != TALLY_ALL) t->least[k] = vf_least(t->least[k], x.value);
    tally_vector(t, kind, limits, x, false);
}

// Extremes of 16-bit elements, as they are stored. As signed integers the non-negative values are in their order, and
// above all others; as unsigned ones the negative values are, by magnitude.
typedef struct stored_state {
    vint most_signed, most_unsigned, least;
    vint near_zeros, below_normal, below_flush, below_normal16; // counts of 16 bits: enough for a block
} stored_state;

// The limits in the bits of elements as they are stored, in both halves of 32 bits.
typedef struct stored_limits {
    uint32_t near_zero, flush_end, normal16;
} stored_limits;

// The least magnitude as stored that is not below LIMIT.
static uint32_t stored_limit(keel_dtype dtype, uint64_t limit) {
    uint32_t bits = (uint32_t)((limit + 0xffff) >> 16);
    if (dtype == KEEL_F16) {
        bits = keel_f16_from_f32(keel_float_of((uint32_t)limit));
        if (keel_bits_f32(keel_f16_to_f32((uint16_t)bits)) < limit) bits++;
    }
    return bits * 0x10001u;
}

typedef struct element_pair {
    elements of[2];
} element_pair;

// 2 LANES elements of 16 bits, in whatever order.
ALWAYS_INLINE element_pair load_pair(sum_kind kind, const stored_limits *limits, const unsigned char *at,
                                     stored_state *e) {
    const vint bits = vi_load(at);
    e->most_signed = vi_max_signed16(e->most_signed, bits);
    e->most_unsigned = vi_max16(e->most_unsigned, bits);
    const vint magnitude = vi_and(bits, vi_set32(0x7fff7fff));
    e->least = vi_min16(e->least, magnitude);
    if (kind.dtype == KEEL_F16 && kind.tally != TALLY_NONE)
        e->below_normal = vi_count_below16(e->below_normal, magnitude, vi_set32(0x04000400));
    if (kind.half && kind.tally != TALLY_NONE)
        e->below_normal16 = vi_count_below16(e->below_normal16, magnitude, vi_set32(limits->normal16));
    if (kind.half && kind.tally >= TALLY_SMALL)
        e->below_flush = vi_count_below16(e->below_flush, magnitude, vi_set32(limits->flush_end));
    if (kind.tally >= TALLY_SMALL)
        e->near_zeros = vi_count_below16(e->near_zeros, magnitude, vi_set32(limits->near_zero));
    const vint low = vi_and(bits, vi_set32(0xffff)), high = vi_high_to_low16(bits);
    if (kind.dtype == KEEL_BF16)
        return (element_pair){
            {{float_of_bits(vi_low_to_high16(bits)), low}, {float_of_bits(vi_and(bits, vi_set32(0xffff0000))), high}}};
    return (element_pair){{{load_f16(at), low}, {load_f16(at + sizeof(vint) / 2), high}}};
}

static uint64_t sum_of16(vint counts) {
    return vi_sum32(vi_and(counts, vi_set32(0xffff))) + vi_sum32(vi_high_to_low16(counts));
}

static inline float float_of_stored(keel_dtype dtype, uint16_t bits) {
    return dtype == KEEL_F16 ? keel_f16_to_f32(bits) : keel_bf16_to_f32(bits);
}

static void merge_stored(keel_dtype dtype, const stored_state *e, block_sums *out) {
    enum { COUNT = sizeof(vint) / sizeof(uint16_t), SIGN = 0x8000 };
    uint16_t most_signed[COUNT], most_unsigned[COUNT], least[COUNT];
    vi_store(most_signed, e->most_signed);
    vi_store(most_unsigned, e->most_unsigned);
    vi_store(least, e->least);
    for (size_t i = 1; i < COUNT; i++) {
        if ((int16_t)most_signed[i] > (int16_t)most_signed[0]) most_signed[0] = most_signed[i];
        if (most_unsigned[i] > most_unsigned[0]) most_unsigned[0] = most_unsigned[i];
        if (least[i] < least[0]) least[0] = least[i];
    }
    const bool some_negative = most_unsigned[0] & SIGN, all_negative = most_signed[0] & SIGN;
    const float magnitude = float_of_stored(dtype, least[0]);
    const float min = some_negative ? float_of_stored(dtype, most_unsigned[0]) : magnitude;
    const float max = all_negative ? -magnitude : float_of_stored(dtype, most_signed[0]);
    if ((double)min < out->min) out->min = (double)min;
    if ((double)max > out->max) out->max = (double)max;
    if (keel_bits_f32(magnitude) < out->least) out->least = keel_bits_f32(magnitude);
}

static inline void add_widened(vdouble sum[2], vfloat x) {
    sum[0] = vd_add(sum[0], vd_low(x));
    sum[1] = vd_add(sum[1], vd_high(x));
}

static inline vfloat add_four(const vfloat *v) {
    return vf_add(vf_add(v[0], v[1]), vf_add(v[2], v[3]));
}

static inline vfloat add_four_squares(const vfloat *v) {
    return vf_fma(v[3], v[3], vf_fma(v[2], v[2], vf_fma(v[1], v[1], vf_mul(v[0], v[0]))));
}

ALWAYS_INLINE void sum_narrow(sum_kind kind, const keel_limits *limits, const unsigned char *data, size_t n,
                              block_sums *out) {
    const size_t bytes = LANES * (kind.dtype == KEEL_F32 ? sizeof(float) : sizeof(uint16_t));
    const vfloat infinity = vf_set(INFINITY), zero = vf_set(0);
    narrow_state t = {
        .max = {vf_set(-INFINITY), vf_set(-INFINITY)}, .min = {infinity, infinity}, .least = {infinity, infinity}};
    t.sum[0] = t.sum[1] = t.sum_sq[0] = t.sum_sq[1] = vd_set(0);
    t.hash = t.zeros = t.near_zeros = t.below_normal = t.below_flush = t.below_normal16 = vf_bits(zero);
    t.least_less_one = vi_set32(UINT32_MAX);
    const size_t vectors = n / LANES;
    size_t i = 0;
    vfloat sum = zero, sum_sq = zero;
    const bool stored = kind.dtype != KEEL_F32;
    stored_state extremes = {.most_signed = vi_set32(0x80008000), .least = vi_set64(UINT64_MAX)};
    extremes.most_unsigned = extremes.near_zeros = extremes.below_normal = vi_set64(0);
    extremes.below_flush = extremes.below_normal16 = vi_set64(0);
    stored_limits stored_at = {0};
    if (stored && kind.tally != TALLY_NONE && kind.half)
        stored_at = (stored_limits){.flush_end = stored_limit(kind.dtype, limits->flush_end),
                                    .normal16 = stored_limit(kind.dtype, limits->normal16)};
    if (stored && kind.tally >= TALLY_SMALL) stored_at.near_zero = stored_limit(kind.dtype, limits->near_zero);
    for (size_t groups = 0; i + GROUP <= vectors; i += GROUP, groups++) {
        vfloat v[GROUP];
        for (size_t k = 0; stored && k < GROUP; k += 2) {
            const unsigned char *at = data + (i + k) * bytes;
            prefetch(at);
            const element_pair x = load_pair(kind, &stored_at, at, &extremes);
            tally_vector(&t, kind, limits, x.of[0], true);
            tally_vector(&t, kind, limits, x.of[1], true);
            v[k] = x.of[0].value;
            v[k + 1] = x.of[1].value;
        }
        for (size_t k = 0; !stored && k < GROUP; k++) {
            const unsigned char *at = data + (i + k) * bytes;
            prefetch(at);
            const elements x = load_elements(kind.dtype, at);
            absorb(&t, kind, limits, x, k % 2);
            v[k] = x.value;
        }
        sum = vf_add(sum, vf_add(add_four(v), add_four(v + 4)));
        sum_sq = vf_add(sum_sq, vf_add(add_four_squares(v), add_four_squares(v + 4)));
        if (groups % GROUPS < GROUPS - 1) continue;
        add_widened(t.sum, sum);
        add_widened(t.sum_sq, sum_sq);
        sum = sum_sq = zero;
    }
    add_widened(t.sum, sum);
    add_widened(t.sum_sq, sum_sq);
    for (; i < vectors; i++) {
        const elements x = load_elements(kind.dtype, data + i * bytes);
        absorb(&t, kind, limits, x, 0);
        add_widened(t.sum, x.value);
        add_widened(t.sum_sq, vf_mul(x.value, x.value));
    }
    out->count = (double)n;
    out->sum = vd_sum(vd_add(t.sum[0], t.sum[1]));
    out->sum_sq = vd_sum(vd_add(t.sum_sq[0], t.sum_sq[1]));
    out->min = vf_min_of(vf_min(t.min[0], t.min[1]));
    out->max = vf_max_of(vf_max(t.max[0], t.max[1]));
    out->checksum = kind.checksum ? vi_sum64(t.hash) : 0;
    out->least = keel_bits_f32((float)vf_min_of(vf_least(t.least[0], t.least[1])));
    if (stored && vectors >= GROUP) merge_stored(kind.dtype, &extremes, out);
    if (kind.tally == TALLY_NONE) return;
    out->counts = (small_counts){
        .zeros = vi_sum32(t.zeros),
        .near_zeros = vi_sum32(t.near_zeros) + (stored ? sum_of16(extremes.near_zeros) : 0),
        .below_normal = vi_sum32(t.below_normal) + (stored ? sum_of16(extremes.below_normal) : 0),
        .below_flush = vi_sum32(t.below_flush) + (stored ? sum_of16(extremes.below_flush) : 0),
        .below_normal16 = vi_sum32(t.below_normal16) + (stored ? sum_of16(extremes.below_normal16) : 0),
        .least = keel_least_nonzero(vi_min_of32(t.least_less_one), UINT32_MAX),
    };
    if (kind.tally == TALLY_ALL) out->least = out->counts.zeros > 0 ? 0 : out->counts.least;
}

ALWAYS_INLINE void sum_wide(bool checksum, const unsigned char *data, size_t n, block_sums *out) {
    vdouble max[2] = {vd_set(-INFINITY), vd_set(-INFINITY)}, min[2] = {vd_set(INFINITY), vd_set(INFINITY)};
    vdouble least[2] = {vd_set(INFINITY), vd_set(INFINITY)};
    vdouble sum[2] = {vd_set(0), vd_set(0)}, sum_sq[2] = {vd_set(0), vd_set(0)};
    vint hash = vi_set64(0);
    const size_t vectors = n / (LANES / 2);
    for (size_t i = 0; i < vectors; i += 2) {
        for (size_t k = 0; k < 2 && i + k < vectors; k++) {
            const unsigned char *at = data + (i + k) * sizeof(vdouble);
            prefetch(at);
            const vdouble v = vd_load(at);
            max[k] = vd_max(max[k], v);
            min[k] = vd_min(min[k], v);
            least[k] = vd_least(least[k], v);
            sum[k] = vd_add(sum[k], v);
            sum_sq[k] = vd_fma(v, v, sum_sq[k]);
            if (checksum) hash = vi_add64(hash, hash_wide(vd_bits(v)));
        }
    }
    out->count = (double)n;
    out->sum = vd_sum(vd_add(sum[0], sum[1]));
    out->sum_sq = vd_sum(vd_add(sum_sq[0], sum_sq[1]));
    out->min = vd_min_of(vd_min(min[0], min[1]));
    out->max = vd_max_of(vd_max(max[0], max[1]));
    out->least = keel_bits_f64(vd_min_of(vd_least(least[0], least[1])));
    out->checksum = checksum ? vi_sum64(hash) : 0;
}

// From a choice at run time to constants.
ALWAYS_INLINE void sum_as(sum_kind kind, bool checksum, const keel_limits *limits, const void *data, size_t n,
                          block_sums *out) {
    if (checksum)
        sum_narrow((sum_kind){kind.dtype, kind.tally, kind.half, true}, limits, data, n, out);
    else
        sum_narrow((sum_kind){kind.dtype, kind.tally, kind.half, false}, limits, data, n, out);
}

ALWAYS_INLINE void sum_half(sum_kind kind, const keel_limits *limits, const void *data, size_t n, block_sums *out) {
    if (kind.half)
        sum_as((sum_kind){kind.dtype, kind.tally, true, false}, kind.checksum, limits, data, n, out);
    else
        sum_as((sum_kind){kind.dtype, kind.tally, false, false}, kind.checksum, limits, data, n, out);
}

ALWAYS_INLINE void sum_dtype(keel_dtype dtype, sum_kind kind, const keel_limits *limits, const void *data, size_t n,
                             block_sums *out) {
    switch (kind.tally) {
    case TALLY_NONE:
        sum_as((sum_kind){dtype, TALLY_NONE, false, false}, kind.checksum, limits, data, n, out);
        break;
    case TALLY_SUBNORMAL:
        sum_half((sum_kind){dtype, TALLY_SUBNORMAL, kind.half, kind.checksum}, limits, data, n, out);
        break;
    case TALLY_SMALL:
        sum_half((sum_kind){dtype, TALLY_SMALL, kind.half, kind.checksum}, limits, data, n, out);
        break;
    case TALLY_ALL:
        sum_half((sum_kind){dtype, TALLY_ALL, kind.half, kind.checksum}, limits, data, n, out);
        break;
    }
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

static inline vint set_limit(bool wide, uint64_t x) {
    return wide ? vi_set64(x) : vi_set32((uint32_t)x);
}

static inline vint count_below(bool wide, vint counts, vint magnitude, vint limit) {
    return wide ? vi_count_below64(counts, magnitude, limit) : vi_count_below32(counts, magnitude, limit);
}

static inline uint64_t total(bool wide, vint counts) {
    return wide ? vi_sum64(counts) : vi_sum32(counts);
}

ALWAYS_INLINE void count_small_as(small_counts *out, bool wide, bool half, const keel_limits *limits,
                                  const unsigned char *values, size_t n) {
    const vint one = set_limit(wide, 1), near_zero = set_limit(wide, limits->near_zero);
    const vint normal = set_limit(wide, limits->normal), flush_end = set_limit(wide, limits->flush_end);
    const vint normal16 = set_limit(wide, limits->normal16);
    vint zeros = vi_set64(0), near_zeros = zeros, below_normal = zeros, below_flush = zeros, below_normal16 = zeros;
    vint least = vi_set64(UINT64_MAX);
    for (size_t i = 0; i < n; i += wide ? LANES / 2 : LANES) {
        const vint x = magnitudes(wide, values, i);
        zeros = count_below(wide, zeros, x, one);
        near_zeros = count_below(wide, near_zeros, x, near_zero);
        below_normal = count_below(wide, below_normal, x, normal);
        if (half) {
            below_flush = count_below(wide, below_flush, x, flush_end);
            below_normal16 = count_below(wide, below_normal16, x, normal16);
        }
        // Zeros wrap round to the greatest.
        least = wide ? vi_min64(least, vi_sub64(x, one)) : vi_min32(least, vi_sub32(x, one));
    }
    *out = (small_counts){
        .zeros = total(wide, zeros),
        .near_zeros = total(wide, near_zeros),
        .below_normal = total(wide, below_normal),
        .below_flush = total(wide, below_flush),
        .below_normal16 = total(wide, below_normal16),
        .least = wide ? keel_least_nonzero(vi_min_of64(least), UINT64_MAX)
                      : keel_least_nonzero(vi_min_of32(least), UINT32_MAX),
    };
}

static void count_small(small_counts *out, bool wide, bool half, const keel_limits *limits, const void *values,
                        size_t n) {
    if (wide)
        count_small_as(out, true, half, limits, values, n);
    else if (half)
        count_small_as(out, false, true, limits, values, n);
    else
        count_small_as(out, false, false, limits, values, n);
}

// Magnitudes from FIRST up to before END.
static uint64_t count_range(bool wide, uint64_t first, uint64_t end, const unsigned char *values, size_t n) {
    vint below_first = vi_set64(0), below_end = below_first;
    for (size_t i = 0; i < n; i += wide ? LANES / 2 : LANES) {
        const vint x = magnitudes(wide, values, i);
        below_first = count_below(wide, below_first, x, set_limit(wide, first));
        below_end = count_below(wide, below_end, x, set_limit(wide, end));
    }
    return total(wide, below_end) - total(wide, below_first);
}

// COUNTS + 1 where A and MASK share a bit and X is finite, as all values are where SOME are not is false.
ALWAYS_INLINE vint count_shared(bool some, vint counts, vint x, vint a, vint mask) {
    return some ? vi_count_shared_below32(counts, x, a, mask, vi_set32(KEEL_F32_INF))
                : vi_count_shared32(counts, a, mask);
}

// A format that holds the dtype is left out.
ALWAYS_INLINE void count_inexact_as(keel_stats *part, bool some, bool bfloats, bool halves, const unsigned char *floats,
                                    size_t n) {
    vint bf16 = vi_set64(0), tf32 = bf16, fp16 = bf16;
    for (size_t i = 0; i < n; i += LANES) {
        const vint bits = vi_load(floats + 4 * i);
        if (!bfloats) bf16 = count_shared(some, bf16, bits, bits, vi_set32(0xffff));
        if (!bfloats && !halves) tf32 = count_shared(some, tf32, bits, bits, vi_set32(0x1fff));
        if (!halves) {
            const vint lost = vi_xor(bits, vf_bits(vf_through_half(float_of_bits(bits))));
            fp16 = count_shared(some, fp16, bits, lost, vi_set32(UINT32_MAX));
        }
    }
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
