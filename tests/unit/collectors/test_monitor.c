// The monitor with one process: what reaches the sinks, in which order, and what happens when one is slow or fails.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <fenv.h>
#include <signal.h>
#include <time.h>

#include "collectors/helper_thread.h"
#include "tests/unit/collectors/captured_log.h"
#include "tests/unit/collectors/monitor_rig.h"

static void test_rows_come_in_order_with_their_values(void **state) {
    (void)state;
    rig r;
    rig_open(&r, NULL, "{queue_depth: 64, select: [{ops: [norm, max]}]}");
    rig_start(&r);
    for (uint64_t step = 1; step <= 20; step++) rig_step(&r, step);
    assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    assert_int_equal(r.sink.flushes, 1);
    assert_int_equal(r.sink.count, 20);
    for (uint64_t i = 0; i < 20; i++) {
        const seen_row *row = &r.sink.rows[i];
        assert_int_equal(row->step.step, i + 1);
        assert_int_equal(row->dropped, 0);
        assert_int_equal(row->step.flags, 0);
        assert_true(row->max == (double)(i + 1));
        assert_true(row->loss == 0.5 * (double)(i + 1));
        assert_true(row->rss > 0);
    }
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_int_equal(captured.count, 0);
    assert_int_equal(r.sink.closes, 1);
}

static void test_times_that_are_not_given_are_measured(void **state) {
    (void)state;
    rig r;
    rig_open(&r, NULL, "{select: [{ops: [norm, max]}]}");
    rig_start(&r);
    const double before = (double)time(NULL);
    for (uint64_t step = 1; step <= 2; step++) {
        keel_step_begin(r.probe, step);
        keel_nap(20000000);
        keel_step_end(r.probe,
                      &(keel_step){.step = step, .seconds = step == 2 ? 7 : 0, .time_unix = step == 2 ? 8 : 0});
    }
    assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    const keel_step *measured = &r.sink.rows[0].step, *given = &r.sink.rows[1].step;
    assert_true(measured->seconds >= 0.02 && measured->seconds < 5);
    assert_true(measured->time_unix >= before && measured->time_unix < before + 60);
    assert_true(given->seconds == 7 && given->time_unix == 8);
    assert_true(r.sink.rows[0].step_seconds == measured->seconds);
    assert_int_equal(rig_close(&r), KEEL_OK);
}

static void test_what_a_flush_keeps_back_fails_the_drain(void **state) {
    (void)state;
    rig r;
    rig_open(&r, NULL, "{select: [{ops: [max]}]}");
    r.sink.flush_status = KEEL_ERR_IO;
    rig_start(&r);
    rig_step(&r, 1);
    assert_int_equal(keel_probe_drain(r.probe), KEEL_ERR_IO);
    assert_string_equal(keel_error(), "memory keeps some back");
    r.sink.flush_status = KEEL_OK;
    assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    assert_int_equal(rig_close(&r), KEEL_ERR_IO);
}

static void test_scalars_do_not_share_a_column(void **state) {
    (void)state;
    rig r;
    uint32_t id;
    rig_open(&r, NULL, "{}"); // `loss` is the greatest of all ranks
    assert_int_equal(keel_scalar_add(r.probe, "loss_rank", KEEL_SCALAR_FIRST, &id), KEEL_OK);
    assert_int_equal(keel_probe_start(r.probe), KEEL_ERR_USAGE);
    assert_non_null(strstr(keel_error(), "scalar loss_rank: "));
    keel_poll(r.probe); // and the program goes on
    rig_step(&r, 1);
    assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    assert_int_equal(rig_close(&r), KEEL_OK);
}

static void test_sites_without_a_size_are_said(void **state) {
    (void)state;
    rig r;
    rig_open(&r, NULL, "{}");
    keel_site *site;
    const keel_site_info info = {.name = "odd", .quantity = KEEL_ACTIVATION};
    assert_int_equal(keel_site_add(r.probe, &info, &site), KEEL_OK);
    rig_start(&r);
    assert_int_equal(captured_with("1 sites, the first of them odd (activation), are registered without shape"), 1);
    assert_int_equal(rig_close(&r), KEEL_OK);
}

