#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "probe/stats.h"
#include "tools/bench_stats.h"

static void test_measures(void **state) {
    (void)state;
    for (int dtype = 0; dtype < KEEL_DTYPE_COUNT; dtype++) {
        keel_bench_stats_result result = {0};
        assert_int_equal(keel_bench_stats(100003, (keel_dtype)dtype, KEEL_FIELDS_FLAGS, &result), KEEL_OK);
        assert_true(result.read_gbps > 0 && result.stats_gbps > 0);
        assert_true(result.ratio > 0);
    }
}

static void test_nothing_to_measure(void **state) {
    (void)state;
    keel_bench_stats_result result;
    assert_int_equal(keel_bench_stats(3, KEEL_F32, KEEL_FIELDS_BASE, &result), KEEL_ERR_USAGE);
    assert_int_equal(keel_bench_stats(0, KEEL_F16, KEEL_FIELDS_BASE, &result), KEEL_ERR_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measures),
        cmocka_unit_test(test_nothing_to_measure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
