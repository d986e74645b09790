// Each rule fires on what it looks for, and keeps still on what resembles it.
#include "tests/unit/analyzers/synthetic_run.h"

typedef struct scene {
    synthetic_run run;
    keel_analysis *analysis;
    uint64_t seed;
    uint64_t step; // the last one
} scene;

static scene *begin(void) {
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    run_init(&s->run);
    s->analysis = analysis_of(&s->run);
    s->seed = 4711;
    return s;
}

static void end(scene *s) {
    keel_analysis_close(s->analysis);
    free(s);
}

// One healthy step, to be changed and then judged.
static void next(scene *s, double loss, double norm) {
    run_step(&s->run, ++s->step);
    run_set(&s->run, LOSS, loss * (1 + 0.005 * random_normal(&s->seed)));
    run_set(&s->run, GRAD_NORM, norm * exp(0.08 * random_normal(&s->seed)));
    run_set(&s->run, LR, 1e-3);
}

static void quiet(scene *s, uint64_t steps, double loss, double norm) {
    for (uint64_t i = 0; i < steps; i++) {
        next(s, loss, norm);
        judge(s->analysis, &s->run);
    }
}

static void step_with(scene *s, double loss, double norm) {
    run_step(&s->run, ++s->step);
    run_set(&s->run, LOSS, loss);
    run_set(&s->run, GRAD_NORM, norm);
    run_set(&s->run, LR, 1e-3);
    judge(s->analysis, &s->run);
}

static const keel_incident *only(scene *s, keel_severity at_least) {
    assert_int_equal(count_at_least(s->analysis, at_least), 1);
    return find_incident(s->analysis, at_least, "", 0, UINT64_MAX);
}

static void healthy_run_is_quiet(void **unused) {
    (void)unused;
    scene *s = begin();
    for (int i = 0; i < 3000; i++) {
        next(s, 2.5 + 8 * exp(-i / 300.0), 0.3 + exp(-i / 100.0));
        judge(s->analysis, &s->run);
    }
    assert_int_equal(count_at_least(s->analysis, KEEL_WARNING), 0);
    assert_int_equal(keel_analysis_health(s->analysis).quiet_steps, 3000);
    end(s);
}

static void a_bad_batch_is_one_warning(void **unused) {
    (void)unused;
    scene *s = begin();
    quiet(s, 200, 3, 0.4);
    step_with(s, 8, 6);
    assert_int_equal(count_at_least(s->analysis, KEEL_WARNING), 1); // told at once
    quiet(s, 100, 3, 0.4);
    const keel_incident *k = only(s, KEEL_WARNING);
    assert_int_equal(k->first_step, 201);
    assert_int_equal(k->last_step, 201);
    assert_int_equal(k->severity, KEEL_WARNING);
    assert_string_equal(k->rule, "loss_spike");
    assert_string_equal(k->series, "loss,grad_norm");
    assert_string_equal(k->cause, "bad batch");
    assert_int_equal(k->open, 0);
    end(s);
}

static void the_rank_whose_loss_stands_out_is_named(void **unused) {
    (void)unused;
    static const struct {
        uint32_t ranks;
        double greatest;
        int32_t rank;
    } cases[] = {{2, 13, 1}, {2, 8.2, -1}, {1, 13, -1}, {2, NAN, -1}}; // of a mean of 8; one of two ranks, or both
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scene *s = begin();
        s->run.info.world_size = cases[i].ranks;
        quiet(s, 200, 3, 0.4);
        next(s, 3, 0.4);
        run_set(&s->run, LOSS, 8);
        run_set(&s->run, LOSS_MAX, cases[i].greatest);
        run_set(&s->run, LOSS_MAX_RANK, 1);
        judge(s->analysis, &s->run);
        quiet(s, 100, 3, 0.4);
        const keel_incident *k = only(s, KEEL_WARNING);
        assert_string_equal(k->rule, "loss_spike");
        assert_int_equal(k->rank, cases[i].rank);
        end(s);
    }
}

// What rises again while the first excursion has hardly ended is part of it, but not its peak.
static void a_later_smaller_excursion_is_not_the_peak(void **unused) {
    (void)unused;
    scene *s = begin();
    quiet(s, 200, 3, 0.4);
    step_with(s, 3, 6);
    const keel_incident first = *only(s, KEEL_WARNING);
    assert_int_equal(first.peak_step, 201);
    quiet(s, 4, 3, 0.4);
    for (int i = 0; i < 3; i++) {
        step_with(s, 3, 4 + 0.1 * i);
        const keel_incident *k = only(s, KEEL_WARNING);
        assert_int_equal(k->peak_step, 201);
        assert_true(k->value == 6 && k->expected == first.expected && k->score == first.score);
        assert_non_null(strstr(k->message, "6 at step 201"));
    }
    assert_int_equal(only(s, KEEL_WARNING)->last_step, 208);
    quiet(s, 4, 3, 0.4);
    step_with(s, 3, 60); // a greater one is
    const keel_incident *k = only(s, KEEL_WARNING);
    assert_int_equal(k->first_step, 201);
    assert_int_equal(k->peak_step, 213);
    assert_true(k->value == 60 && k->score > first.score);
    end(s);
}

