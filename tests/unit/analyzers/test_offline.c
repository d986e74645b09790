// The rules over a store: the same JSON as live, byte for byte, also where the run was stopped, resumed and rolled
// back.
#include "tests/unit/analyzers/synthetic_run.h"

#include <unistd.h>

#include "analyzers/report/report.h"
#include "collectors/store/writer.h"
#include "tests/unit/temp_folder.h"

static char directory[64];
static double began; // of the job, in seconds

static int make_directory(void **unused) {
    (void)unused;
    strcpy(directory, "/tmp/keel-offline-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **unused) {
    (void)unused;
    return temp_remove(directory);
}

static void fill_row(synthetic_run *run, uint64_t seed, uint64_t step) {
    uint64_t state = seed * 1000003 + step * 7919 + 12345; // a function of the step, so that a part can be done again
    for (int i = 0; i < 4; i++) random_uniform(&state);
    run_step(run, step);
    run->row.step.time_unix = began + (double)step;
    run_set(run, LOSS, 3 * (1 + 0.01 * random_normal(&state)));
    run_set(run, GRAD_NORM, 0.4 * exp(0.2 * random_normal(&state)));
    run_set(run, LR, 1e-3);
    if (step % 331 == 0) run_set(run, LOSS, 6);
    if (step == 700) {
        run_set(run, LOSS, NAN);
        run_bad_site(run, 1, 1, 0);
    }
}

static synthetic_run *new_run(void) {
    synthetic_run *run = malloc(sizeof *run);
    assert_non_null(run);
    run_init(run);
    strcpy(run->info.run_id, "example");
    run_add_site(run, "layers.0", KEEL_ACTIVATION, KEEL_PHASE_FORWARD, 0);
    run_add_site(run, "layers.1", KEEL_ACTIVATION, KEEL_PHASE_FORWARD, 1);
    run->info.op_stored[KEEL_OP_rank_nonfinite] = run->info.op_stored[KEEL_OP_micro_nonfinite] = true;
    return run;
}

// Steps FROM to TO into a new segment, and through LIVE (NULL: none).
static void write_segment(synthetic_run *run, keel_analysis *live, uint64_t seed, uint64_t from, uint64_t to) {
    keel_sink sink;
    assert_int_equal(keel_store_sink_open(directory, &(keel_store_options){.pack_seconds = -1}, &sink), KEEL_OK);
    assert_int_equal(sink.start(sink.context, &run->info), KEEL_OK);
    for (uint64_t step = from; step <= to; step++) {
        fill_row(run, seed, step);
        if (step == from && from > 1) run->row.step.flags = KEEL_STEP_RESUMED;
        assert_int_equal(sink.row(sink.context, &run->row), KEEL_OK);
        if (live) judge(live, run);
    }
    if (sink.flush) assert_int_equal(sink.flush(sink.context), KEEL_OK);
    sink.close(sink.context);
}

static char *json_of(const keel_result *result) {
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(keel_report_json(&result, 1, out), KEEL_OK);
    fclose(out);
    return text;
}

static void assert_judged_as(keel_analysis *live) {
    keel_result *stored;
    assert_int_equal(keel_offline_store(directory, NULL, &stored), KEEL_OK);
    keel_result by_hand = *stored;
    by_hand.records = keel_analysis_records(live);
    by_hand.first_step = keel_analysis_first_step(live);
    by_hand.last_step = keel_analysis_last_step(live);
    by_hand.incidents = keel_analysis_incidents(live, &by_hand.incident_count);
    by_hand.analysis = live;
    char *later = json_of(stored), *now = json_of(&by_hand);
    assert_true(by_hand.incident_count > 3);
    assert_string_equal(later, now);
    free(later);
    free(now);
    keel_result_free(stored);
}

static void a_store_is_judged_as_the_live_run_was(void **unused) {
    (void)unused;
    synthetic_run *run = new_run();
    keel_analysis *live = analysis_of(run);
    write_segment(run, live, 1, 1, 1500);
    assert_judged_as(live);
    keel_analysis_close(live);
    free(run);
}

static keel_analysis *resumed(synthetic_run *run, keel_analysis *stopped, const void *bytes, size_t size) {
    keel_analysis *next = analysis_of(run);
    size_t count;
    const keel_incident *incidents = keel_analysis_incidents(stopped, &count);
    for (size_t i = 0; i < count; i++) keel_analysis_set_last_id(next, incidents[i].id);
    assert_int_equal(keel_analysis_load(next, keel_analysis_last_step(stopped), bytes, size), KEEL_OK);
    keel_analysis_close(stopped);
    return next;
}

static void a_stop_and_resume_changes_nothing(void **unused) {
    (void)unused;
    synthetic_run *run = new_run();
    keel_analysis *live = analysis_of(run);
    write_segment(run, live, 1, 1, 800);
    void *bytes;
    size_t size;
    assert_int_equal(keel_analysis_save(live, &bytes, &size), KEEL_OK);
    live = resumed(run, live, bytes, size);
    free(bytes);
    write_segment(run, live, 1, 801, 1500);
    assert_judged_as(live);
    keel_analysis_close(live);
    free(run);
}

static size_t count_discarded(const keel_result *result) {
    size_t count = 0;
    for (size_t i = 0; i < result->incident_count; i++) count += keel_analysis_extra(result->analysis, i)->discarded;
    return count;
}

// The run goes to 800, is taken up again at 601, goes to 1200, is taken up again at 501: what holds is judged as if it
// had been so at once.
static void rolled_back_parts_are_judged_from_the_checkpoint(void **unused) {
    (void)unused;
    synthetic_run *run = new_run();
    write_segment(run, NULL, 1, 1, 800);    // spikes at 331, 662; NaN at 700
    write_segment(run, NULL, 1, 601, 1200); // again, and 993
    write_segment(run, NULL, 1, 501, 1500); // again, and 1324
    keel_result *result;
    assert_int_equal(keel_offline_store(directory, NULL, &result), KEEL_OK);
    assert_int_equal(count_discarded(result), 2 + 3);
    keel_analysis *once = analysis_of(run);
    for (uint64_t step = 1; step <= 1500; step++) {
        fill_row(run, 1, step);
        if (step == 501) run->row.step.flags = KEEL_STEP_RESUMED;
        judge(once, run);
    }
    size_t count, found = 0;
    const keel_incident *wanted = keel_analysis_incidents(once, &count);
    for (size_t i = 0; i < result->incident_count; i++) {
        if (keel_analysis_extra(result->analysis, i)->discarded) continue;
        keel_incident k = result->incidents[i];
        assert_true(found < count);
        k.id = wanted[found].id; // those that were discarded have taken some
        assert_memory_equal(&k, &wanted[found], sizeof k);
        found++;
    }
    assert_int_equal(found, count);
    assert_int_equal(result->last_step, 1500);
    keel_analysis_close(once);
    keel_result_free(result);
    free(run);
}

static void the_runs_own_settings_judge_it(void **unused) {
    (void)unused;
    synthetic_run *run = new_run();
    run->info.config_yaml = "monitor:\n  rules:\n    loss_spike: {enabled: false}\n";
    write_segment(run, NULL, 1, 1, 600);
    keel_result *result;
    assert_int_equal(keel_offline_store(directory, NULL, &result), KEEL_OK);
    assert_int_equal(result->incident_count, 0);
    keel_result_free(result);
    keel_monitor_config *config;
    assert_int_equal(keel_monitor_config_default(&config), KEEL_OK);
    assert_int_equal(keel_offline_store(directory, config, &result), KEEL_OK);
    assert_int_equal(result->incident_count, 1);
    keel_result_free(result);
    keel_monitor_config_free(config);
    free(run);
}

// A rule that was off in one job and on in the other, in either order.
static void each_segment_is_judged_by_its_own_settings(void **unused) {
    (void)unused;
    static const char *const settings[] = {"monitor:\n  rules:\n    loss_spike: {enabled: false}\n", ""};
    for (uint64_t on = 0; on < 2; on++) {
        synthetic_run *run = new_run();
        run->info.config_yaml = settings[1 - on];
        write_segment(run, NULL, 1, 1, 500); // a spike at 331
        run->info.config_yaml = settings[on];
        write_segment(run, NULL, 1, 501, 690); // and at 662
        keel_result *result;
        assert_int_equal(keel_offline_store(directory, NULL, &result), KEEL_OK);
        assert_int_equal(result->incident_count, 1);
        assert_int_equal(result->incidents[0].first_step, on ? 662 : 331);
        keel_result_free(result);
        free(run);
        assert_int_equal(remove_directory(NULL), 0);
        assert_int_equal(make_directory(NULL), 0);
    }
}

static void host_says(const char *host, keel_host_event event) {
    snprintf(event.host, sizeof event.host, "%s", host);
    assert_int_equal(keel_host_event_write(directory, &event), KEEL_OK);
}

static const keel_incident *find_rule(const keel_result *result, const char *rule, size_t *count) {
    const keel_incident *found = NULL;
    *count = 0;
    for (size_t i = 0; i < result->incident_count; i++) {
        if (strcmp(result->incidents[i].rule, rule) != 0) continue;
        found = &result->incidents[i];
        ++*count;
    }
    return found;
}

// Two hosts tell: of a hang that passed, of the death that ended the job, and of those that followed from it.
static void what_hosts_saw_is_judged_between_the_rows(void **unused) {
    (void)unused;
    synthetic_run *run = new_run();
    began = 1e9;
    write_segment(run, NULL, 1, 1, 100);
    host_says("a", (keel_host_event){.kind = KEEL_HOST_SILENT,
                                     .rank = 6,
                                     .step = 51,
                                     .time_unix = began + 50.5,
                                     .seconds = 400,
                                     .how = "stopped by a signal"});
    host_says("b", (keel_host_event){.kind = KEEL_HOST_GONE, .rank = 5, .step = 101, .time_unix = began + 102});
    host_says("a", (keel_host_event){
                       .kind = KEEL_HOST_GONE, .rank = 3, .step = 101, .time_unix = began + 100.5, .how = "killed"});
    keel_result *result;
    size_t count;
    assert_int_equal(keel_offline_store(directory, NULL, &result), KEEL_OK);
    const keel_incident *dead = find_rule(result, "dead_rank", &count);
    assert_int_equal(count, 1);
    assert_int_equal(dead->rank, 3);
    assert_int_equal(dead->open, 1);
    assert_int_equal(dead->first_step, 101);
    const keel_incident *hang = find_rule(result, "hang", &count);
    assert_int_equal(count, 1);
    assert_int_equal(hang->rank, 6);
    assert_int_equal(hang->open, 0); // the next row came
    assert_int_equal(hang->first_step, 51);
    keel_result_free(result);

    began = 1e9 + 1000;
    write_segment(run, NULL, 1, 81, 200); // resumed from before it
    assert_int_equal(keel_offline_store(directory, NULL, &result), KEEL_OK);
    dead = find_rule(result, "dead_rank", &count);
    assert_int_equal(count, 1);
    assert_int_equal(dead->rank, 3);
    assert_int_equal(dead->open, 0);
    keel_result_free(result);
    began = 0;
    free(run);
}

static void no_store_is_an_error(void **unused) {
    (void)unused;
    keel_result *result;
    assert_int_not_equal(keel_offline_store("/tmp/keel-no-such-run", NULL, &result), KEEL_OK);
    assert_non_null(strstr(keel_error(), "keel-no-such-run"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_store_is_judged_as_the_live_run_was, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_stop_and_resume_changes_nothing, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(rolled_back_parts_are_judged_from_the_checkpoint, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(the_runs_own_settings_judge_it, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(each_segment_is_judged_by_its_own_settings, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(what_hosts_saw_is_judged_between_the_rows, make_directory, remove_directory),
        cmocka_unit_test(no_store_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