static void test_tables_of_the_run(void **state) {
    (void)state;
    rig r;
    rig_open(&r, NULL, "{select: [{ops: [norm]}, {quantities: [activation], per_micro_batch: true, ops: [max]}]}");
    keel_probe_set_micro_count(r.probe, 4);
    rig_start(&r);
    const keel_run_info *info = r.sink.info;
    assert_int_equal(info->world_size, 1);
    assert_int_equal(info->micro_count, 4);
    assert_int_equal(info->site_count, RIG_SITES);
    assert_string_equal(info->sites[RIG_REPLICA].name, "embedding.weight");
    assert_int_equal(info->sites[RIG_OUT].id, RIG_OUT);
    assert_int_equal(info->micro_site_count, 1);
    assert_int_equal(info->micro_sites[0], RIG_OUT);
    assert_true(info->op_stored[KEEL_OP_norm] && info->op_stored[KEEL_OP_max] && info->op_stored[KEEL_OP_nans]);
    assert_false(info->op_stored[KEEL_OP_min]);
    assert_true(info->op_mask[RIG_OUT] >> KEEL_OP_max & 1);
    assert_false(info->op_mask[RIG_WEIGHT] >> KEEL_OP_max & 1);
    assert_int_equal(keel_run_scalar(info, "loss"), r.loss);
    assert_true(keel_run_scalar(info, "step_seconds_rank") > keel_run_scalar(info, "step_seconds"));
    assert_string_equal(info->command, "test");
    assert_true(strlen(info->run_id) > 8 && strlen(info->created_utc) == 20 && strlen(info->host) > 0);
    // norm, max and the four flags; max and flags also of each micro-batch.
    static const char expected[] = "3 sites, at most 35 values a step, one process, 0.0 MiB";
    assert_string_equal(keel_monitor_describe(r.monitor), expected);
    assert_int_equal(rig_close(&r), KEEL_OK);
}

static void test_slow_sink_never_delays_training(void **state) {
    (void)state;
    enum { FRAMES = 2 + 3, STEPS = 50 };
    rig r;
    rig_open(&r, NULL, "{queue_depth: 2, select: [{ops: [max]}]}");
    r.sink.gated = true; // every row waits for the test
    rig_start(&r);
    for (uint64_t step = 1; step <= STEPS; step++) rig_step(&r, step); // would hang here if it waited
    assert_int_equal(r.sink.count, 0);
    assert_int_equal(captured_with("is not recorded"), 1);
    assert_int_equal(captured_with("step 6 "), 1);
    for (int i = 0; i < FRAMES; i++) sem_post(&r.sink.gate);
    assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    sem_post(&r.sink.gate);
    rig_step(&r, STEPS + 1);
    assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    assert_int_equal(r.sink.count, FRAMES + 1);
    for (uint64_t i = 0; i < FRAMES; i++) assert_int_equal(r.sink.rows[i].step.step, i + 1);
    assert_int_equal(r.sink.rows[FRAMES].step.step, STEPS + 1);
    assert_int_equal(r.sink.rows[FRAMES].dropped, STEPS - FRAMES);
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_int_equal(captured_with("45 of 51 steps were not recorded"), 1);
    assert_int_equal(captured.count, 2);
}

static void test_failing_sink_is_said_once(void **state) {
    (void)state;
    rig r;
    rig_open(&r, NULL, "{select: [{ops: [max]}]}");
    test_sink broken = {.name = "broken", .row_status = KEEL_ERR_IO};
    rig_add_sink(&r, &broken);
    test_sink last = {.name = "last"};
    rig_add_sink(&r, &last);
    rig_start(&r);
    for (uint64_t step = 1; step <= 5; step++) rig_step(&r, step);
    assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    assert_int_equal(broken.count, 5); // asked again at every step
    assert_int_equal(last.count, 5);
    assert_int_equal(rig_close(&r), KEEL_ERR_IO);
    assert_string_equal(keel_error(), "broken failed 5 times; the first is in the log");
    assert_int_equal(captured_with("broken cannot take a step, training goes on: broken refuses"), 1);
    assert_int_equal(captured.count, 1);
    assert_int_equal(broken.closes, 1);
}

