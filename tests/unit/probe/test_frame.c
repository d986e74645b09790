#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "probe/frame.h"

enum { SCALARS = 5, SITES = 3, MICROS = 2, MICRO_SITES = 2 };

static keel_frame *new_frame(void) {
    const size_t bytes = keel_frame_bytes(SCALARS, SITES, MICROS, MICRO_SITES);
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0xa5, bytes);
    keel_frame *frame = keel_frame_init(memory, SCALARS, SITES, MICROS, MICRO_SITES);
    const uint32_t merges[SCALARS] = {KEEL_SCALAR_FIRST, KEEL_SCALAR_MAX, KEEL_SCALAR_SUM, KEEL_SCALAR_MAX,
                                      KEEL_SCALAR_FIRST};
    for (uint32_t i = 0; i < SCALARS; i++) keel_frame_scalars(frame)[i].merge = merges[i];
    return frame;
}

static void test_layout(void **state) {
    (void)state;
    keel_frame *frame = new_frame();
    const char *start = (const char *)frame;
    assert_true((const char *)keel_frame_scalars(frame) == start + sizeof(keel_frame));
    const char *end = (const char *)(keel_frame_micro(frame, MICROS - 1, MICRO_SITES - 1) + 1);
    assert_int_equal(end - start, keel_frame_bytes(SCALARS, SITES, MICROS, MICRO_SITES));
    assert_ptr_equal(keel_frame_micro(frame, 0, 0), keel_frame_stats(frame) + SITES);
    assert_ptr_equal(keel_frame_micro(frame, 1, 0), keel_frame_micro(frame, 0, 1) + 1);
    for (uint32_t i = 0; i < SITES + MICROS * MICRO_SITES; i++) {
        keel_stats empty;
        keel_stats_clear(&empty);
        assert_memory_equal(&keel_frame_stats(frame)[i], &empty, sizeof empty);
    }
    for (uint32_t i = 0; i < SCALARS; i++) assert_int_equal(keel_frame_scalars(frame)[i].owner, KEEL_RANK_NONE);
    free(frame);
}

static void test_clear_keeps_kinds(void **state) {
    (void)state;
    keel_frame *frame = new_frame();
    frame->step.step = 9;
    keel_frame_scalars(frame)[1].value = 3;
    keel_frame_scalars(frame)[1].owner = 0;
    keel_frame_stats(frame)[2].n = 4;
    keel_frame_clear(frame);
    assert_int_equal(frame->step.step, 0);
    assert_int_equal(frame->site_count, SITES);
    assert_int_equal(keel_frame_scalars(frame)[1].merge, KEEL_SCALAR_MAX);
    assert_int_equal(keel_frame_scalars(frame)[1].owner, KEEL_RANK_NONE);
    assert_int_equal(keel_frame_stats(frame)[2].n, 0);
    free(frame);
}

static void set(keel_frame *frame, uint32_t scalar, double value, uint32_t owner) {
    keel_frame_scalars(frame)[scalar].value = value;
    keel_frame_scalars(frame)[scalar].owner = owner;
}

static void assert_scalar(keel_frame *frame, uint32_t scalar, double value, uint32_t owner) {
    const keel_scalar_value *s = &keel_frame_scalars(frame)[scalar];
    assert_int_equal(s->owner, owner);
    if (isnan(value))
        assert_true(isnan(s->value));
    else
        assert_true(s->value == value);
}

static void test_merge(void **state) {
    (void)state;
    keel_frame *a = new_frame(), *b = new_frame(), *c = new_frame();
    a->step = (keel_step){.step = 4, .seconds = 1.5, .flags = KEEL_STEP_RESUMED, .time_unix = 10};
    b->step = (keel_step){.step = 4, .seconds = 2.5, .flags = KEEL_STEP_DROPPED, .time_unix = 11};
    c->step = (keel_step){.step = 4, .seconds = 2.0, .flags = KEEL_STEP_DROPPED, .time_unix = 12};
    set(a, 0, 7, 0), set(b, 0, 8, 1);                             // first: the lowest rank
    set(a, 1, 5, 0), set(b, 1, 5, 1), set(c, 1, 4, 2);            // max: ties to the lowest rank
    set(a, 2, 1, 0), set(c, 2, 2.5, 2);                           // sum: who did not set it does not count
    set(a, 3, INFINITY, 0), set(b, 3, NAN, 1), set(c, 3, NAN, 2); // NaN is the greatest
    set(c, 4, 6, 2);                                              // known to one rank alone
    const float x[] = {1, 2, NAN};
    const keel_stats_params params = {.fields = KEEL_FIELDS_ALL, .eps = 1e-8, .scale = 1};
    keel_stats_observe(&keel_frame_stats(a)[1], &params, KEEL_F32, x, 2);
    keel_stats_observe(&keel_frame_stats(b)[1], &params, KEEL_F32, x + 2, 1);
    keel_stats_observe(keel_frame_micro(c, 1, 1), &params, KEEL_F32, x, 3);

    // Any order of pairs gives the same.
    keel_frame *left = new_frame(), *right = new_frame();
    const size_t bytes = keel_frame_bytes(SCALARS, SITES, MICROS, MICRO_SITES);
    memcpy(left, a, bytes);
    keel_frame_merge(left, b);
    keel_frame_merge(left, c);
    memcpy(right, b, bytes);
    keel_frame_merge(right, c);
    keel_frame_merge(a, right);
    keel_frame *merged[] = {left, a};
    for (size_t i = 0; i < 2; i++) {
        keel_frame *m = merged[i];
        assert_true(m->step.seconds == 2.5 && m->step.time_unix == 10);
        assert_int_equal(m->step.flags, KEEL_STEP_RESUMED | KEEL_STEP_DROPPED);
        assert_scalar(m, 0, 7, 0);
        assert_scalar(m, 1, 5, 0);
        assert_scalar(m, 2, 3.5, 0);
        assert_scalar(m, 3, NAN, 1);
        assert_scalar(m, 4, 6, 2);
        assert_int_equal(keel_frame_stats(m)[1].n, 3);
        assert_int_equal(keel_frame_stats(m)[1].nans, 1);
        assert_int_equal(keel_frame_stats(m)[0].fields, 0);
        assert_int_equal(keel_frame_micro(m, 1, 1)->n, 3);
    }
    free(a), free(b), free(c), free(left), free(right);
}

static void test_the_least_wins_and_is_named(void **state) {
    (void)state;
    keel_frame *into = new_frame(), *from = new_frame();
    keel_frame_scalars(into)[1].merge = keel_frame_scalars(from)[1].merge = KEEL_SCALAR_MIN;
    set(into, 1, 5, 0);
    set(from, 1, 3, 2);
    keel_frame_merge(into, from);
    assert_scalar(into, 1, 3, 2);
    set(from, 1, 3, 1); // of equals the lowest rank
    keel_frame_merge(into, from);
    assert_scalar(into, 1, 3, 1);
    set(from, 1, NAN, 4);
    keel_frame_merge(into, from);
    assert_scalar(into, 1, 3, 1);
    free(into);
    free(from);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_least_wins_and_is_named),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_clear_keeps_kinds),
        cmocka_unit_test(test_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
