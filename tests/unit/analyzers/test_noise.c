// Noise, walks and waves are not incidents. Full lengths: long/test_noise_long.c.
#include "tests/unit/analyzers/noise_runs.h"

static void at_scale_one(void **unused) {
    (void)unused;
    keep_still(200000, 1, 11);
}

static void at_tiny_and_huge_scales(void **unused) {
    (void)unused;
    keep_still(100000, 1e-30, 12);
    keep_still(100000, 1e30, 13);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(at_scale_one), cmocka_unit_test(at_tiny_and_huge_scales)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
