// AVX2 with FMA and F16C: the primitives under stats_sums.h and stats_passes.h.
#include <immintrin.h>

#include "probe/stats_kernel.h"

typedef __m256 vfloat;
typedef __m256d vdouble;
typedef __m256i vint;
typedef __m256d vmask; // of a vdouble

enum { LANES = 8 };

static inline vint vf_bits(vfloat a) {
    return _mm256_castps_si256(a);
}
static inline vfloat float_of_bits(vint bits) {
    return _mm256_castsi256_ps(bits);
}
static inline vint vd_bits(vdouble a) {
    return _mm256_castpd_si256(a);
}
static inline vfloat vf_set(float x) {
    return _mm256_set1_ps(x);
}
static inline vdouble vd_set(double x) {
    return _mm256_set1_pd(x);
}
static inline vint vi_set32(uint32_t x) {
    return _mm256_set1_epi32((int32_t)x);
}
static inline vint vi_set64(uint64_t x) {
    return _mm256_set1_epi64x((int64_t)x);
}

static inline vfloat vf_add(vfloat a, vfloat b) {
    return _mm256_add_ps(a, b);
}
static inline vfloat vf_mul(vfloat a, vfloat b) {
    return _mm256_mul_ps(a, b);
}
static inline vfloat vf_fma(vfloat a, vfloat b, vfloat c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline vfloat vf_max(vfloat a, vfloat b) {
    return _mm256_max_ps(a, b);
}
static inline vfloat vf_min(vfloat a, vfloat b) {
    return _mm256_min_ps(a, b);
}
static inline vfloat vf_least(vfloat a, vfloat b) { // of magnitudes; A is one already
    return _mm256_min_ps(a, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), b));
}
static inline void vf_store(float *at, vfloat a) {
    _mm256_storeu_ps(at, a);
}

static inline vdouble vd_load(const void *at) {
    return _mm256_loadu_pd(at);
}
static inline vdouble vd_load_floats(const void *at) {
    return _mm256_cvtps_pd(_mm_loadu_ps(at));
}
static inline vdouble vd_low(vfloat a) {
    return _mm256_cvtps_pd(_mm256_castps256_ps128(a));
}
static inline vdouble vd_high(vfloat a) {
    return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));
}
static inline vdouble vd_add(vdouble a, vdouble b) {
    return _mm256_add_pd(a, b);
}
static inline vdouble vd_fma(vdouble a, vdouble b, vdouble c) {
    return _mm256_fmadd_pd(a, b, c);
}
static inline vdouble vd_fms(vdouble a, vdouble b, vdouble c) {
    return _mm256_fmsub_pd(a, b, c);
}
static inline vdouble vd_max(vdouble a, vdouble b) {
    return _mm256_max_pd(a, b);
}
static inline vdouble vd_min(vdouble a, vdouble b) {
    return _mm256_min_pd(a, b);
}
static inline vdouble vd_magnitude(vdouble a) {
    return _mm256_andnot_pd(_mm256_set1_pd(-0.0), a);
}
static inline vdouble vd_least(vdouble a, vdouble b) {
    return _mm256_min_pd(a, vd_magnitude(b));
}
static inline vmask vd_equal(vdouble a, vdouble b) {
    return _mm256_cmp_pd(a, b, _CMP_EQ_OQ);
}
static inline vmask vd_unordered(vdouble a) {
    return _mm256_cmp_pd(a, a, _CMP_UNORD_Q);
}
static inline vmask vd_finite(vdouble a) {
    return _mm256_cmp_pd(vd_magnitude(a), _mm256_set1_pd(INFINITY), _CMP_LT_OQ);
}
static inline vdouble vd_select(vmask m, vdouble yes, vdouble no) {
    return _mm256_blendv_pd(no, yes, m);
}
static inline uint64_t vmask_count(vmask m) {
    return (uint64_t)__builtin_popcount((unsigned)_mm256_movemask_pd(m));
}

static inline double vd_sum(vdouble a) {
    const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
}

