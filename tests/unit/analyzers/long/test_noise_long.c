// A million steps of each kind of noise at each scale.
#include "tests/unit/analyzers/noise_runs.h"

static void a_million_steps_each(void **unused) {
    (void)unused;
    keep_still(1000000, 1, 101);
    keep_still(1000000, 1e-30, 102);
    keep_still(1000000, 1e30, 103);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_million_steps_each)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
