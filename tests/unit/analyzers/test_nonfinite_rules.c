// NaN and infinity: the first bad site is named, the search for a loss scale is quiet.
#include "tests/unit/analyzers/rule_scene.h"

static scene *begin_with_sites(void) {
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    run_init(&s->run);
    run_add_site(&s->run, "head", KEEL_ACTIVATION, KEEL_PHASE_FORWARD, 9); // registered out of order
    run_add_site(&s->run, "layers.2.mlp.down", KEEL_ACTIVATION, KEEL_PHASE_FORWARD, 5);
    run_add_site(&s->run, "layers.3.attention", KEEL_ACTIVATION, KEEL_PHASE_FORWARD, 7);
    run_add_site(&s->run, "layers.2.mlp.down.weight", KEEL_GRAD_UNREDUCED, KEEL_PHASE_BACKWARD, 3);
    run_add_site(&s->run, "bucket.0", KEEL_COLLECTIVE_OUT, KEEL_PHASE_REDUCTION, 0);
    run_add_site(&s->run, "layers.2.mlp.down.weight", KEEL_WEIGHT, KEEL_PHASE_OPTIMIZER, 1);
    s->analysis = analysis_of(&s->run);
    s->seed = 99;
    return s;
}

static void the_first_bad_site_is_named(void **unused) {
    (void)unused;
    scene *s = begin_with_sites();
    quiet(s, 119, 3, 0.4);
    next(s, 3, 0.4);
    run_set(&s->run, LOSS, NAN);
    run_set(&s->run, GRAD_NORM, NAN);
    run_bad_site(&s->run, 4, 0, 0);
    run_bad_site(&s->run, 0, 1, 0);
    run_bad_site(&s->run, 1, 1, 0);
    run_bad_site(&s->run, 2, 1, 0);
    run_bad_site(&s->run, 3, 1, 0);
    judge(s->analysis, &s->run);
    const keel_incident *k = only(s, KEEL_CRITICAL); // at once
    assert_string_equal(k->message,
                        "NaN first seen in layers.2.mlp.down (activation) on rank 1 at step 120, forward of "
                        "micro-batch 0; loss and 4 later sites followed");
    assert_string_equal(k->site, "layers.2.mlp.down:activation");
    assert_int_equal(k->rank, 1);
    assert_int_equal(k->first_step, 120);
    assert_string_equal(k->cause, "non-finite tensor");
    assert_non_null(strstr(k->series, "loss"));
    for (int i = 0; i < 50; i++) { // it goes on for ever: one incident still
        next(s, 3, 0.4);
        run_set(&s->run, LOSS, NAN);
        run_bad_site(&s->run, 0, 0, 0);
        judge(s->analysis, &s->run);
    }
    k = only(s, KEEL_INFO);
    assert_string_equal(k->site, "layers.2.mlp.down:activation");
    assert_int_equal(k->last_step, 170);
    const keel_incident_extra *extra = keel_analysis_extra(s->analysis, 0);
    assert_int_equal(extra->evidence_count, 5);
    assert_non_null(strstr(extra->evidence[1], "layers.3.attention"));
    assert_non_null(strstr(extra->evidence[4], "bucket.0"));
    end(s);
}

// The counts are those of replica 0; another replica's weight is told by its rank alone, which may be 0 as well.
static void a_bad_weight_of_another_replica_is_found(void **unused) {
    (void)unused;
    for (uint64_t rank = 0; rank < 2; rank++) {
        scene *s = begin_with_sites();
        quiet(s, 10, 3, 0.4);
        next(s, 3, 0.4);
        s->run.rank[5] = rank;
        judge(s->analysis, &s->run);
        const keel_incident *k = only(s, KEEL_CRITICAL);
        assert_string_equal(k->site, "layers.2.mlp.down.weight:weight");
        assert_string_equal(k->series, "rank_nonfinite");
        assert_int_equal(k->rank, rank);
        assert_int_equal(k->first_step, 11);
        char text[64];
        snprintf(text, sizeof text, "(weight) on rank %d at step 11", (int)rank);
        assert_ptr_equal(strstr(k->message, "NaN or Inf first seen in layers.2.mlp.down.weight "), k->message);
        assert_non_null(strstr(k->message, text));
        end(s);
    }
}

// The run goes on with fewer sites, and the first bad one among those that are gone, or under another id.
static void a_bad_site_keeps_its_name_in_other_tables(void **unused) {
    (void)unused;
    for (uint32_t kept = 1; kept <= 2; kept++) {
        scene *s = begin();
        char names[MAX_SITES][16];
        for (uint32_t i = 0; i < MAX_SITES; i++) {
            snprintf(names[i], sizeof names[i], "layers.%u", i);
            run_add_site(&s->run, names[i], KEEL_ACTIVATION, KEEL_PHASE_FORWARD, i);
        }
        assert_int_equal(keel_analysis_start(s->analysis, &s->run.info), KEEL_OK);
        quiet(s, 100, 3, 1);
        next(s, NAN, NAN);
        run_bad_site(&s->run, MAX_SITES - 1, 1, 0);
        judge(s->analysis, &s->run);
        quiet(s, 20, 3, 1);
        if (kept == 2) s->run.sites[0] = s->run.sites[MAX_SITES - 1];
        s->run.info.site_count = 1;
        s->run.info.sites = memcpy(malloc(sizeof *s->run.sites), s->run.sites, sizeof *s->run.sites);
        assert_int_equal(keel_analysis_start(s->analysis, &s->run.info), KEEL_OK);
        step_with(s, NAN, NAN);
        const keel_incident *k = only(s, KEEL_WARNING);
        assert_string_equal(k->site, "layers.15:activation");
        assert_non_null(strstr(k->message, "NaN first seen in layers.15 (activation) on rank 1 at step 101"));
        assert_non_null(strstr(k->message, "up to step 122"));
        free((void *)(uintptr_t)s->run.info.sites);
        end(s);
    }
}