static inline double vd_max_of(vdouble a) {
    const __m128d half = _mm_max_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_max_sd(half, _mm_unpackhi_pd(half, half)));
}

static inline double vd_min_of(vdouble a) {
    const __m128d half = _mm_min_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_min_sd(half, _mm_unpackhi_pd(half, half)));
}

static inline double vf_max_of(vfloat a) {
    return vd_max_of(vd_max(vd_low(a), vd_high(a)));
}
static inline double vf_min_of(vfloat a) {
    return vd_min_of(vd_min(vd_low(a), vd_high(a)));
}

static inline vint vi_load(const void *at) {
    return _mm256_loadu_si256(at);
}
static inline void vi_store(void *at, vint a) {
    _mm256_storeu_si256(at, a);
}
static inline vint vi_and(vint a, vint b) {
    return _mm256_and_si256(a, b);
}
static inline vint vi_xor(vint a, vint b) {
    return _mm256_xor_si256(a, b);
}
static inline vint vi_add64(vint a, vint b) {
    return _mm256_add_epi64(a, b);
}
static inline vint vi_sub32(vint a, vint b) {
    return _mm256_sub_epi32(a, b);
}
static inline vint vi_sub64(vint a, vint b) {
    return _mm256_sub_epi64(a, b);
}
static inline vint vi_min32(vint a, vint b) {
    return _mm256_min_epu32(a, b);
}
static inline vint vi_max16(vint a, vint b) {
    return _mm256_max_epu16(a, b);
}
static inline vint vi_max_signed16(vint a, vint b) {
    return _mm256_max_epi16(a, b);
}
static inline vint vi_min16(vint a, vint b) {
    return _mm256_min_epu16(a, b);
}
static inline vint vi_low_to_high16(vint a) {
    return _mm256_slli_epi32(a, 16);
} // of each 32 bits
static inline vint vi_high_to_low16(vint a) {
    return _mm256_srli_epi32(a, 16);
}
static inline vint vi_max32(vint a, vint b) {
    return _mm256_max_epu32(a, b);
}
static inline vint vi_mul32(vint a, vint b) {
    return _mm256_mul_epu32(a, b);
} // of the low halves of 64 bits
static inline vint vi_high_halves(vint a) {
    return _mm256_shuffle_epi32(a, 0xf5);
}
static inline vint vi_swap_halves(vint a) {
    return _mm256_shuffle_epi32(a, 0xb1);
}

static inline vint vi_min64(vint a, vint b) { // unsigned: AVX2 compares signed
    const __m256i sign = _mm256_set1_epi64x(INT64_MIN);
    const __m256i b_less = _mm256_cmpgt_epi64(_mm256_xor_si256(a, sign), _mm256_xor_si256(b, sign));
    return _mm256_blendv_epi8(a, b, b_less);
}

static inline uint64_t vi_sum32(vint a) {
    uint32_t lanes[8];
    uint64_t sum = 0;
    vi_store(lanes, a);
    for (int i = 0; i < 8; i++) sum += lanes[i];
    return sum;
}

