// Registration, and which calls come to the backend when.
#include "tests/unit/probe/probe_rig.h"

static void test_registration(void **state) {
    (void)state;
    keel_probe *probe = NULL;
    assert_int_equal(keel_probe_open(0, &probe), KEEL_OK);
    keel_site *first = add(probe, "a");
    keel_site_info info = info_of("a", KEEL_EXP_AVG); // the same name of another quantity
    info.id = 77;
    keel_site *second, *none = NULL;
    assert_int_equal(keel_site_add(probe, &info, &second), KEEL_OK);
    assert_int_equal(keel_site_get_info(second)->id, 1);
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    assert_null(none);
    assert_non_null(strstr(keel_error(), "a (exp_avg)"));

    info = info_of("", KEEL_WEIGHT);
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    info = info_of("b", KEEL_QUANTITY_COUNT);
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    info = info_of("b", KEEL_WEIGHT);
    memset(info.name, 'x', sizeof info.name);
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    info = info_of("b", KEEL_WEIGHT);
    info.layout = KEEL_LAYOUT_REPLICA;
    info.replica_index = 1; // of 1
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    info.layout = KEEL_LAYOUT_SHARD;
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    info.layout = KEEL_LAYOUT_WHOLE;
    info.replica_count = 2;
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    assert_non_null(strstr(keel_error(), "site b: held by one rank, and yet 2 copies"));
    assert_int_equal(keel_probe_site_count(probe), 2);

    // Ten thousand, quickly; the first keeps its address.
    for (int i = 0; i < 10000; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%d.weight", i);
        add(probe, name);
    }
    assert_string_equal(keel_site_get_info(first)->name, "a");
    assert_string_equal(keel_probe_site_info(probe, 9001)->name, "layers.8999.weight");
    assert_int_equal(keel_probe_site_info(probe, 9001)->id, 9001);

    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    info = info_of("late", KEEL_WEIGHT);
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    assert_int_equal(keel_probe_start(probe), KEEL_ERR_USAGE);
    keel_probe_close(probe);
    keel_probe_close(NULL);
}

static void test_sizes(void **state) {
    (void)state;
    keel_probe *probe = NULL;
    assert_int_equal(keel_probe_open(0, &probe), KEEL_OK);
    keel_site *site, *none = NULL;
    keel_site_info info = info_of("w", KEEL_WEIGHT);
    info.ndim = 3;
    info.shape[0] = 4, info.shape[1] = 5, info.shape[2] = 6, info.shape[3] = 99;
    assert_int_equal(keel_site_add(probe, &info, &site), KEEL_OK);
    assert_int_equal(keel_site_get_info(site)->numel, 120);
    info.quantity = KEEL_UPDATE;
    info.numel = 60;
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    assert_string_equal(keel_error(), "site w: numel is 60, and its shape has 120 elements");
    info.numel = 120;
    info.layout = KEEL_LAYOUT_SHARD; // a part of it; the shape is that of the whole
    assert_int_equal(keel_site_add(probe, &info, &site), KEEL_OK);
    assert_int_equal(keel_site_get_info(site)->numel, 120);
    info = info_of("huge", KEEL_WEIGHT);
    info.ndim = 2;
    info.shape[0] = info.shape[1] = UINT64_C(1) << 32;
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    info = info_of("unknown shape", KEEL_WEIGHT);
    info.numel = 7;
    assert_int_equal(keel_site_add(probe, &info, &site), KEEL_OK);
    assert_int_equal(keel_site_get_info(site)->numel, 7);
    assert_null(none);
    keel_probe_close(probe);
}

