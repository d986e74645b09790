// Rules on the machine: what grows, who is waited for, what stands still or dies, and on how many ranks a run goes on.
#include "tests/unit/analyzers/tensor_run.h"

static void a_leak_is_told_with_its_rank(void **unused) {
    (void)unused;
    for (int leak = 0; leak < 2; leak++) {
        tensor_run *r = tensor_open(2, tensor_plain);
        r->names[T_EXTRA] = "rss_growth_bytes";
        r->names[T_EXTRA_RANK] = "rss_growth_bytes_rank";
        r->names[T_MORE] = "rss_anon_bytes";
        tensor_begin(r);
        for (int i = 0; i < 300; i++) {
            tensor_next(r);
            // Without a leak: bursts that are given back, and a cache that fills up.
            r->scalars[T_EXTRA] = leak ? 524288.0 * i : 4e6 * (i % 50) + 2e7 * (1 - exp(-i / 60.0));
            r->scalars[T_EXTRA_RANK] = 1;
            r->scalars[T_MORE] = 2e8 + r->scalars[T_EXTRA];
            r->set[T_EXTRA] = r->set[T_EXTRA_RANK] = r->set[T_MORE] = true;
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "memory_growth", KEEL_WARNING);
        assert_int_equal(k != NULL, leak);
        if (k) assert_int_equal(k->rank, 1);
        if (k) assert_string_equal(k->cause, "memory leak");
        tensor_end(r);
    }
}

static void name_waits(tensor_run *r) {
    r->names[T_EXTRA] = "reduce_wait_seconds";
    r->names[T_MORE] = "reduce_wait_least_seconds";
    r->names[T_EXTRA_RANK] = "reduce_wait_least_seconds_rank";
}

static void set_waits(tensor_run *r, double most, double least, int least_rank) {
    r->scalars[T_EXTRA] = most;
    r->scalars[T_MORE] = least;
    r->scalars[T_EXTRA_RANK] = least_rank;
    r->set[T_EXTRA] = r->set[T_MORE] = r->set[T_EXTRA_RANK] = true;
}

static void the_rank_that_others_wait_for_is_named(void **unused) {
    (void)unused;
    enum { BURST, SHORT, STARVED, SLOW, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        tensor_run *r = tensor_open(4, tensor_plain);
        name_waits(r);
        r->names[T_LOSS_MAX] = "cpu_wait_seconds";
        tensor_begin(r);
        for (int i = 0; i < 200; i++) {
            tensor_next(r);
            // Noise: waits of any length, for any rank, a burst of 20 steps for one. Then a rank that is waited for:
            // for 80 steps of two milliseconds; or since it has no processor; or since it is slow.
            bool burst = i >= 100 && (kind != BURST || i < 120) && (kind != SHORT || i < 180);
            const double size = kind == SHORT ? 0.02 : 1;
            const double most = burst ? 0.05 : 0.04 * random_uniform(&r->seed);
            set_waits(r, size * most, size * 0.001, burst ? 2 : (int)(4 * random_uniform(&r->seed)));
            r->scalars[T_LOSS_MAX] = kind == STARVED && burst ? 0.045 : 0;
            r->set[T_LOSS_MAX] = true;
            r->row.step.seconds *= size;
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "straggler", KEEL_WARNING);
        assert_int_equal(k != NULL, kind == SLOW);
        if (k) assert_int_equal(k->rank, 2);
        if (k) assert_in_range(k->first_step, 90, 101);
        if (k) assert_string_equal(k->cause, "straggler");
        tensor_end(r);
    }
}

static void ranks_of_unequal_work_are_measured_by_their_past(void **unused) {
    (void)unused;
    enum { HEALTHY, SAME, OTHER, KINDS }; // the last stage always has more to do; then it, or the first, is slow
    for (int kind = 0; kind < 2 * KINDS; kind++) {
        tensor_run *r = tensor_open(2, tensor_plain);
        if (kind < KINDS)
            r->info.dp = 1, r->info.pp = 2;
        else
            r->info.ep = 2;
        const int what = kind % KINDS;
        name_waits(r);
        tensor_begin(r);
        for (int i = 0; i < 260; i++) {
            tensor_next(r);
            const bool slow = what != HEALTHY && i >= 160;
            const double share = slow && what == SAME ? 0.75 : slow ? 0.3 : 0.4;
            set_waits(r, share * r->row.step.seconds, 0, slow && what == OTHER ? 0 : 1);
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "straggler", KEEL_WARNING);
        assert_int_equal(k != NULL, what != HEALTHY);
        if (k) assert_int_equal(k->rank, what == SAME);
        tensor_end(r);
    }
}

static void a_step_that_does_not_end_is_told_while_it_lasts(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(2);
    assert_int_equal(keel_analysis_watch(r->analysis, 1000, NULL), KEEL_OK); // the first step may take its time
    tensor_quiet(r, 20);
    size_t changed;
    assert_int_equal(keel_analysis_watch(r->analysis, 299, NULL), KEEL_OK);
    assert_null(tensor_incident(r, "hang", KEEL_INFO));
    assert_int_equal(keel_analysis_watch(r->analysis, 301, NULL), KEEL_OK);
    keel_analysis_changed(r->analysis, &changed);
    assert_int_equal(changed, 1);
    const keel_incident *k = tensor_incident(r, "hang", KEEL_CRITICAL);
    assert_non_null(k);
    assert_int_equal(k->open, 1);
    assert_int_equal(k->first_step, 21);
    assert_string_equal(k->cause, "hang");
    assert_int_equal(keel_analysis_health(r->analysis).open_criticals, 1);
    tensor_next(r);
    r->row.step.seconds = 400;
    tensor_judge(r);
    k = tensor_incident(r, "hang", KEEL_CRITICAL);
    assert_int_equal(k->open, 0);
    assert_true(k->value == 400);
    assert_int_equal(keel_analysis_health(r->analysis).open_criticals, 0);
    const keel_incident live = *k;
    tensor_end(r);

    // Afterwards, from the rows alone.
    r = tensor_begun(2);
    tensor_quiet(r, 20);
    tensor_next(r);
    r->row.step.seconds = 400;
    tensor_judge(r);
    k = tensor_incident(r, "hang", KEEL_CRITICAL);
    assert_non_null(k);
    assert_string_equal(k->message, live.message);
    assert_int_equal(k->first_step, live.first_step);
    tensor_end(r);
}

