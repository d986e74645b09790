// Sums of every kernel against long double, where naive ones fail.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "probe/stats.h"

static uint64_t random_state = 7;

static double uniform(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(random_state >> 11) * 0x1p-53;
}

static double normal(void) {
    return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform());
}

typedef struct exact {
    long double magnitudes, sum, sum_sq, m2;
} exact;

static exact exact_of_floats(const float *x, size_t n) {
    exact e = {0};
    for (size_t i = 0; i < n; i++) {
        e.magnitudes += fabsl((long double)x[i]);
        e.sum += (long double)x[i];
        e.sum_sq += (long double)x[i] * (long double)x[i];
    }
    const long double mean = e.sum / (long double)n;
    for (size_t i = 0; i < n; i++) e.m2 += ((long double)x[i] - mean) * ((long double)x[i] - mean);
    return e;
}

static void assert_within(const char *what, double got, long double expected, long double tolerance) {
    const long double error = fabsl((long double)got - expected);
    if (error <= tolerance) return;
    print_error("%s: %.17g, expected %.17Lg, error %Lg over %Lg\n", what, got, expected, error, tolerance);
    fail();
}

static void check_floats(const float *x, size_t n) {
    const exact e = exact_of_floats(x, n);
    const keel_stats_params params = {.fields = KEEL_FIELDS_BASE, .eps = 1e-8, .scale = 1};
    for (unsigned isa = 0; isa < KEEL_ISA_COUNT; isa++) {
        keel_stats_kernel *kernel = keel_stats_kernel_get((keel_isa)isa);
        if (!kernel) continue;
        keel_stats s;
        keel_stats_clear(&s);
        keel_stats_observe_with(kernel, &s, &params, KEEL_F32, x, n);
        assert_within("sum", s.sum, e.sum, 1e-6L * e.magnitudes);
        assert_within("sum_sq", s.sum_sq, e.sum_sq, 1e-6L * e.sum_sq);
        assert_within("m2", s.m2, e.m2, 1e-6L * e.m2 + 1e-30L * e.sum_sq);
    }
}

#if defined(__SANITIZE_ADDRESS__)
#define SLOW_BUILD 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLOW_BUILD 1
#endif
#endif
#ifdef SLOW_BUILD
enum { MANY = 1 << 20 }; // the same paths in a build that takes minutes for more
#else
enum { MANY = 1 << 24 };
#endif

static float *many; // MANY floats, shared by the tests

static int allocate(void **state) {
    (void)state;
    many = malloc(MANY * sizeof *many);
    return many ? 0 : -1;
}

static int release(void **state) {
    (void)state;
    free(many);
    return 0;
}

static void test_ordinary(void **state) {
    (void)state;
    for (size_t i = 0; i < MANY; i++) many[i] = (float)(0.02 * normal());
    check_floats(many, MANY);
    check_floats(many, 100003);
}

// All of one sign, so that a running float sum loses a little at every step and always in the same direction.
static void test_one_sign(void **state) {
    (void)state;
    for (size_t i = 0; i < MANY; i++) many[i] = 0.1f;
    check_floats(many, MANY);
    for (size_t i = 0; i < MANY; i++) many[i] = i % 2 ? 0.1f : -0.1f;
    check_floats(many, MANY);
    for (size_t i = 0; i < MANY; i++) many[i] = (float)uniform();
    check_floats(many, MANY);
}

static void test_offset(void **state) {
    (void)state;
    const double offsets[] = {10, 1e3, 1e4};
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < MANY; i++) many[i] = (float)(3 + 3 / offsets[k] * normal());
        check_floats(many, MANY);
        check_floats(many, 5000);
    }
}

// The mean changes on the way: blocks about 5, about -2000, about 0.
static void test_drift(void **state) {
    (void)state;
    const size_t n = 1 << 20;
    for (size_t i = 0; i < n; i++)
        many[i] = (float)(i < n / 3 ? 5 + 1e-3 * normal() : i < n / 2 ? -2000 + normal() : 1e-2 * normal());
    check_floats(many, n);
}

static void test_outliers_first(void **state) {
    (void)state;
    const size_t n = 1 << 20;
    const float outliers[] = {1e30f, -3e37f, 1e10f, 65504};
    for (size_t k = 0; k < 4; k++) {
        for (size_t i = 0; i < n; i++) many[i] = (float)(1 + 1e-3 * normal());
        many[0] = outliers[k];
        check_floats(many, n);
    }
    // Heavy tails throughout: magnitudes from e^-30 to e^30.
    for (size_t i = 0; i < n; i++) many[i] = (float)copysign(exp(10 * normal()), uniform() - 0.5);
    check_floats(many, n);
}

// Squares that are not floats: too great, too small, both.
static void test_far_squares(void **state) {
    (void)state;
    const size_t n = 1 << 18;
    const double magnitudes[] = {1e38, 1e25, 1e-16, 1e-20, 1e-30, 1e-40};
    for (size_t k = 0; k < 6; k++) {
        for (size_t i = 0; i < n; i++) many[i] = (float)(magnitudes[k] * (uniform() - 0.3));
        check_floats(many, n);
    }
    for (size_t i = 0; i < n; i++) many[i] = (float)(pow(10, 70 * uniform() - 35) * (i % 2 ? 1 : -1));
    check_floats(many, n);
}

