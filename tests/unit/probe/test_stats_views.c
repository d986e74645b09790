// What users see: every op's view, and NaN where it must be.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "probe/stats.h"

static keel_stats observe(uint32_t fields, const float *x, size_t n) {
    const keel_stats_params params = {.fields = fields, .eps = 1e-8, .scale = 1};
    keel_stats s;
    keel_stats_clear(&s);
    keel_stats_observe(&s, &params, KEEL_F32, x, n);
    return s;
}

static void assert_view(const keel_stats *s, keel_op op, double expected) {
    const double got = keel_stats_view(s, op);
    if (isnan(expected) ? isnan(got) : fabs(got - expected) <= 1e-12 * fabs(expected)) return;
    print_error("%s: %.17g, expected %.17g\n", keel_op_get(op)->name, got, expected);
    fail();
}

static void test_healthy(void **state) {
    (void)state;
    const float x[] = {3, -4, 0, 0x1p-26f, 70000, 0x1p-20f, 1, 0x1p-149f};
    keel_stats s = observe(KEEL_FIELDS_ALL, x, 8);
    const double sum = 3 - 4 + 0x1p-26 + 70000 + 0x1p-20 + 1;
    const double sum_sq = 9 + 16 + 0x1p-52 + 70000.0 * 70000 + 0x1p-40 + 1;
    assert_view(&s, KEEL_OP_norm, sqrt(sum_sq));
    assert_view(&s, KEEL_OP_norm_finite, sqrt(sum_sq));
    assert_view(&s, KEEL_OP_max, 70000);
    assert_view(&s, KEEL_OP_min, -4);
    assert_view(&s, KEEL_OP_abs_min, 0x1p-149);
    assert_view(&s, KEEL_OP_mean, sum / 8);
    assert_view(&s, KEEL_OP_std, sqrt(sum_sq / 8 - sum / 8 * (sum / 8)));
    assert_view(&s, KEEL_OP_rms, sqrt(sum_sq / 8));
    assert_view(&s, KEEL_OP_zeros, 1.0 / 8);
    assert_view(&s, KEEL_OP_near_zero, 2.0 / 8);
    assert_view(&s, KEEL_OP_subnormals, 1);
    assert_view(&s, KEEL_OP_nans, 0);
    assert_view(&s, KEEL_OP_infs, 0);
    assert_view(&s, KEEL_OP_underflow, 2.0 / 7);
    assert_view(&s, KEEL_OP_fp16_subnormal, 1.0 / 7);
    assert_view(&s, KEEL_OP_overflow, 1.0 / 7);
    assert_view(&s, KEEL_OP_not_bf16, 2);
    assert_view(&s, KEEL_OP_not_tf32, 2);
    assert_view(&s, KEEL_OP_not_fp16, 3);
    assert_view(&s, KEEL_OP_rank_nonfinite, NAN);
    assert_view(&s, KEEL_OP_norm_low, NAN); // before ranks are sealed
    assert_view(&s, KEEL_OP_rank_low, NAN);
    assert_view(&s, KEEL_OP_log_norm_mean, NAN);
    assert_view(&s, KEEL_OP_log_norm_std, NAN);
    keel_stats_seal_rank(&s, 3, 0, 1);
    assert_view(&s, KEEL_OP_norm_low, sqrt(sum_sq));
    assert_view(&s, KEEL_OP_norm_high, sqrt(sum_sq));
    assert_view(&s, KEEL_OP_rank_low, 3);
    assert_view(&s, KEEL_OP_rank_high, 3);
    assert_view(&s, KEEL_OP_log_norm_mean, log(sqrt(sum_sq)));
    assert_view(&s, KEEL_OP_log_norm_std, 0);
    assert_view(&s, KEEL_OP_replica_residual, 0);
}

