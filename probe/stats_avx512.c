// AVX-512 (F, BW, DQ, VL): the primitives under stats_sums.h and stats_passes.h.
#include <immintrin.h>

#include "probe/stats_kernel.h"

// Without optimisation gcc's intrinsics with an immediate are macros, whose own conversions of masks it warns of.
#pragma GCC diagnostic ignored "-Wsign-conversion"

typedef __m512 vfloat;
typedef __m512d vdouble;
typedef __m512i vint;
typedef __mmask8 vmask; // of a vdouble

enum { LANES = 16 };

static inline vfloat vf_set(float x) {
    return _mm512_set1_ps(x);
}
static inline vfloat vf_add(vfloat a, vfloat b) {
    return _mm512_add_ps(a, b);
}
static inline vfloat vf_mul(vfloat a, vfloat b) {
    return _mm512_mul_ps(a, b);
}
static inline vfloat vf_fma(vfloat a, vfloat b, vfloat c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline vfloat vf_max(vfloat a, vfloat b) {
    return _mm512_max_ps(a, b);
}
static inline vfloat vf_min(vfloat a, vfloat b) {
    return _mm512_min_ps(a, b);
}
static inline vfloat vf_least(vfloat a, vfloat b) {
    return _mm512_range_ps(a, b, 0x0a);
} // of magnitudes
static inline double vf_max_of(vfloat a) {
    return (double)_mm512_reduce_max_ps(a);
}
static inline double vf_min_of(vfloat a) {
    return (double)_mm512_reduce_min_ps(a);
}
static inline void vf_store(float *at, vfloat a) {
    _mm512_storeu_ps(at, a);
}
static inline vint vf_bits(vfloat a) {
    return _mm512_castps_si512(a);
}

static inline vdouble vd_set(double x) {
    return _mm512_set1_pd(x);
}
static inline vdouble vd_load(const void *at) {
    return _mm512_loadu_pd(at);
}
static inline vdouble vd_load_floats(const void *at) {
    return _mm512_cvtps_pd(_mm256_loadu_ps(at));
}
static inline vdouble vd_low(vfloat a) {
    return _mm512_cvtps_pd(_mm512_castps512_ps256(a));
}
static inline vdouble vd_high(vfloat a) {
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
}
static inline vdouble vd_add(vdouble a, vdouble b) {
    return _mm512_add_pd(a, b);
}
static inline vdouble vd_fma(vdouble a, vdouble b, vdouble c) {
    return _mm512_fmadd_pd(a, b, c);
}
static inline vdouble vd_fms(vdouble a, vdouble b, vdouble c) {
    return _mm512_fmsub_pd(a, b, c);
}
static inline vdouble vd_max(vdouble a, vdouble b) {
    return _mm512_max_pd(a, b);
}
static inline vdouble vd_min(vdouble a, vdouble b) {
    return _mm512_min_pd(a, b);
}
static inline vdouble vd_least(vdouble a, vdouble b) {
    return _mm512_range_pd(a, b, 0x0a);
}
static inline double vd_sum(vdouble a) {
    return _mm512_reduce_add_pd(a);
}
static inline double vd_max_of(vdouble a) {
    return _mm512_reduce_max_pd(a);
}
static inline double vd_min_of(vdouble a) {
    return _mm512_reduce_min_pd(a);
}
static inline vint vd_bits(vdouble a) {
    return _mm512_castpd_si512(a);
}
static inline vmask vd_equal(vdouble a, vdouble b) {
    return _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ);
}
static inline vmask vd_unordered(vdouble a) {
    return _mm512_cmp_pd_mask(a, a, _CMP_UNORD_Q);
}
static inline vmask vd_finite(vdouble a) {
    return (vmask)~_mm512_fpclass_pd_mask(a, 0x99);
} // not NaN, not infinite
static inline vdouble vd_select(vmask m, vdouble yes, vdouble no) {
    return _mm512_mask_blend_pd(m, no, yes);
}
static inline uint64_t vmask_count(vmask m) {
    return (uint64_t)__builtin_popcount(m);
}

static inline vint vi_set32(uint32_t x) {
    return _mm512_set1_epi32((int32_t)x);
}
static inline vint vi_set64(uint64_t x) {
    return _mm512_set1_epi64((int64_t)x);
}
static inline vint vi_load(const void *at) {
    return _mm512_loadu_si512(at);
}
static inline void vi_store(void *at, vint a) {
    _mm512_storeu_si512(at, a);
}
static inline vint vi_and(vint a, vint b) {
    return _mm512_and_si512(a, b);
}
static inline vint vi_xor(vint a, vint b) {
    return _mm512_xor_si512(a, b);
}
static inline vint vi_add64(vint a, vint b) {
    return _mm512_add_epi64(a, b);
}
static inline vint vi_sub32(vint a, vint b) {
    return _mm512_sub_epi32(a, b);
}
static inline vint vi_sub64(vint a, vint b) {
    return _mm512_sub_epi64(a, b);
}
static inline vint vi_min32(vint a, vint b) {
    return _mm512_min_epu32(a, b);
}
static inline vint vi_min64(vint a, vint b) {
    return _mm512_min_epu64(a, b);
}
static inline vint vi_max16(vint a, vint b) {
    return _mm512_max_epu16(a, b);
}
static inline vint vi_max_signed16(vint a, vint b) {
    return _mm512_max_epi16(a, b);
}
static inline vint vi_min16(vint a, vint b) {
    return _mm512_min_epu16(a, b);
}
static inline vint vi_low_to_high16(vint a) {
    return _mm512_slli_epi32(a, 16);
} // of each 32 bits
static inline vint vi_high_to_low16(vint a) {
    return _mm512_srli_epi32(a, 16);
}
static inline vint vi_max32(vint a, vint b) {
    return _mm512_max_epu32(a, b);
}
static inline vint vi_mul32(vint a, vint b) {
    return _mm512_mul_epu32(a, b);
} // of the low halves of 64 bits
// Shuffles, which run beside the multiplications, where shifts would compete with them.
static inline vint vi_high_halves(vint a) {
    return _mm512_shuffle_epi32(a, _MM_PERM_DDBB);
}
static inline vint vi_swap_halves(vint a) {
    return _mm512_shuffle_epi32(a, _MM_PERM_CDAB);
}
static inline uint64_t vi_sum32(vint a) {
    return (uint32_t)_mm512_reduce_add_epi32(a);
}
static inline uint64_t vi_sum64(vint a) {
    uint64_t lanes[8];
    uint64_t sum = 0;
    vi_store(lanes, a);
    for (int i = 0; i < 8; i++) sum += lanes[i];
    return sum;
}

