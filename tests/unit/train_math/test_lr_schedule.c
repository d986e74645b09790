#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/optim/optimizer.h"

static void assert_lr(const keel_lr_config *config, uint64_t t, double expected) {
    double lr = keel_lr_at(config, t);
    if (fabs(lr - expected) > 1e-15)
        fail_msg("update %llu: %.17g, expected %.17g", (unsigned long long)t, lr, expected);
}

static void test_warmup(void **state) {
    (void)state;
    keel_lr_config config = {.type = KEEL_LR_CONSTANT, .learning_rate = 0.01, .lr_end = 0.001, .warmup_steps = 4};
    config.total_steps = 10;
    assert_lr(&config, 1, 0.0025);
    assert_lr(&config, 3, 0.0075);
    assert_lr(&config, 4, 0.01);
    assert_lr(&config, 5, 0.01);
    assert_lr(&config, 1000, 0.01);
    config.warmup_steps = 0;
    assert_lr(&config, 1, 0.01);
}

static void test_linear(void **state) {
    (void)state;
    keel_lr_config config = {.type = KEEL_LR_LINEAR, .learning_rate = 0.01, .lr_end = 0.002, .warmup_steps = 2};
    config.total_steps = 10;
    assert_lr(&config, 2, 0.01);
    assert_lr(&config, 6, 0.006);
    assert_lr(&config, 9, 0.003);
    assert_lr(&config, 10, 0.002);
    assert_lr(&config, 11, 0.002);
}

static void test_cosine(void **state) {
    (void)state;
    keel_lr_config config = {.type = KEEL_LR_COSINE, .learning_rate = 0.01, .lr_end = 0.002, .warmup_steps = 2};
    config.total_steps = 10;
    assert_lr(&config, 2, 0.01);
    assert_lr(&config, 6, 0.006);
    assert_lr(&config, 4, 0.002 + 0.008 * (0.5 + sqrt(0.125)));
    assert_lr(&config, 10, 0.002);
    assert_lr(&config, 50, 0.002);
    // Nothing but warm-up.
    config.total_steps = 2;
    assert_lr(&config, 1, 0.005);
    assert_lr(&config, 2, 0.01);
    assert_lr(&config, 3, 0.002);
}

static void test_clip(void **state) {
    (void)state;
    assert_true(keel_clip_factor(0.5, 1) == 1);
    assert_true(keel_clip_factor(0, 1) == 1);
    assert_true(keel_clip_factor(4, 1) == 1 / (4 + 1e-6));
    assert_true(keel_clip_factor(1, 1) == 1 / (1 + 1e-6));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_cosine),
        cmocka_unit_test(test_clip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