// A sick tensor must not look healthy.
static void test_sick(void **state) {
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++) {
        const float x[] = {3, bad[i], 4, 0};
        keel_stats s = observe(KEEL_FIELDS_ALL, x, 4);
        keel_stats_seal_rank(&s, 5, 0, 1);
        assert_view(&s, KEEL_OP_norm, NAN);
        assert_view(&s, KEEL_OP_mean, NAN);
        assert_view(&s, KEEL_OP_std, NAN);
        assert_view(&s, KEEL_OP_rms, NAN);
        assert_view(&s, KEEL_OP_norm_finite, 5);
        assert_view(&s, KEEL_OP_max, 4);
        assert_view(&s, KEEL_OP_zeros, 0.25);
        assert_view(&s, KEEL_OP_underflow, 0);
        assert_view(&s, KEEL_OP_nans, i == 0);
        assert_view(&s, KEEL_OP_infs, i != 0);
        assert_view(&s, KEEL_OP_rank_nonfinite, 5);
    }
    const keel_stats nothing_finite = observe(KEEL_FIELDS_ALL, bad, 3);
    const keel_op undefined[] = {KEEL_OP_norm, KEEL_OP_norm_finite, KEEL_OP_max,       KEEL_OP_min,
                                 KEEL_OP_std,  KEEL_OP_abs_min,     KEEL_OP_underflow, KEEL_OP_mean};
    for (size_t i = 0; i < 8; i++) assert_view(&nothing_finite, undefined[i], NAN);
    assert_view(&nothing_finite, KEEL_OP_infs, 2);
}

static void test_zeros_alone(void **state) {
    (void)state;
    const float x[] = {0, -0.0f, 0};
    const keel_stats s = observe(KEEL_FIELDS_ALL, x, 3);
    assert_view(&s, KEEL_OP_zeros, 1);
    assert_view(&s, KEEL_OP_near_zero, 1);
    assert_view(&s, KEEL_OP_norm, 0);
    assert_view(&s, KEEL_OP_std, 0);
    assert_view(&s, KEEL_OP_max, 0);
    assert_view(&s, KEEL_OP_abs_min, NAN);
    assert_view(&s, KEEL_OP_underflow, NAN); // of no non-zero value
    assert_false(signbit(s.min));
}

// An op shows a value only where its group was observed.
static void test_groups(void **state) {
    (void)state;
    const float x[] = {1, 2, 3};
    const uint32_t asked[] = {KEEL_FIELDS_FLAGS, KEEL_FIELDS_CHECKSUM, KEEL_FIELDS_BASE, KEEL_FIELDS_HALF,
                              KEEL_FIELDS_PRECISION};
    for (size_t i = 0; i < 5; i++) {
        const keel_stats s = observe(asked[i], x, 3);
        assert_int_equal(s.n, 3);
        assert_true(s.fields & KEEL_FIELDS_FLAGS); // on every observation
        for (unsigned op = 0; op < KEEL_OP_COUNT; op++) {
            const keel_op_info *info = keel_op_get((keel_op)op);
            if (s.fields & info->fields) continue;
            assert_true(isnan(keel_stats_view(&s, (keel_op)op)));
            assert_true(keel_stats_view_count(&s, (keel_op)op) == KEEL_NOT_COLLECTED);
        }
        assert_view(&s, KEEL_OP_nans, 0);
        assert_view(&s, KEEL_OP_max, i < 2 ? NAN : 3);
    }
    const keel_stats none = observe(0, x, 3);
    assert_int_equal(none.n, 0);
    assert_int_equal(none.fields, 0);
}

static void test_names(void **state) {
    (void)state;
    for (unsigned op = 0; op < KEEL_OP_COUNT; op++) {
        const keel_op_info *info = keel_op_get((keel_op)op);
        assert_non_null(info);
        assert_int_equal(keel_op_find(info->name), op);
        assert_true(strlen(info->doc) > 0);
    }
    assert_int_equal(keel_op_find("no such op"), KEEL_OP_COUNT);
    assert_null(keel_op_get(KEEL_OP_COUNT));
    assert_true(keel_op_get(KEEL_OP_nans)->is_count && !keel_op_get(KEEL_OP_zeros)->is_count);
    assert_string_equal(keel_isa_name(KEEL_ISA_SCALAR), "scalar");
    assert_non_null(keel_stats_kernel_get(keel_isa_best()));
    assert_null(keel_stats_kernel_get(KEEL_ISA_COUNT));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_healthy), cmocka_unit_test(test_sick),  cmocka_unit_test(test_zeros_alone),
        cmocka_unit_test(test_groups),  cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
