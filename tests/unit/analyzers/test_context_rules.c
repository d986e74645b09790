// What stands around a trouble: epochs, batches, resumes; and what is a note only.
#include "tests/unit/analyzers/rule_scene.h"

static void a_jump_at_an_epoch_is_named_so(void **unused) {
    (void)unused;
    scene *s = begin();
    quiet(s, 300, 3, 0.4);
    next(s, 5, 0.4);
    s->run.row.step.flags = KEEL_STEP_EPOCH;
    judge(s->analysis, &s->run);
    quiet(s, 50, 3, 0.4);
    const keel_incident *k = only(s, KEEL_WARNING);
    assert_string_equal(k->rule, "data_order");
    assert_int_equal(k->severity, KEEL_WARNING);
    assert_non_null(strstr(k->series, "loss"));
    end(s);
}

static void set_batches(scene *s, uint64_t batch) {
    s->run.row.step.first_batch = s->run.row.step.last_batch = batch;
    s->run.row.step.samples = 8 * batch;
}

static void the_same_batch_twice_is_found(void **unused) {
    (void)unused;
    scene *s = begin();
    for (uint64_t i = 1; i <= 200; i++) {
        next(s, 3, 0.4);
        set_batches(s, i > 150 ? 150 : i);
        judge(s->analysis, &s->run);
    }
    const keel_incident *k = only(s, KEEL_WARNING);
    assert_string_equal(k->rule, "data_order");
    assert_string_equal(k->series, "batch");
    assert_int_equal(k->first_step, 151);
    end(s);
}

static void a_resume_that_continues_is_quiet_one_that_does_not_is_found(void **unused) {
    (void)unused;
    for (int broken = 0; broken < 2; broken++) {
        scene *s = begin();
        for (uint64_t i = 1; i <= 400; i++) {
            next(s, broken && i > 200 ? 3.6 : 3, 0.4);
            set_batches(s, broken && i > 200 ? i - 200 : i);
            run_set(&s->run, LR, 1e-3 + 1e-7 * (double)(broken && i > 200 ? 0 : i));
            if (i == 201) s->run.row.step.flags = KEEL_STEP_RESUMED;
            judge(s->analysis, &s->run);
        }
        if (!broken)
            assert_int_equal(count_at_least(s->analysis, KEEL_WARNING), 0);
        else {
            const keel_incident *k = only(s, KEEL_WARNING);
            assert_string_equal(k->rule, "resume_discontinuity");
            assert_int_equal(k->first_step, 201);
            assert_non_null(strstr(k->series, "batch"));
            assert_non_null(strstr(k->series, "lr"));
            assert_non_null(strstr(k->series, "loss"));
        }
        end(s);
    }
}

// With batches of twice the size their numbers go on from half.
static void a_resume_with_other_batches_is_quiet(void **unused) {
    (void)unused;
    for (uint64_t wrong = 0; wrong < 2; wrong++) {
        scene *s = begin();
        for (uint64_t i = 1; i <= 300; i++) {
            next(s, 3, 0.4);
            set_batches(s, i);
            if (i > 200) {
                const uint64_t batch = 100 + (i - 201) - 3 * wrong;
                s->run.row.step.first_batch = s->run.row.step.last_batch = batch;
                s->run.row.step.samples = 8 * 200 + 16 * (i - 200);
            }
            if (i == 201) s->run.row.step.flags = KEEL_STEP_RESUMED;
            judge(s->analysis, &s->run);
        }
        assert_int_equal(count_at_least(s->analysis, KEEL_WARNING), wrong);
        end(s);
    }
}

static void overlapping_steps_are_no_incident(void **unused) {
    (void)unused;
    scene *s = begin();
    quiet(s, 500, 3, 0.4);
    s->step = 400;
    quiet(s, 500, 3, 0.4);
    assert_int_equal(count_at_least(s->analysis, KEEL_INFO), 0);
    end(s);
}

static void repeated_lines_count_once_for_the_rules(void **unused) {
    (void)unused;
    scene *s = begin();
    for (int i = 0; i < 300; i++) {
        next(s, i == 250 ? 7 : 3, 0.4);
        for (int rank = 0; rank < 8; rank++) judge(s->analysis, &s->run);
    }
    const keel_incident *k = only(s, KEEL_WARNING);
    assert_int_equal(k->severity, KEEL_WARNING); // one record, not eight
    end(s);
}