// 2^30 values in calls of MANY: no worse than one call.
static void test_two_to_thirty(void **state) {
    (void)state;
    for (size_t i = 0; i < MANY; i++) many[i] = (float)(1 + 0.5 * normal());
    const exact e = exact_of_floats(many, MANY);
    const keel_stats_params params = {.fields = KEEL_FIELDS_BASE, .eps = 1e-8, .scale = 1};
    keel_stats s;
    keel_stats_clear(&s);
    const uint64_t calls = (UINT64_C(1) << 30) / (1 << 24);
    for (uint64_t call = 0; call < calls; call++) keel_stats_observe(&s, &params, KEEL_F32, many, MANY);
    const long double times = (long double)calls;
    assert_int_equal(s.n, calls * MANY);
    assert_within("sum", s.sum, times * e.sum, 1e-6L * times * e.magnitudes);
    assert_within("sum_sq", s.sum_sq, times * e.sum_sq, 1e-6L * times * e.sum_sq);
    assert_within("m2", s.m2, times * e.m2, 1e-6L * times * e.m2);
}

// Doubles up to 1e308 and down to 1e-308: right norms, by the exponent.
static void test_doubles(void **state) {
    (void)state;
    enum { N = 3001 };
    static double x[N];
    const double magnitudes[] = {1e308, 1e200, 1, 1e-150, 1e-200, 1e-307, 4e-320};
    const keel_stats_params params = {.fields = KEEL_FIELDS_BASE, .eps = 1e-8, .scale = 1};
    for (size_t k = 0; k < 7; k++) {
        const double unit = magnitudes[k];
        for (size_t offset = 0; offset < 2; offset++) {
            long double sum = 0, sum_sq = 0, m2 = 0;
            for (size_t i = 0; i < N; i++) {
                x[i] = unit * (offset ? 1 + 1e-5 * uniform() : (uniform() - 0.5) / 30);
                sum += (long double)x[i] / (long double)unit;
                sum_sq += (long double)x[i] / (long double)unit * ((long double)x[i] / (long double)unit);
            }
            for (size_t i = 0; i < N; i++) {
                const long double d = (long double)x[i] / (long double)unit - sum / N;
                m2 += d * d;
            }
            for (unsigned isa = 0; isa < KEEL_ISA_COUNT; isa++) {
                keel_stats_kernel *kernel = keel_stats_kernel_get((keel_isa)isa);
                if (!kernel) continue;
                keel_stats s;
                keel_stats_clear(&s);
                keel_stats_observe_with(kernel, &s, &params, KEEL_F64, x, N);
                const long double scale = (long double)unit;
                const double norm = keel_stats_view(&s, KEEL_OP_norm);
                if (unit == 1e308 && offset)
                    assert_true(isinf(norm)); // beyond the doubles indeed
                else
                    assert_within("norm", norm, scale * sqrtl(sum_sq), 1e-13L * scale * sqrtl(sum_sq) + 5e-324L);
                assert_within("rms", keel_stats_view(&s, KEEL_OP_rms), scale * sqrtl(sum_sq / N),
                              1e-13L * scale * sqrtl(sum_sq / N) + 5e-324L);
                assert_within("mean", keel_stats_view(&s, KEEL_OP_mean), scale * sum / N, 1e-13L * scale + 5e-324L);
                assert_within("std", keel_stats_view(&s, KEEL_OP_std), scale * sqrtl(m2 / N),
                              1e-8L * scale * sqrtl(m2 / N) + 5e-324L);
            }
        }
    }
}

// A program that was started with subnormals off, or another rounding, sees the same numbers.
static void test_floating_point_state(void **state) {
    (void)state;
    float x[100];
    for (size_t i = 0; i < 100; i++) x[i] = i % 3 ? 0x1p-140f * (float)i : 1.0f / (float)(i + 1);
    const keel_stats_params params = {.fields = KEEL_FIELDS_ALL, .eps = 1e-8, .scale = 1};
    keel_stats plain, odd;
    keel_stats_clear(&plain);
    keel_stats_clear(&odd);
    keel_stats_observe(&plain, &params, KEEL_F32, x, 100);
    const unsigned before = __builtin_ia32_stmxcsr();
    const unsigned strange = 0x1f80 | 0x8040 | 0x4000; // flush, subnormals are zero, round up
    __builtin_ia32_ldmxcsr(strange);
    keel_stats_observe(&odd, &params, KEEL_F32, x, 100);
    const unsigned after = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before);
    assert_int_equal(after & ~0x3fu, strange); // handed back
    assert_memory_equal(&plain, &odd, sizeof plain);
    assert_int_equal(plain.subnormals, 66);
    assert_int_equal(plain.zeros, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ordinary),
        cmocka_unit_test(test_one_sign),
        cmocka_unit_test(test_offset),
        cmocka_unit_test(test_drift),
        cmocka_unit_test(test_outliers_first),
        cmocka_unit_test(test_far_squares),
        cmocka_unit_test(test_two_to_thirty),
        cmocka_unit_test(test_doubles),
        cmocka_unit_test(test_floating_point_state),
    };
    return cmocka_run_group_tests(tests, allocate, release);
}
