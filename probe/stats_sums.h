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
    GROUP = 8, // vectors of floats that are at hand at a time
    ROWS = 32, // of them that are added as floats, and counted together
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

// Which pass of sums: known at compile time, so that each combination is a loop of its own. LIMITS: how many it counts
// below; ZEROS: that of zeros among them.
typedef struct sum_kind {
    keel_dtype dtype;
    uint32_t limits;
    bool zeros, checksum;
} sum_kind;

// Magnitudes below the limits.
typedef struct small_counts {
    uint64_t below[KEEL_LIMIT_COUNT];
    uint64_t least; // non-zero magnitude, as bits; above infinity of nothing
} small_counts;

typedef struct block_sums {
    double count; // finite values
    double sum, sum_sq;
    double min, max;
    uint64_t least;      // magnitude as bits, zeros included
    small_counts counts; // what was asked for
    uint64_t checksum;   // where asked
} block_sums;

// Of a magnitude that its type holds. A conversion to a subnormal float might be flushed to zero.
static inline uint64_t bits_of(bool wide, double x) {
    if (wide) return keel_bits_f64(x);
    return x < 0x1p-126 ? (uint64_t)(x * 0x1p149) : keel_bits_f32((float)x);
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
    vint hash, least_less_one;
} narrow_state;

// The checksum of a vector and, where there are zeros, the least of the other magnitudes.
ALWAYS_INLINE void absorb_bits(narrow_state *t, sum_kind kind, elements x) {
    if (kind.checksum) t->hash = vi_add64(t->hash, hash_narrow(hashed_bits(kind.dtype, x.bits)));
    if (!kind.zeros) return;
    const vint magnitude = vi_and(vf_bits(x.value), vi_set32(INT32_MAX));
    t->least_less_one = vi_min32(t->least_less_one, vi_sub32(magnitude, vi_set32(1))); // zeros wrap to the greatest
}

// The same, extremes and counts of vector ROW of those counted together; the extremes in half K of the state.
ALWAYS_INLINE void absorb(narrow_state *t, vtally *below, sum_kind kind, const keel_limit_list *limits, elements x,
                          size_t row, size_t k) {
    t->max[k] = vf_max(t->max[k], x.value);
    t->min[k] = vf_min(t->min[k], x.value);
    if (!kind.zeros) t->least[k] = vf_least(t->least[k], x.value);
    absorb_bits(t, kind, x);
    const vint magnitude = vi_and(vf_bits(x.value), vi_set32(INT32_MAX));
    for (uint32_t l = 0; l < kind.limits; l++) tally_below32(&below[l], row, magnitude, vi_set32(limits->end[l]));
}

// Extremes of 16-bit elements, as they are stored. As signed integers the non-negative values are in their order, and
// above all others; as unsigned ones the negative values are, by magnitude.
typedef struct stored_state {
    vint most_signed, most_unsigned, least;
} stored_state;

// The least magnitude as stored that is not below LIMIT, in both halves of 32 bits.
static uint32_t stored_limit(keel_dtype dtype, uint32_t limit) {
    uint32_t bits = (limit + 0xffff) >> 16;
    if (dtype == KEEL_F16) {
        bits = keel_f16_from_f32(keel_float_of(limit));
        if (keel_bits_f32(keel_f16_to_f32((uint16_t)bits)) < limit) bits++;
    }
    return bits * 0x10001u;
}

typedef struct element_pair {
    elements of[2];
} element_pair;