static void a_plateau_is_a_note(void **unused) {
    (void)unused;
    scene *s = begin();
    for (int i = 0; i < 2000; i++) quiet(s, 1, 3 + exp(-i / 400.0), 0.4);
    quiet(s, 4000, 3, 0.4);
    const keel_incident *k = only(s, KEEL_INFO);
    assert_string_equal(k->rule, "plateau");
    end(s);
}

static void clipping_that_never_or_always_acts_is_a_note(void **unused) {
    (void)unused;
    static const struct {
        double max_norm;
        const char *rule;
    } cases[] = {{100, "clip_ineffective"}, {0.05, "clip_constant"}, {0.5, NULL}};
    for (int c = 0; c < 3; c++) {
        scene *s = begin();
        char yaml[64];
        snprintf(yaml, sizeof yaml, "runner_wrapper:\n  max_grad_norm: %g\n", cases[c].max_norm);
        s->run.info.config_yaml = yaml;
        assert_int_equal(keel_analysis_start(s->analysis, &s->run.info), KEEL_OK);
        quiet(s, 1500, 3, 0.4);
        if (cases[c].rule)
            assert_string_equal(only(s, KEEL_INFO)->rule, cases[c].rule);
        else
            assert_int_equal(count_at_least(s->analysis, KEEL_INFO), 0);
        end(s);
    }
}

// A threshold a hundred times the greatest of 64 norms needs no 500 of them; in 16 bits it is a warning.
static void a_clip_threshold_far_above_all_norms_is_told_early(void **unused) {
    (void)unused;
    scene *s = begin();
    s->run.info.config_yaml = "model_config: {compute_dtype: bfloat16}\nrunner_wrapper: {max_grad_norm: 1000}\n";
    assert_int_equal(keel_analysis_start(s->analysis, &s->run.info), KEEL_OK);
    quiet(s, 63, 3, 0.4);
    assert_int_equal(count_at_least(s->analysis, KEEL_INFO), 0);
    quiet(s, 1, 3, 0.4);
    const keel_incident *k = only(s, KEEL_WARNING);
    assert_string_equal(k->rule, "clip_ineffective");
    assert_string_equal(k->cause, "clip threshold above the gradient norm");
    quiet(s, 600, 3, 0.4);
    assert_ptr_equal(only(s, KEEL_WARNING), k);
    assert_true(k->open);
    end(s);
}

// The steep beginning of a run is no measure of the noise after it.
static void a_spike_soon_after_a_steep_beginning_is_told(void **unused) {
    (void)unused;
    scene *s = begin();
    for (int i = 0; i < 68; i++) quiet(s, 1, 2.5 + 3 * exp(-i / 12.0), 0.4);
    assert_int_equal(count_at_least(s->analysis, KEEL_WARNING), 0);
    next(s, 6.5, 0.4);
    judge(s->analysis, &s->run);
    assert_string_equal(only(s, KEEL_WARNING)->rule, "loss_spike");
    end(s);
}

static void absent_and_zero_norms_are_not_judged(void **unused) {
    (void)unused;
    scene *s = begin();
    for (int i = 0; i < 1000; i++) {
        next(s, 3, 0.4);
        if (i < 300) run_set(&s->run, GRAD_NORM, 0);
        if (i % 3 == 0) s->run.set[GRAD_NORM] = false;
        judge(s->analysis, &s->run);
    }
    assert_int_equal(count_at_least(s->analysis, KEEL_INFO), 0);
    end(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_jump_at_an_epoch_is_named_so),
        cmocka_unit_test(the_same_batch_twice_is_found),
        cmocka_unit_test(a_resume_that_continues_is_quiet_one_that_does_not_is_found),
        cmocka_unit_test(a_resume_with_other_batches_is_quiet),
        cmocka_unit_test(overlapping_steps_are_no_incident),
        cmocka_unit_test(repeated_lines_count_once_for_the_rules),
        cmocka_unit_test(a_plateau_is_a_note),
        cmocka_unit_test(clipping_that_never_or_always_acts_is_a_note),
        cmocka_unit_test(a_clip_threshold_far_above_all_norms_is_told_early),
        cmocka_unit_test(a_spike_soon_after_a_steep_beginning_is_told),
        cmocka_unit_test(absent_and_zero_norms_are_not_judged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
