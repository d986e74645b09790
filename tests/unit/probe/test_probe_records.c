// What observations leave in the frame: schedules, micro-batches, blocks, replicas.
#include "tests/unit/probe/probe_rig.h"

#include <fenv.h>
#include <float.h>
#include <math.h>

#include "probe/fp_guard.h"

static void test_schedule(void **state) {
    (void)state;
    fake f = {.plans = {{.fields = KEEL_FIELDS_ALL, .schedule = {.start = 3, .every = 2, .count = 2}, .eps = 1e-8},
                        {.fields = KEEL_FIELDS_BASE, .schedule = always, .eps = 1},
                        {.fields = 0, .schedule = always},
                        {.fields = KEEL_FIELDS_BASE, .schedule = {.start = 1, .every = 0}}}};
    keel_probe *probe = open_with(&f, 0);
    keel_site *site[4] = {add(probe, "a"), add(probe, "b"), add(probe, "off"), add(probe, "flags")};
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    const float x[] = {0.5f, 2, INFINITY};
    for (uint64_t t = 1; t <= 9; t++) {
        for (int i = 0; i < 4; i++) keel_observe(site[i], x, 3); // between steps: nothing is recorded
        keel_step_begin(probe, t);
        const bool due = t == 3 || t == 5;
        assert_int_equal(site[0]->active, due ? KEEL_FIELDS_ALL : KEEL_FIELDS_FLAGS);
        assert_int_equal(site[1]->active, KEEL_FIELDS_BASE);
        assert_int_equal(site[2]->active, 0);
        assert_int_equal(site[3]->active, KEEL_FIELDS_FLAGS);
        for (int i = 0; i < 4; i++) keel_observe(site[i], x, 3);
        keel_observe(site[1], x, 1); // another part of it
        const keel_step step = {.step = t};
        keel_step_end(probe, &step);
        const keel_stats *s = keel_frame_stats(f.frame);
        assert_int_equal(s[0].fields & KEEL_FIELDS_BASE, due ? KEEL_FIELDS_BASE : 0);
        assert_int_equal(s[0].pos_infs, 1);
        assert_int_equal(s[0].rank_nonfinite, 0);
        assert_int_equal(s[0].micro_nonfinite, 0);
        assert_int_equal(s[1].n, 4);
        assert_int_equal(s[1].near_zeros, 2);
        assert_true(s[1].norm_low == sqrt(4.5));
        assert_int_equal(s[2].fields, 0);
        assert_int_equal(s[2].n, 0);
        assert_int_equal(s[2].rank_parts, 0);
        assert_int_equal(s[3].pos_infs, 1);
        assert_int_equal(s[3].fields, KEEL_FIELDS_FLAGS);
    }
    assert_int_equal(f.begins, 9);
    assert_int_equal(f.ends, 9);
    close_all(probe, &f);
}