static void test_sink_that_cannot_start_is_left_out(void **state) {
    (void)state;
    rig r;
    rig_open(&r, NULL, "{select: [{ops: [max]}]}");
    test_sink broken = {.name = "broken", .start_status = KEEL_ERR_IO};
    rig_add_sink(&r, &broken);
    rig_start(&r);
    rig_step(&r, 1);
    assert_int_equal(rig_close(&r), KEEL_ERR_IO);
    assert_int_equal(r.sink.count, 1);
    assert_int_equal(broken.count, 0);
    assert_int_equal(broken.closes, 1);
    assert_int_equal(captured_with("broken cannot start, the run goes on without it: broken refuses"), 1);
}

static void test_sinks_are_refused_in_time(void **state) {
    (void)state;
    rig r;
    rig_open(&r, NULL, "{}");
    test_sink extra[KEEL_SINKS_MAX] = {{.name = "extra"}};
    for (int i = 0; i < KEEL_SINKS_MAX - 1; i++) rig_add_sink(&r, &extra[i]);
    const keel_sink one_more = test_sink_of(&extra[KEEL_SINKS_MAX - 1]);
    assert_int_equal(keel_monitor_add_sink(r.monitor, &one_more), KEEL_ERR_LIMIT);
    assert_int_equal(extra[KEEL_SINKS_MAX - 1].closes, 1); // taken over all the same
    rig_start(&r);
    test_sink late = {.name = "late"};
    const keel_sink late_sink = test_sink_of(&late);
    assert_int_equal(keel_monitor_add_sink(r.monitor, &late_sink), KEEL_ERR_USAGE);
    assert_string_equal(keel_error(), "sink late: added after the start");
    assert_int_equal(late.closes, 1);
    assert_int_equal(rig_close(&r), KEEL_OK);
}

// A judge that finds an incident in every third row, and one more when it closes.
typedef struct test_judge {
    keel_monitor *monitor;
    test_sink *other; // a sink of the same monitor
    uint64_t judged, loaded_step;
    uint64_t other_at_close; // rows that the other sink had when the judge closed
    bool other_open_at_close, signals_blocked, traps;
} test_judge;

static keel_status judge_start(void *context, const keel_run_info *info) {
    (void)context;
    (void)info;
    return KEEL_OK;
}

static keel_status judge_row(void *context, const keel_row *row) {
    test_judge *judge = context;
    judge->judged = row->step.step;
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    judge->traps = fegetexcept() != 0;
    judge->signals_blocked = sigismember(&blocked, SIGTERM) && sigismember(&blocked, SIGINT);
    if (row->step.step % 3 == 0)
        keel_monitor_emit(judge->monitor, &(keel_incident){.id = (uint32_t)row->step.step, .rule = "test"});
    return KEEL_OK;
}

static void judge_close(void *context) {
    test_judge *judge = context;
    judge->other_open_at_close = judge->other->closes == 0;
    judge->other_at_close = judge->other->count;
    keel_monitor_emit(judge->monitor, &(keel_incident){.id = 1000, .rule = "last"});
}

static keel_health judge_health(void *context) {
    const test_judge *judge = context;
    return (keel_health){.judged_step = judge->judged};
}

static keel_status judge_save(void *context, void **bytes, size_t *size) {
    const test_judge *judge = context;
    *size = sizeof judge->judged;
    *bytes = malloc(*size);
    memcpy(*bytes, &judge->judged, *size);
    return KEEL_OK;
}

static keel_status judge_load(void *context, uint64_t step, const void *bytes, size_t size) {
    test_judge *judge = context;
    assert_int_equal(size, sizeof judge->judged);
    memcpy(&judge->judged, bytes, size);
    judge->loaded_step = step;
    return KEEL_OK;
}

