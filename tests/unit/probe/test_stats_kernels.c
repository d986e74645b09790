// Every kernel against the scalar one: all dtypes, short lengths, misaligned pointers, special values, thresholds.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe/stats.h"

static uint64_t random_state = 1;

static uint64_t random_bits(void) { // xorshift64*
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * UINT64_C(2685821657736338717);
}

static double uniform(void) {
    return (double)(random_bits() >> 11) * 0x1p-53;
}

static double normal(void) {
    return sqrt(-2 * log(uniform() + 1e-300)) * cos(6.283185307179586 * uniform());
}

static void store(keel_dtype dtype, unsigned char *at, double value) {
    const float narrow = (float)value;
    uint16_t half;
    switch (dtype) {
    case KEEL_F32:
        memcpy(at, &narrow, sizeof narrow);
        break;
    case KEEL_F64:
        memcpy(at, &value, sizeof value);
        break;
    case KEEL_F16:
        half = keel_f16_from_f32(narrow);
        memcpy(at, &half, sizeof half);
        break;
    default:
        half = keel_bf16_from_f32(narrow);
        memcpy(at, &half, sizeof half);
        break;
    }
}

// How a test tensor is filled.
typedef enum fill {
    FILL_NORMAL,
    FILL_ANY_BITS, // NaN of every payload, infinities, subnormals
    FILL_SPECIAL,  // mostly +-0, subnormals, infinities, NaN, extremes
    FILL_HUGE,     // near the greatest finite
    FILL_TINY,     // near the least normal
    FILL_OFFSET,   // mean / std = 1e4
    FILL_CONSTANT,
    FILL_SPARSE,   // mostly zeros
    FILL_GRADIENT, // log-uniform from 1e-12 to 1
    FILL_INFINITE, // nothing finite
    FILL_COUNT
} fill;

static const double specials[] = {0.0,     -0.0,     1.0,      -1.0,     65504.0,  65519.0,    65520.0,   -65520.0,
                                  0x1p-24, 0x1p-25,  -0x1p-25, 0x1p-14,  0x1p-126, 0x1p-127,   -0x1p-149, 0x1p-133,
                                  FLT_MAX, -FLT_MAX, DBL_MAX,  -DBL_MAX, DBL_MIN,  -0x1p-1074, INFINITY,  -INFINITY,
                                  NAN,     1e-8,     -1e-8,    0x1p-26,  0x1.8p-15};

static double pick(fill how, keel_dtype dtype) {
    static const double greatest[] = {[KEEL_F32] = 3e38, [KEEL_F64] = 1.7e308, [KEEL_F16] = 65000, [KEEL_BF16] = 3e38};
    static const double least[] = {[KEEL_F32] = 2e-38, [KEEL_F64] = 3e-308, [KEEL_F16] = 1e-4, [KEEL_BF16] = 2e-38};
    switch (how) {
    case FILL_NORMAL:
        return normal();
    case FILL_SPECIAL:
        return specials[random_bits() % (sizeof specials / sizeof *specials)];
    case FILL_HUGE:
        return (uniform() - 0.5) * 2 * greatest[dtype];
    case FILL_TINY:
        return (uniform() - 0.5) * 4 * least[dtype];
    case FILL_OFFSET:
        return 3 + 3e-4 * normal();
    case FILL_CONSTANT:
        return 0.1;
    case FILL_SPARSE:
        return random_bits() % 50 ? 0.0 : normal();
    case FILL_GRADIENT:
        return copysign(exp(-27.6 * uniform()), uniform() - 0.5);
    case FILL_INFINITE:
        return random_bits() % 2 ? INFINITY : -INFINITY;
    default:
        return 0;
    }
}

static void fill_tensor(fill how, keel_dtype dtype, unsigned char *at, size_t n) {
    const size_t size = keel_dtype_size(dtype);
    for (size_t i = 0; i < n; i++) {
        const uint64_t bits = random_bits();
        if (how == FILL_ANY_BITS)
            memcpy(at + i * size, &bits, size);
        else
            store(dtype, at + i * size, pick(how, dtype));
    }
}

static keel_stats observe(keel_stats_kernel *kernel, const keel_stats_params *params, keel_dtype dtype,
                          const unsigned char *at, size_t n) {
    keel_stats stats;
    keel_stats_clear(&stats);
    keel_stats_observe_with(kernel, &stats, params, dtype, at, n);
    return stats;
}