static inline vint vi_sub16(vint a, vint b) {
    return _mm512_sub_epi16(a, b);
}
static inline bool vi_any_below16(vint a, vint limit) {
    return _mm512_cmplt_epu16_mask(a, limit) != 0;
}
static inline bool vi_any_equal16(vint a, vint b) {
    return _mm512_cmpeq_epi16_mask(a, b) != 0;
}
static inline bool vi_any_equal32(vint a, vint b) {
    return _mm512_cmpeq_epi32_mask(a, b) != 0;
}

static inline uint64_t vi_min_of32(vint a) {
    return _mm512_reduce_min_epu32(a);
}
static inline uint64_t vi_min_of64(vint a) {
    return _mm512_reduce_min_epu64(a);
}

// COUNTS + 1 where A < LIMIT; no sign bits set.
static inline vint vi_count_below32(vint counts, vint a, vint limit) {
    return _mm512_mask_add_epi32(counts, _mm512_cmplt_epu32_mask(a, limit), counts, _mm512_set1_epi32(1));
}

static inline vint vi_count_below64(vint counts, vint a, vint limit) {
    return _mm512_mask_add_epi64(counts, _mm512_cmplt_epu64_mask(a, limit), counts, _mm512_set1_epi64(1));
}

// COUNTS + 1 where A and MASK share a bit and the magnitude of X is below END.
static inline vint vi_count_shared_below32(vint counts, vint x, vint a, vint mask, vint end) {
    const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi32(INT32_MAX));
    const __mmask16 k = _mm512_mask_test_epi32_mask(_mm512_cmplt_epu32_mask(magnitude, end), a, mask);
    return _mm512_mask_add_epi32(counts, k, counts, _mm512_set1_epi32(1));
}

// COUNTS + 1 where A and MASK share a bit.
static inline vint vi_count_shared32(vint counts, vint a, vint mask) {
    return _mm512_mask_add_epi32(counts, _mm512_test_epi32_mask(a, mask), counts, _mm512_set1_epi32(1));
}

static inline bool vi_all_share32(vint a, vint mask) {
    return _mm512_testn_epi32_mask(a, mask) == 0;
}

static inline vfloat vf_through_half(vfloat a) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline vint widen_bits(const void *at) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(at));
}
static inline vfloat load_f16(const void *at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(at));
}
static inline vfloat bf16_of_bits(vint bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
static inline vfloat float_of_bits(vint bits) {
    return _mm512_castsi512_ps(bits);
}

// Bit L: END[L] is above X.
static inline uint32_t limits_above(const uint64_t end[KEEL_LIMIT_SLOTS], uint64_t x) {
    return _mm512_cmpgt_epu64_mask(vi_load(end), vi_set64(x));
}

// A count over many vectors: a bit for each element of up to 32 vectors, which takes one operation of the vector units,
// where to add to lanes takes two.
typedef struct vtally {
    uint64_t bits[8];
    uint64_t count;
} vtally;

static inline vtally tally_begin(void) {
    return (vtally){.count = 0};
}
// Elements of vector ROW below LIMIT; of two vectors together where they are of 16 bits.
static inline void tally_below32(vtally *t, size_t row, vint a, vint limit) {
    const __mmask16 below = _mm512_cmplt_epu32_mask(a, limit);
    memcpy((char *)t->bits + 2 * row, &below, sizeof below);
}
static inline void tally_below16(vtally *t, size_t row, vint a, vint limit) {
    const __mmask32 below = _mm512_cmplt_epu16_mask(a, limit);
    memcpy((char *)t->bits + 2 * row, &below, sizeof below);
}
// The rows are full, or no more come: they are to be used again.
static inline void tally_rows(vtally *t) {
    for (size_t i = 0; i < 8; i++) t->count += (uint64_t)__builtin_popcountll(t->bits[i]);
    _mm512_storeu_si512(t->bits, _mm512_setzero_si512());
}
static inline uint64_t tally_total(const vtally *t) {
    return t->count;
}

#include "probe/stats_vector.h"

void keel_stats_avx512(keel_stats_stream *stream, keel_stats *stats, const void *data, size_t n) {
    keel_observe_blocks(stream, stats, data, n, block_elements(stream->dtype), observe_block);
}
