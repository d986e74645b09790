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

// Logarithms of gradient norms wander: few values of a young run are far fewer that tell of their spread. SPIKE: what
// the last norm is multiplied by. Returns the runs with a warning.
static size_t young_runs(uint64_t runs, double correlation, double spike, uint64_t seed) {
    enum { STEPS = 200 };
    size_t told = 0;
    for (uint64_t i = 0; i < runs; i++) {
        synthetic_run *run = malloc(sizeof *run);
        assert_non_null(run);
        run_init(run);
        keel_analysis *analysis = analysis_of(run);
        uint64_t random = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) + i * UINT64_C(0xd1342543de82ef95);
        double x = random_normal(&random);
        for (uint64_t step = 1; step <= STEPS; step++) {
            x = correlation * x + sqrt(1 - correlation * correlation) * random_normal(&random);
            run_step(run, step);
            run_set(run, LOSS, 2 + 0.02 * random_normal(&random));
            run_set(run, GRAD_NORM, exp(0.25 * x) * (step == STEPS ? spike : 1));
            run_set(run, LR, 1e-3);
            judge(analysis, run);
        }
        told += count_at_least(analysis, KEEL_WARNING) > 0;
        keel_analysis_close(analysis);
        free(run);
    }
    return told;
}

static void young_and_wandering(void **unused) {
    (void)unused;
    const double correlations[] = {0.5, 0.9, 0.97, 0.99};
    for (size_t k = 0; k < sizeof correlations / sizeof *correlations; k++) {
        const size_t quiet = young_runs(1000, correlations[k], 1, 21 + k),
                     spiked = young_runs(50, correlations[k], 8, 31);
        print_message("correlation %g: %zu of 1000 quiet runs, %zu of 50 with a spike\n", correlations[k], quiet,
                      spiked);
        assert_true(quiet <= 2); // of 200,000 steps
        assert_true(spiked >= 45);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(at_scale_one), cmocka_unit_test(at_tiny_and_huge_scales),
                                       cmocka_unit_test(young_and_wandering)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