static void assert_close(double a, double b, double tolerance) {
    if (fabs(a - b) <= tolerance) return;
    print_error("%.17g and %.17g differ by more than %g\n", a, b, tolerance);
    fail();
}

// To the bit, but for the sums: of doubles within 1e-12 of the sum of magnitudes, of the others within what float sums
// of a few elements give.
static void assert_same(keel_dtype dtype, const keel_stats *a, const keel_stats *b) {
    assert_int_equal(a->fields, b->fields);
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->nans, b->nans);
    assert_int_equal(a->pos_infs, b->pos_infs);
    assert_int_equal(a->neg_infs, b->neg_infs);
    assert_int_equal(a->checksum, b->checksum);
    assert_int_equal(a->zeros, b->zeros);
    assert_int_equal(a->near_zeros, b->near_zeros);
    assert_int_equal(a->subnormals, b->subnormals);
    assert_int_equal(a->fp16_flush, b->fp16_flush);
    assert_int_equal(a->fp16_subnormal, b->fp16_subnormal);
    assert_int_equal(a->fp16_overflow, b->fp16_overflow);
    assert_int_equal(a->not_bf16, b->not_bf16);
    assert_int_equal(a->not_fp16, b->not_fp16);
    assert_int_equal(a->not_tf32, b->not_tf32);
    assert_memory_equal(&a->min, &b->min, sizeof a->min);
    assert_memory_equal(&a->max, &b->max, sizeof a->max);
    assert_memory_equal(&a->abs_min, &b->abs_min, sizeof a->abs_min);
    assert_int_equal(a->exponent, b->exponent);
    const double tolerance = dtype == KEEL_F64 ? 1e-12 : 3e-7;
    const double magnitudes = sqrt((double)a->n * a->sum_sq); // at least the sum of magnitudes
    assert_close(a->sum, b->sum, tolerance * magnitudes);
    assert_close(a->sum_sq, b->sum_sq, tolerance * a->sum_sq);
    assert_close(a->m2, b->m2, 1e-6 * a->m2 + 1e-25 * a->sum_sq);
}

static const uint32_t field_sets[] = {
    KEEL_FIELDS_FLAGS,
    KEEL_FIELDS_BASE,
    KEEL_FIELDS_CHECKSUM,
    KEEL_FIELDS_BASE | KEEL_FIELDS_HALF,
    KEEL_FIELDS_BASE | KEEL_FIELDS_PRECISION,
    KEEL_FIELDS_ALL,
};

static void compare(keel_stats_kernel *kernel, keel_dtype dtype, const unsigned char *at, size_t n, double eps,
                    double scale) {
    keel_stats_kernel *scalar = keel_stats_kernel_get(KEEL_ISA_SCALAR);
    for (size_t f = 0; f < sizeof field_sets / sizeof *field_sets; f++) {
        const keel_stats_params params = {.fields = field_sets[f], .eps = eps, .scale = scale};
        const keel_stats expected = observe(scalar, &params, dtype, at, n);
        const keel_stats got = observe(kernel, &params, dtype, at, n);
        assert_same(dtype, &expected, &got);
    }
}

static void compare_isa(keel_isa isa) {
    keel_stats_kernel *kernel = keel_stats_kernel_get(isa);
    if (!kernel) {
        print_message("this CPU lacks %s\n", keel_isa_name(isa));
        skip();
    }
    enum { LONGEST = 20000 };
    unsigned char *memory = malloc(LONGEST * sizeof(double) + 64);
    assert_non_null(memory);
    for (unsigned dtype = 0; dtype < KEEL_DTYPE_COUNT; dtype++) {
        const size_t size = keel_dtype_size((keel_dtype)dtype);
        for (unsigned how = 0; how < FILL_COUNT; how++) {
            for (size_t n = 0; n <= 257; n++) {
                // An allocation of its own length, so that AddressSanitizer sees a read past the end.
                const size_t shift = n % 8;
                unsigned char *exact = malloc(n * size + shift + 1);
                assert_non_null(exact);
                fill_tensor((fill)how, (keel_dtype)dtype, exact + shift, n);
                memmove(exact + shift + 1, exact + shift, n * size);
                compare(kernel, (keel_dtype)dtype, exact + shift + 1, n, 1e-8, 1);
                free(exact);
            }
            for (size_t shift = 0; shift < 8; shift++) {
                fill_tensor((fill)how, (keel_dtype)dtype, memory + shift, LONGEST);
                compare(kernel, (keel_dtype)dtype, memory + shift, 4096 - shift, 1e-3, 1024);
                compare(kernel, (keel_dtype)dtype, memory + shift, LONGEST - 77 * shift, 0, 0x1p-20);
            }
        }
    }
    free(memory);
}