static void test_scalars(void **state) {
    (void)state;
    fake f = {0};
    keel_probe *probe = open_with(&f, 6);
    uint32_t loss, worst, again;
    assert_int_equal(keel_scalar_add(probe, "loss", KEEL_SCALAR_FIRST, &loss), KEEL_OK);
    assert_int_equal(keel_scalar_add(probe, "loss_max", KEEL_SCALAR_MAX, &worst), KEEL_OK);
    assert_int_equal(keel_scalar_add(probe, "loss", KEEL_SCALAR_FIRST, &again), KEEL_OK);
    assert_int_equal(again, loss);
    assert_int_equal(keel_scalar_add(probe, "loss", KEEL_SCALAR_SUM, &again), KEEL_ERR_USAGE);
    assert_int_equal(keel_scalar_add(probe, "", KEEL_SCALAR_SUM, &again), KEEL_ERR_USAGE);
    assert_int_equal(keel_scalar_add(probe, "a name of thirty-two characters.", KEEL_SCALAR_SUM, &again),
                     KEEL_ERR_USAGE);
    assert_int_equal(keel_scalar_add(probe, "a name of thirty-one character.", KEEL_SCALAR_SUM, &again), KEEL_OK);
    assert_int_equal(keel_probe_scalar_count(probe), 3);
    assert_string_equal(keel_probe_scalar_name(probe, worst), "loss_max");
    assert_int_equal(keel_probe_scalar_merge(probe, worst), KEEL_SCALAR_MAX);

    keel_scalar_set(probe, loss, 1); // before the start and outside a step: nothing
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    keel_scalar_set(probe, loss, 1);
    keel_step_begin(probe, 1);
    keel_scalar_set(probe, worst, 2.5);
    const keel_step step = {.step = 1, .update = 1, .seconds = 0.5};
    keel_step_end(probe, &step);
    assert_int_equal(f.frame->step.update, 1);
    assert_int_equal(f.last_step.step, 1);
    assert_int_equal(keel_frame_scalars(f.frame)[loss].owner, KEEL_RANK_NONE);
    assert_int_equal(keel_frame_scalars(f.frame)[worst].owner, 6);
    assert_int_equal(keel_frame_scalars(f.frame)[worst].merge, KEEL_SCALAR_MAX);
    assert_true(keel_frame_scalars(f.frame)[worst].value == 2.5);
    close_all(probe, &f);
}

static void test_no_frame(void **state) {
    (void)state;
    fake f = {.plans = {{.fields = KEEL_FIELDS_BASE, .schedule = always}}};
    keel_probe *probe = open_with(&f, 0);
    keel_site *site = add(probe, "a");
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    const float x[] = {1};
    keel_block block;
    for (uint64_t t = 1; t <= 4; t++) {
        f.out_of_frames = t % 2 == 0;
        keel_step_begin(probe, t);
        assert_int_equal(site->active, f.out_of_frames ? 0 : KEEL_FIELDS_BASE);
        keel_observe(site, x, 1);
        keel_block_begin(&block, site);
        keel_block_add(&block, x, 1);
        keel_block_end(&block);
        const keel_step step = {.step = t};
        keel_step_end(probe, &step);
        assert_int_equal(f.last_had_frame, !f.out_of_frames);
        if (!f.out_of_frames) assert_int_equal(keel_frame_stats(f.frame)[0].n, 2);
    }
    close_all(probe, &f);
}

static void test_paused(void **state) {
    (void)state;
    fake f = {.plans = {{.fields = KEEL_FIELDS_BASE, .schedule = always}}};
    keel_probe *probe = open_with(&f, 0);
    keel_site *site = add(probe, "a");
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    const float x[] = {1};
    for (uint64_t t = 1; t <= 6; t++) {
        keel_probe_set_paused(probe, t % 3 == 0);
        keel_step_begin(probe, t);
        assert_int_equal(site->active, t % 3 == 0 ? 0 : KEEL_FIELDS_BASE);
        keel_observe(site, x, 1);
        const keel_step step = {.step = t};
        keel_step_end(probe, &step);
    }
    assert_int_equal(f.begins, 4);
    assert_int_equal(f.ends, 4);
    close_all(probe, &f);
}

static void assert_nothing_comes(keel_probe *probe) {
    keel_poll(probe);
    keel_wait_begin(probe);
    keel_wait_end(probe);
    keel_step_begin(probe, 1);
    keel_step_end(probe, &(keel_step){.step = 1});
    assert_int_equal(keel_probe_health(probe).judged_step, 0);
    assert_int_equal(keel_probe_drain(probe), KEEL_OK);
    void *bytes = &bytes;
    size_t size = 1;
    assert_int_equal(keel_probe_save(probe, &bytes, &size), KEEL_OK);
    assert_true(bytes == NULL && size == 0);
}