static void test_micro_records(void **state) {
    (void)state;
    fake f = {.plans = {{.fields = KEEL_FIELDS_BASE, .schedule = always},
                        {.fields = KEEL_FIELDS_ALL, .schedule = always, .per_micro = true},
                        {.fields = 0, .per_micro = true},
                        {.fields = KEEL_FIELDS_BASE, .schedule = always, .per_micro = true}}};
    keel_probe *probe = open_with(&f, 1);
    keel_site *plain = add(probe, "plain"), *micro = add(probe, "micro");
    add(probe, "off");
    keel_site *blocks = add(probe, "blocks");
    keel_probe_set_micro_count(probe, 3);
    assert_int_equal(keel_probe_start(probe), KEEL_OK);

    keel_step_begin(probe, 1);
    for (uint32_t m = 0; m < 4; m++) { // one more than the frame holds: counted in the step alone
        keel_micro_begin(probe, m);
        const float x[] = {(float)m + 1, m >= 1 ? NAN : 1};
        keel_observe(plain, x, 2);
        keel_observe(micro, x, 1);
        keel_observe(micro, x, 2);
        keel_block block;
        keel_block_begin(&block, blocks);
        keel_block_add(&block, x, 1);
        keel_block_add(&block, x, 2);
        keel_block_end(&block);
    }
    const keel_step step = {.step = 1};
    keel_step_end(probe, &step);
    const keel_stats *s = keel_frame_stats(f.frame);
    assert_int_equal(s[0].n, 8);
    assert_int_equal(s[0].micro_nonfinite, 1);
    for (uint32_t id = 1; id <= 3; id += 2) {
        assert_int_equal(s[id].n, 12);
        assert_int_equal(s[id].nans, 3);
        assert_int_equal(s[id].micro_nonfinite, 1);
        assert_true(s[id].max == 4);
        for (uint32_t m = 0; m < 3; m++) {
            const keel_stats *part = keel_frame_micro(f.frame, m, id / 2);
            assert_int_equal(part->n, 3);
            assert_true(part->max == (double)m + 1);
            assert_int_equal(part->micro_nonfinite, m >= 1 ? m : KEEL_RANK_NONE);
            assert_int_equal(part->rank_nonfinite, m >= 1 ? 1 : KEEL_RANK_NONE); // sealed
        }
    }
    close_all(probe, &f);
}

// The same tensor at once, in parts, and in blocks of two threads.
static void test_blocks(void **state) {
    (void)state;
    enum { N = 5000 };
    fake f = {.plans = {{.fields = KEEL_FIELDS_ALL, .schedule = always, .eps = 1e-8},
                        {.fields = KEEL_FIELDS_ALL, .schedule = always, .eps = 1e-8}}};
    keel_probe *probe = open_with(&f, 0);
    keel_site *whole = add(probe, "whole"), *parts = add(probe, "parts");
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    keel_site_set_scale(whole, 1024);
    keel_site_set_scale(parts, 1024);
    float x[N];
    const int middle = N / 2;
    for (int i = 0; i < N; i++) x[i] = 1e-12f * (float)(i * 7919 % N - middle);
    keel_step_begin(probe, 1);
    keel_observe(whole, x, N);
    keel_block block[2];
    for (int t = 0; t < 2; t++) {
        keel_block_begin(&block[t], parts);
        for (int i = t * N / 2; i < (t + 1) * N / 2; i += 125) keel_block_add(&block[t], x + i, 125);
    }
    for (int t = 0; t < 2; t++) keel_block_end(&block[t]);
    const keel_step step = {.step = 1};
    keel_step_end(probe, &step);
    const keel_stats *a = &keel_frame_stats(f.frame)[0], *b = &keel_frame_stats(f.frame)[1];
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->checksum, b->checksum);
    assert_int_equal(a->near_zeros, b->near_zeros);
    assert_int_equal(a->fp16_flush, b->fp16_flush);
    assert_int_equal(a->fp16_flush, 58); // |k| * 1e-12 * 1024 <= 2^-25, not 0
    assert_true(a->max == b->max && a->min == b->min);
    assert_true(fabs(a->sum_sq - b->sum_sq) <= 1e-6 * a->sum_sq);
    close_all(probe, &f);
}

static void test_a_block_that_outlives_its_step_is_dropped(void **state) {
    (void)state;
    fake f = {.plans = {{.fields = KEEL_FIELDS_BASE, .schedule = always, .per_micro = true}}};
    keel_probe *probe = open_with(&f, 0);
    keel_site *site = add(probe, "a");
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    const float x[] = {1};
    keel_block blocks[2];
    keel_step_begin(probe, 1);
    for (int i = 0; i < 2; i++) {
        keel_block_begin(&blocks[i], site);
        keel_block_add(&blocks[i], x, 1);
    }
    keel_step_end(probe, &(keel_step){.step = 1});
    keel_block_end(&blocks[0]);
    keel_step_begin(probe, 2);
    keel_block_end(&blocks[1]);
    keel_observe(site, x, 1);
    keel_step_end(probe, &(keel_step){.step = 2});
    assert_int_equal(keel_frame_stats(f.frame)[0].n, 1);
    close_all(probe, &f);
}