static void test_avx2(void **state) {
    (void)state;
    compare_isa(KEEL_ISA_AVX2);
}

static void test_avx512(void **state) {
    (void)state;
    compare_isa(KEEL_ISA_AVX512);
}

// Values of a range of magnitudes, some of them zeros: which limits a block must be counted below changes from block to
// block.
static void fill_range(keel_dtype dtype, unsigned char *at, size_t n) {
    static const double bounds[] = {1e-45, 1e-40, 1e-30, 3e-9, 2e-8, 4e-8, 1e-5, 7e-5, 1e-2, 1, 1e5};
    enum { BOUNDS = sizeof bounds / sizeof *bounds };
    const size_t low = random_bits() % BOUNDS, span = random_bits() % (BOUNDS - low);
    const double from = log(bounds[low]), to = log(bounds[low + span]);
    const double zeros = random_bits() % 3 ? 0 : uniform() * 1.2;
    for (size_t i = 0; i < n; i++) {
        const double magnitude = uniform() < zeros ? 0 : exp(from + uniform() * (to - from));
        store(dtype, at + i * keel_dtype_size(dtype), copysign(magnitude, uniform() - 0.5));
    }
}

static void test_changing_blocks(void **state) {
    (void)state;
    enum { PIECE = 2048, PIECES = 150, N = PIECE * PIECES };
    unsigned char *memory = malloc(N * sizeof(double));
    assert_non_null(memory);
    for (unsigned dtype = 0; dtype < KEEL_DTYPE_COUNT; dtype++) {
        for (size_t p = 0, length; p < PIECES; p += length) { // a block of floats is two pieces, one of doubles one
            length = p + 1 < PIECES ? 1 + random_bits() % 2 : 1;
            fill_range((keel_dtype)dtype, memory + p * PIECE * keel_dtype_size((keel_dtype)dtype), length * PIECE);
        }
        for (unsigned isa = KEEL_ISA_SCALAR + 1; isa < KEEL_ISA_COUNT; isa++) {
            keel_stats_kernel *kernel = keel_stats_kernel_get((keel_isa)isa);
            if (!kernel) continue;
            compare(kernel, (keel_dtype)dtype, memory, N, 1e-8, 1);
            compare(kernel, (keel_dtype)dtype, memory, N, 1e-4, 4096);
        }
    }
    free(memory);
}

// One special value among ordinary ones, at every place of a block's head and tail.
static void test_lone_values(void **state) {
    (void)state;
    enum { N = 80 };
    unsigned char memory[N * sizeof(double)];
    for (unsigned isa = 0; isa < KEEL_ISA_COUNT; isa++) {
        keel_stats_kernel *kernel = keel_stats_kernel_get((keel_isa)isa);
        if (!kernel) continue;
        for (unsigned dtype = 0; dtype < KEEL_DTYPE_COUNT; dtype++) {
            const size_t size = keel_dtype_size((keel_dtype)dtype);
            for (size_t s = 0; s < sizeof specials / sizeof *specials; s++) {
                for (size_t place = 0; place < N; place++) {
                    fill_tensor(FILL_CONSTANT, (keel_dtype)dtype, memory, N);
                    store((keel_dtype)dtype, memory + place * size, specials[s]);
                    compare(kernel, (keel_dtype)dtype, memory, N, 1e-8, 1);
                }
            }
        }
    }
}