static inline uint64_t vi_sum64(vint a) {
    uint64_t lanes[4];
    vi_store(lanes, a);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

static inline vint vi_sub16(vint a, vint b) {
    return _mm256_sub_epi16(a, b);
}
static inline bool vi_any_below16(vint a, vint limit) {
    return _mm256_movemask_epi8(_mm256_cmpeq_epi16(_mm256_max_epu16(a, limit), a)) != -1;
}
static inline bool vi_any_equal16(vint a, vint b) {
    return _mm256_movemask_epi8(_mm256_cmpeq_epi16(a, b)) != 0;
}
static inline bool vi_any_equal32(vint a, vint b) {
    return _mm256_movemask_epi8(_mm256_cmpeq_epi32(a, b)) != 0;
}

static inline uint64_t vi_min_of32(vint a) {
    uint32_t lanes[8];
    uint32_t least = UINT32_MAX;
    vi_store(lanes, a);
    for (int i = 0; i < 8; i++) least = lanes[i] < least ? lanes[i] : least;
    return least;
}

static inline uint64_t vi_min_of64(vint a) {
    uint64_t lanes[4];
    uint64_t least = UINT64_MAX;
    vi_store(lanes, a);
    for (int i = 0; i < 4; i++) least = lanes[i] < least ? lanes[i] : least;
    return least;
}

// COUNTS + 1 where A < LIMIT; no sign bits set. A true comparison is -1.
static inline vint vi_count_below32(vint counts, vint a, vint limit) {
    return _mm256_sub_epi32(counts, _mm256_cmpgt_epi32(limit, a));
}

static inline vint vi_count_below64(vint counts, vint a, vint limit) {
    return _mm256_sub_epi64(counts, _mm256_cmpgt_epi64(limit, a));
}

// COUNTS + 1 where A and MASK share a bit and the magnitude of X is below END.
static inline vint vi_count_shared_below32(vint counts, vint x, vint a, vint mask, vint end) {
    const __m256i finite = _mm256_cmpgt_epi32(end, _mm256_and_si256(x, _mm256_set1_epi32(INT32_MAX)));
    const __m256i none = _mm256_cmpeq_epi32(_mm256_and_si256(a, mask), _mm256_setzero_si256());
    return _mm256_sub_epi32(counts, _mm256_andnot_si256(none, finite));
}

// COUNTS + 1 where A and MASK share a bit.
static inline vint vi_count_shared32(vint counts, vint a, vint mask) {
    const __m256i none = _mm256_cmpeq_epi32(_mm256_and_si256(a, mask), _mm256_setzero_si256());
    return _mm256_sub_epi32(counts, _mm256_andnot_si256(none, _mm256_set1_epi32(-1)));
}

static inline bool vi_all_share32(vint a, vint mask) {
    const __m256i none = _mm256_cmpeq_epi32(_mm256_and_si256(a, mask), _mm256_setzero_si256());
    return _mm256_testz_si256(none, none) != 0;
}

static inline vfloat vf_through_half(vfloat a) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

static inline vint widen_bits(const void *at) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(at));
}
static inline vfloat load_f16(const void *at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(at));
}
static inline vfloat bf16_of_bits(vint bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}

// Bit L: END[L] is above X.
static inline uint32_t limits_above(const uint64_t end[KEEL_LIMIT_SLOTS], uint64_t x) {
    uint32_t above = 0;
    for (unsigned l = 0; l < KEEL_LIMIT_SLOTS; l++) above |= (uint32_t)(end[l] > x) << l;
    return above;
}

// A count over the vectors of a block, in lanes of 32 bits and of 16, which are enough for it.
typedef struct vtally {
    vint lanes32, lanes16;
} vtally;

static inline vtally tally_begin(void) {
    return (vtally){_mm256_setzero_si256(), _mm256_setzero_si256()};
}
// Elements below LIMIT; no sign bits set.
static inline void tally_below32(vtally *t, size_t row, vint a, vint limit) {
    (void)row;
    t->lanes32 = vi_count_below32(t->lanes32, a, limit);
}
static inline void tally_below16(vtally *t, size_t row, vint a, vint limit) {
    (void)row;
    t->lanes16 = _mm256_sub_epi16(t->lanes16, _mm256_cmpgt_epi16(limit, a));
}
static inline void tally_rows(vtally *t) {
    (void)t;
}
static inline uint64_t tally_total(const vtally *t) {
    return vi_sum32(t->lanes32) + vi_sum32(vi_and(t->lanes16, vi_set32(0xffff))) +
           vi_sum32(vi_high_to_low16(t->lanes16));
}

#include "probe/stats_vector.h"

void keel_stats_avx2(keel_stats_stream *stream, keel_stats *stats, const void *data, size_t n) {
    keel_observe_blocks(stream, stats, data, n, block_elements(stream->dtype), observe_block);
}