static void a_hang_names_the_rank_that_others_wait_for(void **unused) {
    (void)unused;
    const keel_host_event silent = {
        .kind = KEEL_HOST_SILENT, .rank = 1, .step = 21, .seconds = 310, .how = "stopped by a signal"};
    for (int live = 0; live < 2; live++) {
        tensor_run *r = tensor_begun(2);
        tensor_quiet(r, 20);
        if (live) { // whoever has seen it writes it down first; of what nobody writes down it is told later
            assert_int_equal(keel_analysis_watch(r->analysis, 310, &silent), KEEL_OK);
            assert_null(tensor_incident(r, "hang", KEEL_CRITICAL));
            assert_int_equal(keel_analysis_watch(r->analysis, 380, &silent), KEEL_OK);
        } else {
            assert_int_equal(keel_analysis_event(r->analysis, &silent), KEEL_OK);
        }
        const keel_incident *k = tensor_incident(r, "hang", KEEL_CRITICAL);
        assert_non_null(k);
        assert_int_equal(k->rank, 1);
        assert_int_equal(k->first_step, 21);
        assert_int_equal(k->open, 1);
        char message[128];
        snprintf(message, sizeof message, "step 21 has gone on for %d s, waiting for rank 1 (stopped by a signal)",
                 live ? 380 : 310);
        assert_non_null(strstr(k->message, message));
        tensor_next(r);
        r->row.step.seconds = 400;
        tensor_judge(r);
        k = tensor_incident(r, "hang", KEEL_CRITICAL);
        assert_int_equal(k->open, 0);
        assert_int_equal(k->rank, 1);
        tensor_end(r);
    }
}

static void a_dead_rank_is_an_incident_until_the_run_goes_on(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(4);
    tensor_quiet(r, 20);
    const double died = r->row.step.time_unix + 1;
    const keel_host_event dead = {.kind = KEEL_HOST_GONE,
                                  .rank = 2,
                                  .step = 21,
                                  .time_unix = died,
                                  .pid = 77,
                                  .host = "here",
                                  .how = "it was killed or has crashed"};
    assert_int_equal(keel_analysis_event(r->analysis, &dead), KEEL_OK);
    keel_host_event later = dead; // what the launcher ends
    later.rank = 0;
    later.time_unix += 2;
    assert_int_equal(keel_analysis_event(r->analysis, &later), KEEL_OK);
    size_t count;
    const keel_incident *k = keel_analysis_incidents(r->analysis, &count);
    assert_int_equal(count, 1);
    assert_string_equal(k->rule, "dead_rank");
    assert_string_equal(k->cause, "dead rank");
    assert_int_equal(k->severity, KEEL_CRITICAL);
    assert_int_equal(k->rank, 2);
    assert_int_equal(k->open, 1);
    assert_string_equal(k->message, "rank 2 (process 77 on here) is gone in step 21: it was killed or has crashed");
    tensor_next(r);
    r->row.step.time_unix = died - 0.5; // was on its way when that rank died
    tensor_judge(r);
    assert_int_equal(tensor_incident(r, "dead_rank", KEEL_CRITICAL)->open, 1);
    tensor_next(r);
    r->row.step.time_unix = died + 100;
    tensor_judge(r);
    k = tensor_incident(r, "dead_rank", KEEL_CRITICAL);
    assert_int_equal(k->open, 0);
    assert_int_equal(k->rank, 2);
    assert_non_null(strstr(k->message, "the run has gone on since"));
    tensor_end(r);
}

static void a_resume_on_other_ranks_is_a_note(void **unused) {
    (void)unused;
    for (int same = 0; same < 2; same++) {
        tensor_run *r = tensor_begun(2);
        for (int i = 0; i < 40; i++) {
            tensor_next(r);
            r->row.step.first_batch = r->row.step.last_batch = r->step;
            tensor_judge(r);
        }
        if (!same) r->info.world_size = 4;
        assert_int_equal(keel_analysis_start(r->analysis, &r->info), KEEL_OK);
        tensor_next(r);
        r->row.step.flags = KEEL_STEP_RESUMED;
        r->row.step.first_batch = r->row.step.last_batch = 7;
        tensor_judge(r);
        const keel_incident *k = tensor_incident(r, "resume_discontinuity", KEEL_INFO);
        assert_non_null(k);
        assert_int_equal(k->severity, same ? KEEL_WARNING : KEEL_INFO);
        assert_int_equal(strstr(k->message, "on 4 ranks instead of 2") != NULL, !same);
        tensor_end(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_leak_is_told_with_its_rank),
        cmocka_unit_test(the_rank_that_others_wait_for_is_named),
        cmocka_unit_test(ranks_of_unequal_work_are_measured_by_their_past),
        cmocka_unit_test(a_step_that_does_not_end_is_told_while_it_lasts),
        cmocka_unit_test(a_hang_names_the_rank_that_others_wait_for),
        cmocka_unit_test(a_dead_rank_is_an_incident_until_the_run_goes_on),
        cmocka_unit_test(a_resume_on_other_ranks_is_a_note),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