// A garbage batch early in a run, while the loss still falls fast.
static void a_bad_batch_in_the_descent(void **unused) {
    (void)unused;
    scene *s = begin();
    for (int i = 0; i < 120; i++) {
        next(s, 2.4 + 3.2 * exp(-i / 50.0), 1.2);
        judge(s->analysis, &s->run);
    }
    step_with(s, 5.4, 4);
    for (int i = 121; i < 160; i++) {
        next(s, 2.4 + 3.2 * exp(-i / 50.0), 1.2);
        judge(s->analysis, &s->run);
    }
    const keel_incident *k = only(s, KEEL_WARNING);
    assert_int_equal(k->first_step, 121);
    assert_non_null(strstr(k->series, "loss"));
    assert_non_null(strstr(k->series, "grad_norm"));
    end(s);
}

// BLOOM-176B, iterations 31214 to 31251 as printed, after 500 quiet steps at the level before: the norm leads the loss
// by four steps.
static void bloom_is_found_before_the_loss_peaks(void **unused) {
    (void)unused;
    static const struct {
        uint64_t step;
        double loss, norm;
    } printed[] = {{31214, 2.198845, 0.242},  {31215, 2.220424, 0.947},   {31216, 2.595213, 2.390},
                   {31217, 2.241558, 15.886}, {31218, 2.447426, 145.124}, {31219, 5.104393, 960.242},
                   {31220, 3.911081, 6.148},  {31221, 3.7, 6.5},          {31222, 3.5, 5.9},
                   {31223, 3.1, 3.0},         {31251, 2.3, 0.6}};
    scene *s = begin();
    s->step = 31214 - 501;
    quiet(s, 500, 2.2, 0.24);
    for (size_t i = 0; i < sizeof printed / sizeof *printed; i++) {
        s->step = printed[i].step - 1;
        step_with(s, printed[i].loss, printed[i].norm);
        if (printed[i].step == 31216) assert_int_equal(count_at_least(s->analysis, KEEL_WARNING), 1);
    }
    quiet(s, 200, 2.2, 0.24);
    const keel_incident *k = only(s, KEEL_WARNING);
    assert_true(k->first_step <= 31216);
    assert_int_equal(k->severity, KEEL_CRITICAL);
    assert_int_equal(k->peak_step, 31219);
    assert_string_equal(k->rule, "loss_spike");
    assert_non_null(strstr(k->series, "grad_norm"));
    end(s);
}

static void a_level_shift_is_one_incident(void **unused) {
    (void)unused;
    static const double to[] = {4.5, 1.5};
    for (int i = 0; i < 2; i++) {
        scene *s = begin();
        quiet(s, 1000, 3, 0.4);
        quiet(s, 5000, to[i], 0.4);
        size_t count = 0, all;
        const keel_incident *incidents = keel_analysis_incidents(s->analysis, &all);
        for (size_t k = 0; k < all; k++) {
            if (strcmp(incidents[k].rule, "plateau") == 0) continue;
            count++;
            if (to[i] < 3) assert_int_equal(incidents[k].first_step, 1001);
        }
        assert_int_equal(count, 1);
        assert_true(count_at_least(s->analysis, KEEL_CRITICAL) == (to[i] > 3));
        end(s);
    }
}

static void a_divergence_is_critical_and_stays_open(void **unused) {
    (void)unused;
    scene *s = begin();
    quiet(s, 5000, 3, 0.4);
    for (int i = 0; i < 300; i++) quiet(s, 1, 3 + 0.01 * i, 0.4); // too slow for a spike
    quiet(s, 2000, 6, 0.4);
    const keel_incident *k = only(s, KEEL_WARNING);
    assert_string_equal(k->rule, "loss_divergence");
    assert_int_equal(k->severity, KEEL_CRITICAL);
    assert_int_equal(k->open, 1);
    assert_true(k->first_step > 4900 && k->first_step < 5100);
    quiet(s, 500, 3, 0.4);
    assert_int_equal(only(s, KEEL_WARNING)->open, 0); // only recovery closes it
    end(s);
}

static void a_slow_rise_is_found_within_300(void **unused) {
    (void)unused;
    static const double levels[] = {1.5, 2.2, 3};
    for (int k = 0; k < 3; k++) {
        scene *s = begin();
        quiet(s, 2000, levels[k], 0.4);
        for (int i = 0; i < 300; i++) quiet(s, 1, levels[k] + 0.0006 * i, 0.4);
        const keel_incident *incident = only(s, KEEL_WARNING);
        assert_string_equal(incident->rule, "loss_divergence");
        end(s);
    }
}