// The scalar kernel itself, against definitions written another way.
static void test_scalar(void **state) {
    (void)state;
    const float x[] = {1, -2, 0, -0.0f, NAN, INFINITY, -INFINITY, -INFINITY, 0x1p-149f, 1e-9f, 70000};
    const keel_stats_params params = {.fields = KEEL_FIELDS_ALL, .eps = 1e-8, .scale = 1};
    const keel_stats s = observe(keel_stats_kernel_get(KEEL_ISA_SCALAR), &params, KEEL_F32, (const void *)x, 11);
    assert_int_equal(s.n, 11);
    assert_int_equal(s.zeros, 2);
    assert_int_equal(s.near_zeros, 4);
    assert_int_equal(s.nans, 1);
    assert_int_equal(s.pos_infs, 1);
    assert_int_equal(s.neg_infs, 2);
    assert_int_equal(s.subnormals, 1);
    assert_true(s.min == -2 && s.max == 70000 && s.abs_min == 0x1p-149);
    assert_int_equal(s.fp16_flush, 2);
    assert_int_equal(s.fp16_subnormal, 0);
    assert_int_equal(s.fp16_overflow, 1);
    assert_int_equal(s.not_bf16, 3); // 2^-149, 1e-9, 70000
    assert_int_equal(s.not_tf32, 3);
    assert_int_equal(s.not_fp16, 3);
    assert_close(s.sum, 69999, 1e-6);
    assert_close(s.sum_sq, 4900000005.0, 1e-3);
    const double mean = 69999.0 / 7;
    assert_close(s.m2, 4900000005.0 - 7 * mean * mean, 1e-3);
}

// fp16 at every scale, against the rounding itself. y = x * scale is exact in double for a scale that is a power of
// two.
static double rounded_to_half(double y) {
    if (fabs(y) >= 65520) return INFINITY;
    const double ulp = fabs(y) < 0x1p-14 ? 0x1p-24 : ldexp(1, ilogb(y) - 10);
    return rint(y / ulp) * ulp;
}

static void test_half_thresholds(void **state) {
    (void)state;
    enum { N = 600 };
    for (unsigned isa = 0; isa < KEEL_ISA_COUNT; isa++) {
        keel_stats_kernel *kernel = keel_stats_kernel_get((keel_isa)isa);
        if (!kernel) continue;
        for (int power = -4; power <= 24; power++) {
            const double scale = ldexp(1, power);
            float x[N];
            uint64_t flush = 0, subnormal = 0, overflow = 0;
            static const double borders[] = {0x1p-25, 0x1p-24, 0x1.8p-25, 0x1p-14, 0x1p-14 - 0x1p-25, 65504, 65520, 1};
            for (size_t i = 0; i < N; i++) {
                // Around each border, tie included: three floats below to three above.
                float v = (float)(borders[i % 8] / scale);
                for (size_t k = 0; k < i / 8 % 7; k++) v = nextafterf(v, k < 3 ? 0 : INFINITY);
                if (i / 56 % 2) v = (float)(borders[i % 8] / scale * (0.5 + uniform()));
                x[i] = i % 3 ? v : -v;
                const double y = (double)x[i] * scale;
                const double rounded = fabs(rounded_to_half(y));
                flush += y != 0 && rounded == 0;
                subnormal += rounded > 0 && rounded < 0x1p-14;
                overflow += isinf(rounded) != 0;
            }
            const keel_stats_params params = {.fields = KEEL_FIELDS_HALF, .eps = 1e-8, .scale = scale};
            const keel_stats s = observe(kernel, &params, KEEL_F32, (const void *)x, N);
            assert_int_equal(s.fp16_flush, flush);
            assert_int_equal(s.fp16_subnormal, subnormal);
            assert_int_equal(s.fp16_overflow, overflow);
        }
    }
}

// A scale that is no power of two: the product has more digits than a double, so that it must not be rounded before it
// is compared.
static void test_half_odd_scale(void **state) {
    (void)state;
    for (int i = 0; i < 2000; i++) {
        const double scale = exp(60 * (uniform() - 0.5));
        const double border = i % 2 ? 0x1p-25 : 65520;
        double x = border / scale;
        for (int k = random_bits() % 4 ? 1 : 0; k > 0; k--) x = nextafter(x, i % 3 ? 0 : INFINITY);
        const double excess = fma(x, scale, -border); // its sign is exact
        const keel_stats_params params = {.fields = KEEL_FIELDS_HALF, .scale = scale};
        const keel_stats s = observe(keel_stats_kernel_get(keel_isa_best()), &params, KEEL_F64, (const void *)&x, 1);
        assert_int_equal(s.fp16_flush, i % 2 && excess <= 0);
        assert_int_equal(s.fp16_overflow, i % 2 == 0 && excess >= 0);
    }
}