// Traps that the program has set would end it, other modes change what is counted: also where a step ends.
static void test_the_programs_floating_point_modes_do_not_matter(void **state) {
    (void)state;
    fake f = {.plans = {{.fields = KEEL_FIELDS_ALL, .schedule = always, .eps = 1e-40},
                        {.fields = KEEL_FIELDS_BASE, .schedule = always, .eps = 1e-8}}};
    keel_probe *probe = open_with(&f, 0);
    keel_site *small = add(probe, "small");
    keel_site_info info = info_of("great", KEEL_WEIGHT);
    info.dtype = KEEL_F64;
    keel_site *great;
    assert_int_equal(keel_site_add(probe, &info, &great), KEEL_OK);
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    const float x[] = {1e-41f, 1e-39f, 1e-42f, 1, 0, 2, 3, 4};
    const double y[] = {DBL_MAX, DBL_MAX};
    keel_step_begin(probe, 1);
    const unsigned daz = 0x40, before = _mm_getcsr();
    feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW);
    _mm_setcsr(_mm_getcsr() | daz | _MM_FLUSH_ZERO_ON | _MM_ROUND_UP);
    const unsigned set = _mm_getcsr();
    keel_observe(small, x, 8);
    keel_block block;
    keel_block_begin(&block, great);
    for (int i = 0; i < 2; i++) keel_block_add(&block, &y[i], 1);
    keel_block_end(&block);
    keel_step_end(probe, &(keel_step){.step = 1}); // the norm of GREAT is not finite
    assert_int_equal(_mm_getcsr(), set);
    fesetenv(FE_DFL_ENV);
    _mm_setcsr(before);
    const keel_stats *s = keel_frame_stats(f.frame);
    assert_int_equal(s[0].near_zeros, 3);
    assert_int_equal(s[0].subnormals, 3);
    assert_true(s[0].abs_min == (double)1e-42f);
    assert_true(isinf(s[1].norm_high));
    close_all(probe, &f);
}

// Two ranks with copies of a tensor.
static void test_replicas(void **state) {
    (void)state;
    for (int differ = 0; differ < 2; differ++) {
        fake f[2] = {{.plans = {{.fields = KEEL_FIELDS_BASE | KEEL_FIELDS_CHECKSUM, .schedule = always}}},
                     {.plans = {{.fields = KEEL_FIELDS_BASE | KEEL_FIELDS_CHECKSUM, .schedule = always}}}};
        keel_probe *probe[2];
        for (uint32_t r = 0; r < 2; r++) {
            probe[r] = open_with(&f[r], r);
            keel_site_info info = info_of("w", KEEL_WEIGHT);
            info.layout = KEEL_LAYOUT_REPLICA;
            info.replica_index = r;
            info.replica_count = 2;
            keel_site *site;
            assert_int_equal(keel_site_add(probe[r], &info, &site), KEEL_OK);
            assert_int_equal(keel_probe_start(probe[r]), KEEL_OK);
            const float x[] = {1, 2, r == 1 && differ ? 3.0000002f : 3};
            keel_step_begin(probe[r], 1);
            keel_observe(site, x, 3);
            const keel_step step = {.step = 1};
            keel_step_end(probe[r], &step);
        }
        keel_frame_merge(f[0].frame, f[1].frame);
        const keel_stats *s = keel_frame_stats(f[0].frame);
        assert_int_equal(s->n, 3);
        assert_true(s->sum == 6);
        assert_int_equal(s->rank_parts, 2);
        if (differ)
            assert_int_not_equal(s->replica_residual, 0);
        else
            assert_int_equal(s->replica_residual, 0);
        close_all(probe[0], &f[0]);
        close_all(probe[1], &f[1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_micro_records),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_a_block_that_outlives_its_step_is_dropped),
        cmocka_unit_test(test_the_programs_floating_point_modes_do_not_matter),
        cmocka_unit_test(test_replicas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
