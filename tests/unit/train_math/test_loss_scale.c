#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/optim/loss_scale.h"

static const keel_loss_scale_config dynamic = {
    .type = KEEL_LOSS_SCALE_DYNAMIC, .loss_scale_value = 1024, .scale_factor = 2, .scale_window = 3};

static void test_none_and_fixed(void **test) {
    (void)test;
    keel_loss_scale state = {.scale = 8, .clean = 5};
    keel_loss_scale_config config = {.type = KEEL_LOSS_SCALE_NONE, .loss_scale_value = 1024};
    for (int type = KEEL_LOSS_SCALE_NONE; type <= KEEL_LOSS_SCALE_FIXED; type++) {
        config.type = type;
        keel_loss_scale_begin(&config, &state);
        assert_true(state.scale == 0 && state.clean == 0);
        assert_false(keel_loss_scale_end_step(&config, &state, true));
        assert_false(keel_loss_scale_end_step(&config, &state, false));
        assert_true(keel_loss_scale_now(&config, &state) == (type == KEEL_LOSS_SCALE_NONE ? 1 : 1024));
    }
}

static void test_falls_and_grows(void **test) {
    (void)test;
    keel_loss_scale state = {0};
    keel_loss_scale_begin(&dynamic, &state);
    assert_true(keel_loss_scale_now(&dynamic, &state) == 1024);
    assert_true(keel_loss_scale_end_step(&dynamic, &state, true));
    assert_true(keel_loss_scale_now(&dynamic, &state) == 512);
    // Two updates, then an overflow: the window begins anew.
    const bool skipped[] = {false, false, true, false, false, false, false, false, false};
    const double scales[] = {512, 512, 256, 256, 256, 512, 512, 512, 1024};
    for (size_t i = 0; i < sizeof skipped / sizeof *skipped; i++) {
        assert_int_equal(keel_loss_scale_end_step(&dynamic, &state, skipped[i]), skipped[i]);
        assert_true(keel_loss_scale_now(&dynamic, &state) == scales[i]);
    }
}

static void test_bounds(void **test) {
    (void)test;
    keel_loss_scale state = {0};
    keel_loss_scale_begin(&dynamic, &state);
    for (int i = 0; i < 10; i++) assert_true(keel_loss_scale_end_step(&dynamic, &state, true));
    assert_true(state.scale == 1);
    assert_false(keel_loss_scale_end_step(&dynamic, &state, true)); // cannot fall any more
    assert_true(state.scale == 1);
    for (int i = 0; i < 3 * 40; i++) assert_false(keel_loss_scale_end_step(&dynamic, &state, false));
    assert_true(state.scale == 0x1p24);
    keel_loss_scale_config high = dynamic;
    high.loss_scale_value = 0x1p30;
    state = (keel_loss_scale){0};
    keel_loss_scale_begin(&high, &state);
    for (int i = 0; i < 9; i++) keel_loss_scale_end_step(&high, &state, false);
    assert_true(state.scale == 0x1p30);
}

static void test_resumed_state_is_kept(void **test) {
    (void)test;
    keel_loss_scale state = {.scale = 64, .clean = 2};
    keel_loss_scale_begin(&dynamic, &state);
    assert_true(keel_loss_scale_now(&dynamic, &state) == 64);
    assert_false(keel_loss_scale_end_step(&dynamic, &state, false));
    assert_true(state.scale == 128 && state.clean == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_none_and_fixed), cmocka_unit_test(test_falls_and_grows),
                                       cmocka_unit_test(test_bounds), cmocka_unit_test(test_resumed_state_is_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