static void scattered_nans_blind_nobody(void **unused) {
    (void)unused;
    scene *s = begin();
    for (int i = 0; i < 100000; i++) {
        next(s, 3, 0.4);
        if (i % 97 == 50 || i % 1013 == 7) run_set(&s->run, LOSS, NAN);
        if (i == 80000) run_set(&s->run, LOSS, 6);
        if (i == 90000) run_set(&s->run, GRAD_NORM, 4);
        judge(s->analysis, &s->run);
    }
    size_t count;
    keel_analysis_incidents(s->analysis, &count);
    assert_true(count < 8);
    const keel_incident *spike = find_incident(s->analysis, KEEL_WARNING, "loss", 80001, 80001);
    assert_non_null(spike);
    bool found_spike = false, found_norm = false;
    const keel_incident *incidents = keel_analysis_incidents(s->analysis, &count);
    for (size_t i = 0; i < count; i++) {
        found_spike |= strcmp(incidents[i].rule, "loss_spike") == 0 && incidents[i].peak_step == 80001;
        found_norm |= strcmp(incidents[i].rule, "grad_norm_spike") == 0 && incidents[i].peak_step == 90001;
    }
    assert_true(found_spike && found_norm);
    end(s);
}

static void a_learning_rate_jump_begins_the_incident(void **unused) {
    (void)unused;
    scene *s = begin();
    quiet(s, 150, 3, 0.4);
    for (int i = 0; i < 60; i++) {
        next(s, i == 0 ? 3 : 3 + fmin(2.5, 0.8 * i), i == 0 ? 0.4 : 3);
        run_set(&s->run, LR, 0.05);
        judge(s->analysis, &s->run);
    }
    const keel_incident *k = only(s, KEEL_WARNING);
    assert_int_equal(k->first_step, 151);
    assert_string_equal(k->cause, "learning rate jump");
    assert_non_null(strstr(k->series, "lr"));
    assert_int_equal(k->severity, KEEL_CRITICAL);
    end(s);
}

static void a_schedule_is_no_jump(void **unused) {
    (void)unused;
    scene *s = begin();
    for (int i = 1; i < 4000; i++) {
        next(s, 3, 0.4);
        double warm = fmin(1, i / 500.0), decay = 0.5 * (1 + cos(3.14159 * i / 4000.0));
        run_set(&s->run, LR, 1e-3 * warm * decay);
        judge(s->analysis, &s->run);
    }
    assert_null(find_incident(s->analysis, KEEL_INFO, "lr", 0, UINT64_MAX));
    end(s);
}

// ---- nonfinite ----

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
        const keel_site_info left = s->run.sites[0]; // apart from the others, so that one read beyond it is seen
        s->run.info.sites = &left;
        assert_int_equal(keel_analysis_start(s->analysis, &s->run.info), KEEL_OK);
        step_with(s, NAN, NAN);
        const keel_incident *k = only(s, KEEL_WARNING);
        assert_string_equal(k->site, "layers.15:activation");
        assert_non_null(strstr(k->message, "NaN first seen in layers.15 (activation) on rank 1 at step 101"));
        assert_non_null(strstr(k->message, "up to step 122"));
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

// ---- context ----

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

// ---- notes ----

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
        cmocka_unit_test(healthy_run_is_quiet),
        cmocka_unit_test(a_bad_batch_is_one_warning),
        cmocka_unit_test(the_rank_whose_loss_stands_out_is_named),
        cmocka_unit_test(a_later_smaller_excursion_is_not_the_peak),
        cmocka_unit_test(a_bad_batch_in_the_descent),
        cmocka_unit_test(bloom_is_found_before_the_loss_peaks),
        cmocka_unit_test(a_level_shift_is_one_incident),
        cmocka_unit_test(a_divergence_is_critical_and_stays_open),
        cmocka_unit_test(a_slow_rise_is_found_within_300),
        cmocka_unit_test(scattered_nans_blind_nobody),
        cmocka_unit_test(a_learning_rate_jump_begins_the_incident),
        cmocka_unit_test(a_schedule_is_no_jump),
        cmocka_unit_test(the_first_bad_site_is_named),
        cmocka_unit_test(a_bad_weight_of_another_replica_is_found),
        cmocka_unit_test(a_bad_site_keeps_its_name_in_other_tables),
        cmocka_unit_test(an_earlier_micro_batch_comes_first),
        cmocka_unit_test(a_weight_spoilt_the_step_before_is_the_origin),
        cmocka_unit_test(an_unsampled_origin_is_said),
        cmocka_unit_test(the_search_for_the_loss_scale_is_quiet),
        cmocka_unit_test(norms_that_are_not_finite),
        cmocka_unit_test(a_collapse_of_the_loss_scale_is_found),
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