static void an_earlier_micro_batch_comes_first(void **unused) {
    (void)unused;
    scene *s = begin_with_sites();
    quiet(s, 10, 3, 0.4);
    next(s, 3, 0.4);
    run_bad_site(&s->run, 1, 0, 2); // first in the forward pass, but of micro-batch 2
    run_bad_site(&s->run, 3, 1, 1);
    judge(s->analysis, &s->run);
    const keel_incident *k = only(s, KEEL_WARNING);
    assert_string_equal(k->site, "layers.2.mlp.down.weight:grad_unreduced");
    assert_int_equal(k->rank, 1);
    end(s);
}

static void a_weight_spoilt_the_step_before_is_the_origin(void **unused) {
    (void)unused;
    scene *s = begin_with_sites();
    quiet(s, 10, 3, 0.4);
    next(s, 3, 0.4);
    run_bad_site(&s->run, 5, 0, UINT64_MAX);
    judge(s->analysis, &s->run);
    next(s, 3, 0.4);
    run_set(&s->run, LOSS, NAN);
    run_bad_site(&s->run, 1, 0, 0);
    judge(s->analysis, &s->run);
    const keel_incident *k = only(s, KEEL_CRITICAL);
    assert_string_equal(k->site, "layers.2.mlp.down.weight:weight");
    assert_int_equal(k->first_step, 11);
    end(s);
}

static void an_unsampled_origin_is_said(void **unused) {
    (void)unused;
    scene *s = begin();
    quiet(s, 10, 3, 0.4);
    step_with(s, INFINITY, 1);
    assert_non_null(strstr(only(s, KEEL_CRITICAL)->message, "loss is +Inf at step 11; origin not sampled"));
    end(s);
    s = begin_with_sites();
    quiet(s, 10, 3, 0.4);
    step_with(s, NAN, 1);
    assert_non_null(strstr(only(s, KEEL_CRITICAL)->message, "no observed tensor was non-finite"));
    end(s);
}

static void the_search_for_the_loss_scale_is_quiet(void **unused) {
    (void)unused;
    scene *s = begin();
    double scale = 65536 * 65536.0;
    for (int i = 0; i < 400; i++) {
        next(s, 3, 0.4);
        if (i < 14) {
            run_set(&s->run, GRAD_NORM, INFINITY);
            s->run.row.step.flags = KEEL_STEP_SKIPPED | KEEL_STEP_OVERFLOW;
            scale /= 2;
        }
        run_set(&s->run, LOSS_SCALE, scale);
        judge(s->analysis, &s->run);
    }
    assert_int_equal(count_at_least(s->analysis, KEEL_INFO), 0);
    end(s);
}

// A log that prints only norms: in its first records they belong to the search; later one is a warning, and some in a
// row are lost.
static void norms_that_are_not_finite(void **unused) {
    (void)unused;
    scene *s = begin();
    for (int i = 0; i < 40; i++) step_with(s, 3, i < 12 ? INFINITY : 0.4);
    quiet(s, 200, 3, 0.4);
    assert_int_equal(count_at_least(s->analysis, KEEL_INFO), 0);
    step_with(s, 3, NAN);
    quiet(s, 50, 3, 0.4);
    assert_int_equal(only(s, KEEL_WARNING)->severity, KEEL_WARNING);
    for (int i = 0; i < 5; i++) step_with(s, 0, NAN);
    assert_int_equal(only(s, KEEL_WARNING)->severity, KEEL_CRITICAL);
    end(s);
}

static void a_collapse_of_the_loss_scale_is_found(void **unused) {
    (void)unused;
    scene *s = begin();
    s->step = 5000;
    double scale = 65536;
    for (int i = 0; i < 600; i++) {
        next(s, 3, 0.4);
        if (i > 500 && i % 10 == 0) {
            scale /= 2;
            s->run.row.step.flags = KEEL_STEP_SKIPPED | KEEL_STEP_OVERFLOW;
        }
        run_set(&s->run, LOSS_SCALE, scale);
        judge(s->analysis, &s->run);
    }
    const keel_incident *k = only(s, KEEL_WARNING);
    assert_string_equal(k->rule, "loss_scale_collapse");
    end(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_bad_site_is_named),
        cmocka_unit_test(a_bad_weight_of_another_replica_is_found),
        cmocka_unit_test(a_bad_site_keeps_its_name_in_other_tables),
        cmocka_unit_test(an_earlier_micro_batch_comes_first),
        cmocka_unit_test(a_weight_spoilt_the_step_before_is_the_origin),
        cmocka_unit_test(an_unsampled_origin_is_said),
        cmocka_unit_test(the_search_for_the_loss_scale_is_quiet),
        cmocka_unit_test(norms_that_are_not_finite),
        cmocka_unit_test(a_collapse_of_the_loss_scale_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