// 2 LANES elements of 16 bits, in whatever order. ROW of the first.
ALWAYS_INLINE element_pair load_pair(stored_state *e, vtally *below, sum_kind kind, const uint32_t *stored,
                                     const unsigned char *at, size_t row) {
    const vint bits = vi_load(at);
    e->most_signed = vi_max_signed16(e->most_signed, bits);
    e->most_unsigned = vi_max16(e->most_unsigned, bits);
    const vint magnitude = vi_and(bits, vi_set32(0x7fff7fff));
    e->least = vi_min16(e->least, magnitude);
    for (uint32_t l = 0; l < kind.limits; l++) tally_below16(&below[l], row, magnitude, vi_set32(stored[l]));
    const vint low = vi_and(bits, vi_set32(0xffff)), high = vi_high_to_low16(bits);
    if (kind.dtype == KEEL_BF16)
        return (element_pair){
            {{float_of_bits(vi_low_to_high16(bits)), low}, {float_of_bits(vi_and(bits, vi_set32(0xffff0000))), high}}};
    return (element_pair){{{load_f16(at), low}, {load_f16(at + sizeof(vint) / 2), high}}};
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

ALWAYS_INLINE void sum_narrow(sum_kind kind, const keel_limit_list *limits, const unsigned char *data, size_t n,
                              block_sums *out) {
    const size_t bytes = LANES * (kind.dtype == KEEL_F32 ? sizeof(float) : sizeof(uint16_t));
    const vfloat infinity = vf_set(INFINITY), zero = vf_set(0);
    const bool stored = kind.dtype != KEEL_F32;
    narrow_state t = {
        .max = {vf_set(-INFINITY), vf_set(-INFINITY)}, .min = {infinity, infinity}, .least = {infinity, infinity}};
    t.sum[0] = t.sum[1] = t.sum_sq[0] = t.sum_sq[1] = vd_set(0);
    t.hash = vf_bits(zero);
    t.least_less_one = vi_set32(UINT32_MAX);
    stored_state extremes = {.most_signed = vi_set32(0x80008000), .least = vi_set64(UINT64_MAX)};
    extremes.most_unsigned = vi_set64(0);
    uint32_t stored_ends[KEEL_LIMIT_COUNT];
    vtally below[KEEL_LIMIT_COUNT]; // apart from what stays in registers
    for (uint32_t l = 0; l < kind.limits; l++) {
        if (stored) stored_ends[l] = stored_limit(kind.dtype, limits->end[l]);
        below[l] = tally_begin();
    }
    const size_t vectors = n / LANES;
    size_t i = 0, row = 0;
    vfloat sum = zero, sum_sq = zero;
    while (i + GROUP <= vectors) {
        vfloat v[GROUP];
        for (size_t k = 0; stored && k < GROUP; k += 2) {
            const unsigned char *at = data + (i + k) * bytes;
            prefetch(at);
            const element_pair x = load_pair(&extremes, below, kind, stored_ends, at, row + k);
            absorb_bits(&t, kind, x.of[0]);
            absorb_bits(&t, kind, x.of[1]);
            v[k] = x.of[0].value;
            v[k + 1] = x.of[1].value;
        }
        for (size_t k = 0; !stored && k < GROUP; k++) {
            const unsigned char *at = data + (i + k) * bytes;
            prefetch(at);
            const elements x = load_elements(kind.dtype, at);
            absorb(&t, below, kind, limits, x, row + k, k % 2);
            v[k] = x.value;
        }
        sum = vf_add(sum, vf_add(add_four(v), add_four(v + 4)));
        sum_sq = vf_add(sum_sq, vf_add(add_four_squares(v), add_four_squares(v + 4)));
        i += GROUP;
        row += GROUP;
        if (row < ROWS) continue;
        add_widened(t.sum, sum);
        add_widened(t.sum_sq, sum_sq);
        sum = sum_sq = zero;
        for (uint32_t l = 0; l < kind.limits; l++) tally_rows(&below[l]);
        row = 0;
    }
    add_widened(t.sum, sum);
    add_widened(t.sum_sq, sum_sq);
    for (; i < vectors; i++, row++) {
        const elements x = load_elements(kind.dtype, data + i * bytes);
        absorb(&t, below, kind, limits, x, row, 0);
        add_widened(t.sum, x.value);
        add_widened(t.sum_sq, vf_mul(x.value, x.value));
    }
    out->count = (double)n;
    out->sum = vd_sum(vd_add(t.sum[0], t.sum[1]));
    out->sum_sq = vd_sum(vd_add(t.sum_sq[0], t.sum_sq[1]));
    out->min = vf_min_of(vf_min(t.min[0], t.min[1]));
    out->max = vf_max_of(vf_max(t.max[0], t.max[1]));
    out->checksum = kind.checksum ? vi_sum64(t.hash) : 0;
    out->least = bits_of(false, vf_min_of(vf_least(t.least[0], t.least[1])));
    if (stored && vectors >= GROUP) merge_stored(kind.dtype, &extremes, out);
    for (uint32_t l = 0; l < kind.limits; l++) {
        if (row > 0) tally_rows(&below[l]);
        out->counts.below[limits->which[l]] = tally_total(&below[l]);
    }
    if (!kind.zeros) return;
    out->counts.least = keel_least_nonzero(vi_min_of32(t.least_less_one), UINT32_MAX);
    out->least = out->counts.below[KEEL_LIMIT_ZEROS] > 0 ? 0 : out->counts.least;
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
ALWAYS_INLINE void sum_checked(sum_kind kind, bool checksum, const keel_limit_list *limits, const void *data, size_t n,
                               block_sums *out) {
    if (checksum)
        sum_narrow((sum_kind){kind.dtype, kind.limits, kind.zeros, true}, limits, data, n, out);
    else
        sum_narrow((sum_kind){kind.dtype, kind.limits, kind.zeros, false}, limits, data, n, out);
}

ALWAYS_INLINE void sum_counting(keel_dtype dtype, uint32_t count, bool checksum, const keel_limit_list *limits,
                                const void *data, size_t n, block_sums *out) {
    if (limits->set & 1u << KEEL_LIMIT_ZEROS)
        sum_checked((sum_kind){.dtype = dtype, .limits = count, .zeros = true}, checksum, limits, data, n, out);
    else
        sum_checked((sum_kind){.dtype = dtype, .limits = count}, checksum, limits, data, n, out);
}

ALWAYS_INLINE void sum_dtype(keel_dtype dtype, bool checksum, const keel_limit_list *limits, const void *data, size_t n,
                             block_sums *out) {
    switch (limits->count) {
    case 0:
        sum_checked((sum_kind){.dtype = dtype}, checksum, limits, data, n, out);
        break;
    case 1:
        sum_counting(dtype, 1, checksum, limits, data, n, out);
        break;
    case 2:
        sum_counting(dtype, 2, checksum, limits, data, n, out);
        break;
    case 3:
        sum_counting(dtype, 3, checksum, limits, data, n, out);
        break;
    case 4:
        sum_counting(dtype, 4, checksum, limits, data, n, out);
        break;
    default: // all, so that of zeros is among them
        sum_checked((sum_kind){.dtype = dtype, .limits = KEEL_LIMIT_COUNT, .zeros = true}, checksum, limits, data, n,
                    out);
        break;
    }
}

static void sum_plainly(keel_dtype dtype, bool checksum, const keel_limit_list *limits, const void *data, size_t n,
                        block_sums *out) {
    switch (dtype) {
    case KEEL_F64:
        if (checksum)
            sum_wide(true, data, n, out);
        else
            sum_wide(false, data, n, out);
        break;
    case KEEL_F16:
        sum_dtype(KEEL_F16, checksum, limits, data, n, out);
        break;
    case KEEL_BF16:
        sum_dtype(KEEL_BF16, checksum, limits, data, n, out);
        break;
    default:
        sum_dtype(KEEL_F32, checksum, limits, data, n, out);
        break;
    }
}

#endif