static void add_judge(rig *r, test_judge *judge) {
    judge->monitor = r->monitor;
    judge->other = &r->sink;
    const keel_judge made = {
        .sink = {.context = judge, .name = "judge", .start = judge_start, .row = judge_row, .close = judge_close},
        .health = judge_health,
        .save = judge_save,
        .load = judge_load};
    assert_int_equal(keel_monitor_add_judge(r->monitor, &made), KEEL_OK);
}

static void test_judge_speaks_to_every_sink(void **state) {
    (void)state;
    rig r;
    rig_open(&r, NULL, "{select: [{ops: [max]}]}");
    test_judge judge = {0};
    add_judge(&r, &judge);
    test_sink alert = {.name = "alert"};
    rig_add_sink(&r, &alert);
    feenableexcept(FE_DIVBYZERO | FE_INVALID); // of the program alone
    rig_start(&r);
    fedisableexcept(FE_ALL_EXCEPT);
    assert_int_equal(keel_probe_health(r.probe).judged_step, 0);
    for (uint64_t step = 1; step <= 7; step++) rig_step(&r, step);
    assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    assert_int_equal(keel_probe_health(r.probe).judged_step, 7);
    assert_true(judge.signals_blocked && !judge.traps);
    assert_int_equal(r.sink.incidents, 2);
    assert_int_equal(alert.incidents, 2);
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_true(judge.other_open_at_close);
    assert_int_equal(judge.other_at_close, 7);
    assert_int_equal(r.sink.incidents, 3); // what it said while it closed
    assert_int_equal(alert.incidents, 3);
}

static void test_state_is_saved_and_loaded(void **state) {
    (void)state;
    void *bytes;
    size_t size;
    rig r;
    rig_open(&r, NULL, "{select: [{ops: [max]}]}");
    test_judge judge = {0};
    add_judge(&r, &judge);
    rig_start(&r);
    for (uint64_t step = 1; step <= 4; step++) rig_step(&r, step);
    assert_int_equal(keel_probe_drain(r.probe), KEEL_OK);
    assert_int_equal(keel_probe_save(r.probe, &bytes, &size), KEEL_OK);
    assert_int_equal(rig_close(&r), KEEL_OK);

    rig resumed;
    rig_open(&resumed, NULL, "{select: [{ops: [max]}]}");
    test_judge second = {0};
    add_judge(&resumed, &second);
    rig_start(&resumed);
    assert_int_equal(keel_probe_load(resumed.probe, 4, bytes, size), KEEL_OK);
    assert_int_equal(second.loaded_step, 4);
    assert_int_equal(keel_probe_health(resumed.probe).judged_step, 4);
    free(bytes);
    assert_int_equal(rig_close(&resumed), KEEL_OK);

    rig unjudged;
    rig_open(&unjudged, NULL, "{}");
    rig_start(&unjudged);
    assert_int_equal(keel_probe_save(unjudged.probe, &bytes, &size), KEEL_OK);
    assert_null(bytes);
    assert_int_equal(size, 0);
    assert_int_equal(keel_probe_health(unjudged.probe).judged_step, 0);
    assert_int_equal(rig_close(&unjudged), KEEL_OK);
}

static void test_closed_in_the_middle_of_a_step(void **state) {
    (void)state;
    rig r;
    rig_open(&r, NULL, "{select: [{ops: [max]}]}");
    rig_start(&r);
    rig_step(&r, 1);
    keel_step_begin(r.probe, 2);
    rig_observe(&r, 2);
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_int_equal(r.sink.count, 1);
    assert_int_equal(captured.count, 0);
}

static void test_step_begun_anew_starts_empty(void **state) {
    (void)state;
    rig r;
    rig_open(&r, NULL, "{select: [{ops: [max]}]}");
    rig_start(&r);
    keel_step_begin(r.probe, 1);
    rig_observe(&r, 100); // then the program jumps out of the step
    rig_step(&r, 1);
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_int_equal(r.sink.count, 1);
    assert_true(r.sink.rows[0].max == 1);
}

