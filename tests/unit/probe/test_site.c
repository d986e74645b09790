#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "probe/schedule.h"
#include "probe/site.h"

static void test_names(void **state) {
    (void)state;
    for (unsigned q = 0; q < KEEL_QUANTITY_COUNT; q++)
        assert_int_equal(keel_quantity_find(keel_quantity_name((keel_quantity)q)), q);
    assert_int_equal(keel_quantity_find("no such quantity"), KEEL_QUANTITY_COUNT);
    assert_string_equal(keel_quantity_name(KEEL_ADAM_DIRECTION), "adam_direction");
    assert_string_equal(keel_layout_name(KEEL_LAYOUT_PARTIAL), "partial");
    assert_string_equal(keel_phase_name(KEEL_PHASE_RECOMPUTE), "recompute");
    assert_string_equal(keel_phase_name(KEEL_PHASE_COUNT), "unknown");
}

static void test_order(void **state) {
    (void)state;
    const keel_site_info early = {.phase = KEEL_PHASE_FORWARD, .order = 9};
    const keel_site_info late = {.phase = KEEL_PHASE_BACKWARD, .order = 1};
    const keel_site_info later = {.phase = KEEL_PHASE_BACKWARD, .order = 2};
    assert_true(keel_site_compare(&early, &late) < 0);
    assert_true(keel_site_compare(&later, &late) > 0);
    assert_int_equal(keel_site_compare(&late, &late), 0);
}

static void test_schedule(void **state) {
    (void)state;
    const struct {
        keel_schedule schedule;
        uint64_t due[12]; // the steps up to 12, ended by 0
    } cases[] = {
        {{1, 1, 0}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
        {{1, 4, 0}, {1, 5, 9}},
        {{6, 3, 2}, {6, 9}},
        {{2, 100, 0}, {2}},
        {{1, 0, 0}, {0}},
        {{0, 5, 0}, {5, 10}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t next = 0;
        for (uint64_t step = 1; step <= 12; step++) {
            const bool expected = next < 12 && cases[c].due[next] == step;
            assert_int_equal(keel_schedule_due(&cases[c].schedule, step), expected);
            next += expected;
        }
    }
    const keel_schedule far = {.start = 5, .every = 2, .count = UINT64_MAX};
    assert_true(keel_schedule_due(&far, UINT64_MAX));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
