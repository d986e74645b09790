// Private to the vector kernels: the pass that every block gets, of sums, extremes and checksum over elements as they
// are stored, in terms of the vector types and primitives that the including file defines before it: vfloat of LANES
// floats, vdouble of half as many, vint, vmask. Lengths are multiples of LANES (doubles: of half).
#ifndef KEEL_PROBE_STATS_SUMS_H
#define KEEL_PROBE_STATS_SUMS_H

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

#endif