static void test_without_backend(void **state) {
    (void)state;
    keel_probe *probe = NULL;
    assert_int_equal(keel_probe_open(0, &probe), KEEL_OK);
    keel_site *site = add(probe, "a");
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    const float x[] = {1};
    keel_step_begin(probe, 1);
    assert_int_equal(site->active, 0);
    keel_observe(site, x, 1);
    keel_observe_active(site, x, 1);
    keel_scalar_set(probe, 0, 1);
    const keel_step step = {.step = 1};
    keel_step_end(probe, &step);
    assert_nothing_comes(probe);
    assert_int_equal(keel_probe_load(probe, 1, NULL, 0), KEEL_OK);
    keel_probe_close(probe);
}

static void assert_nothing_is_asked(keel_probe *probe, const fake *f) {
    assert_nothing_comes(probe);
    assert_int_equal(f->polls + f->waits_begun + f->waits_ended + f->begins + f->ends, 0);
}

static void test_a_backend_that_has_not_started_is_asked_nothing(void **state) {
    (void)state;
    fake f = {.start_status = KEEL_ERR_CONFIG};
    keel_probe *probe = open_with(&f, 0);
    assert_nothing_is_asked(probe, &f);
    assert_int_equal(keel_probe_load(probe, 8, "abc", 3), KEEL_ERR_USAGE);
    assert_int_equal(keel_probe_start(probe), KEEL_ERR_CONFIG);
    assert_nothing_is_asked(probe, &f); // the program goes on without a monitor
    assert_int_equal(keel_probe_load(probe, 8, "abc", 3), KEEL_OK);
    assert_int_equal(keel_probe_start(probe), KEEL_ERR_USAGE);
    close_all(probe, &f);
}

static void test_signs_of_life(void **state) {
    (void)state;
    fake f = {.plans = {{.fields = KEEL_FIELDS_BASE, .schedule = always}, {.fields = 0}}};
    keel_probe *probe = open_with(&f, 0);
    keel_site *site = add(probe, "a"), *off = add(probe, "off");
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    const float x[] = {1};
    keel_block block;
    keel_observe(site, x, 1); // between two steps
    keel_step_begin(probe, 1);
    keel_observe(off, x, 1);
    assert_false(f.sign);
    keel_observe(site, x, 1);
    assert_true(f.sign);
    f.sign = false;
    keel_block_begin(&block, site);
    keel_block_add(&block, x, 1);
    keel_block_end(&block);
    assert_true(f.sign);
    f.sign = false;
    keel_micro_begin(probe, 1);
    assert_true(f.sign);
    close_all(probe, &f);
}

static void test_pass_through(void **state) {
    (void)state;
    fake f = {0};
    keel_probe *probe = open_with(&f, 0);
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    keel_poll(probe);
    assert_int_equal(f.polls, 1);
    keel_wait_begin(probe);
    assert_int_equal(f.waits_begun, 1);
    assert_int_equal(f.waits_ended, 0);
    keel_wait_end(probe);
    assert_int_equal(f.waits_ended, 1);
    assert_int_equal(keel_probe_health(probe).open_warnings, 2);
    assert_int_equal(keel_probe_drain(probe), KEEL_ERR_COMM);
    void *bytes;
    size_t size;
    assert_int_equal(keel_probe_save(probe, &bytes, &size), KEEL_OK);
    assert_int_equal(keel_probe_load(probe, 8, bytes, size), KEEL_OK);
    assert_int_equal(keel_probe_load(probe, 9, bytes, size), KEEL_ERR_FORMAT);
    free(bytes);
    close_all(probe, &f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registration),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_no_frame),
        cmocka_unit_test(test_paused),
        cmocka_unit_test(test_without_backend),
        cmocka_unit_test(test_a_backend_that_has_not_started_is_asked_nothing),
        cmocka_unit_test(test_signs_of_life),
        cmocka_unit_test(test_pass_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