static void test_half_needs_a_scale(void **state) {
    (void)state;
    const float x = 1e-9f;
    const double bad[] = {0, -1, NAN, INFINITY};
    for (size_t i = 0; i < 4; i++) {
        const keel_stats_params params = {.fields = KEEL_FIELDS_BASE | KEEL_FIELDS_HALF, .scale = bad[i]};
        keel_stats s;
        keel_stats_clear(&s);
        keel_stats_observe(&s, &params, KEEL_F32, &x, 1);
        assert_int_equal(s.fields, KEEL_FIELDS_BASE | KEEL_FIELDS_FLAGS);
        assert_true(isnan(keel_stats_view(&s, KEEL_OP_underflow)));
    }
}

static void test_precision(void **state) {
    (void)state;
    enum { N = 200000 };
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    for (unsigned isa = 0; isa < KEEL_ISA_COUNT; isa++) {
        keel_stats_kernel *kernel = keel_stats_kernel_get((keel_isa)isa);
        if (!kernel) continue;
        const keel_stats_params params = {.fields = KEEL_FIELDS_PRECISION, .scale = 1};
        for (size_t i = 0; i < N; i++) x[i] = keel_bf16_to_f32(keel_bf16_from_f32((float)normal()));
        for (size_t i = 0; i < 70; i++) x[1000 * i] = 1.2345678f; // no format holds it
        keel_stats s = observe(kernel, &params, KEEL_F32, (const void *)x, N);
        assert_int_equal(s.not_bf16, 70);
        assert_int_equal(s.not_tf32, 70);

        for (size_t i = 0; i < N; i++) x[i] = 1.2345678f;
        s = observe(kernel, &params, KEEL_F32, (const void *)x, 65535);
        assert_int_equal(s.not_fp16, 65535);
        keel_stats_observe_with(kernel, &s, &params, KEEL_F32, x, 1);
        assert_int_equal(s.not_fp16, 65536);
        keel_stats_observe_with(kernel, &s, &params, KEEL_F32, x, N);
        assert_int_equal(s.not_bf16, 65536);
        assert_int_equal(s.not_fp16, 65536);
        assert_int_equal(s.not_tf32, 65536);
        assert_int_equal(s.n, 65536 + N);
        keel_stats both = s;
        keel_stats_merge(&both, &s);
        assert_int_equal(both.not_bf16, 65536);
    }
    free(x);
}

// Every value of the 16-bit formats through every kernel.
static void test_all_halves(void **state) {
    (void)state;
    uint16_t *x = malloc(65536 * sizeof *x);
    assert_non_null(x);
    for (uint32_t i = 0; i < 65536; i++) x[i] = (uint16_t)i;
    const keel_dtype dtypes[] = {KEEL_F16, KEEL_BF16};
    for (unsigned isa = 1; isa < KEEL_ISA_COUNT; isa++) {
        keel_stats_kernel *kernel = keel_stats_kernel_get((keel_isa)isa);
        for (size_t d = 0; kernel && d < 2; d++) {
            static const double scales[] = {1, 0.3, 65536, 1e-9, 1e12};
            for (size_t k = 0; k < sizeof scales / sizeof *scales; k++)
                compare(kernel, dtypes[d], (const void *)x, 65536, 1e-8 * scales[k], scales[k]);
            const keel_stats_params params = {.fields = KEEL_FIELDS_BASE, .scale = 1};
            const keel_stats s = observe(kernel, &params, dtypes[d], (const void *)x, 65536);
            assert_int_equal(s.zeros, 2);
            assert_int_equal(s.pos_infs, 1);
            assert_int_equal(s.neg_infs, 1);
            assert_int_equal(s.subnormals, d == 0 ? 2 * 1023 : 2 * 127);
            assert_int_equal(s.nans, d == 0 ? 2 * 1023 : 2 * 127);
            assert_true(s.max == (d == 0 ? 65504.0 : (double)keel_bf16_to_f32(0x7f7f)));
        }
    }
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalar),         cmocka_unit_test(test_avx2),
        cmocka_unit_test(test_avx512),         cmocka_unit_test(test_changing_blocks),
        cmocka_unit_test(test_lone_values),    cmocka_unit_test(test_half_thresholds),
        cmocka_unit_test(test_half_odd_scale), cmocka_unit_test(test_half_needs_a_scale),
        cmocka_unit_test(test_precision),      cmocka_unit_test(test_all_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