static void test_steps_that_repeat_are_all_kept(void **state) {
    (void)state;
    rig r;
    rig_open(&r, NULL, "{select: [{ops: [max]}]}");
    rig_start(&r);
    static const uint64_t steps[] = {1, 2, 3, 2, 3, 4}; // rolled back
    for (int i = 0; i < 6; i++) rig_step(&r, steps[i]);
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_int_equal(r.sink.count, 6);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(r.sink.rows[i].step.step, steps[i]);
        assert_int_equal(r.sink.rows[i].dropped, 0);
    }
}

static void test_bad_selection_opens_nothing(void **state) {
    (void)state;
    static const char text[] = "monitor: {select: [{ops: [nrom]}]}";
    keel_yaml *doc;
    keel_monitor_config *config;
    keel_monitor *monitor;
    assert_int_equal(keel_yaml_parse("m.yaml", text, sizeof text - 1, &doc), KEEL_OK);
    assert_int_equal(keel_monitor_config_read(doc, &config), KEEL_OK);
    assert_int_equal(keel_monitor_open(&(keel_monitor_options){.config = config}, &monitor), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "unknown op 'nrom'"));
    keel_monitor_config_free(config);
}

static void test_contradictory_site_fails_the_start(void **state) {
    (void)state;
    rig r;
    rig_open(&r, NULL, "{}");
    rig_add_contradiction(&r);
    assert_int_equal(keel_probe_start(r.probe), KEEL_ERR_USAGE);
    assert_string_equal(keel_error(), "site odd: quantity weight cannot have layout partial");
    assert_int_equal(rig_close(&r), KEEL_OK);
    assert_int_equal(r.sink.closes, 1);
    assert_null(r.sink.info);
}

static void test_memory_is_what_the_formula_says(void **state) {
    (void)state;
    rig r;
    rig_open(&r, NULL, "{queue_depth: 5, select: [{ops: [norm, max]}]}");
    rig_start(&r);
    const size_t scalars = keel_probe_scalar_count(r.probe);
    const size_t frame = 96 + 16 * scalars + RIG_SITES * sizeof(keel_stats), rounded = (frame + 63) / 64 * 64;
    const size_t tables =
        scalars * sizeof(keel_table_scalar) +
        RIG_SITES * (sizeof(keel_site_info) + sizeof(keel_site_plan) + sizeof(uint64_t) + sizeof(uint32_t));
    assert_int_equal(keel_monitor_bytes(r.monitor),
                     8 * rounded + keel_row_buffer_bytes(r.sink.info) + tables + RIG_SITES * sizeof(uint32_t));
    assert_int_equal(rig_close(&r), KEEL_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_come_in_order_with_their_values),
        cmocka_unit_test(test_times_that_are_not_given_are_measured),
        cmocka_unit_test(test_what_a_flush_keeps_back_fails_the_drain),
        cmocka_unit_test(test_scalars_do_not_share_a_column),
        cmocka_unit_test(test_sites_without_a_size_are_said),
        cmocka_unit_test(test_tables_of_the_run),
        cmocka_unit_test(test_slow_sink_never_delays_training),
        cmocka_unit_test(test_failing_sink_is_said_once),
        cmocka_unit_test(test_sink_that_cannot_start_is_left_out),
        cmocka_unit_test(test_sinks_are_refused_in_time),
        cmocka_unit_test(test_judge_speaks_to_every_sink),
        cmocka_unit_test(test_state_is_saved_and_loaded),
        cmocka_unit_test(test_closed_in_the_middle_of_a_step),
        cmocka_unit_test(test_step_begun_anew_starts_empty),
        cmocka_unit_test(test_steps_that_repeat_are_all_kept),
        cmocka_unit_test(test_bad_selection_opens_nothing),
        cmocka_unit_test(test_contradictory_site_fails_the_start),
        cmocka_unit_test(test_memory_is_what_the_formula_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
