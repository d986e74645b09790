// The analysis as a whole: the same incidents after a stop and resume, after a rollback, with other parameters; health;
// wrong states.
#include "tests/unit/analyzers/synthetic_run.h"

#include "analyzers/detect/detectors.h"
#include "analyzers/group.h"
#include "analyzers/rules.h"
#include "configs/yaml.h"

// A troubled run of 3,000 steps: spikes, NaNs, a level that stays, a site that goes bad.
static void troubled_row(synthetic_run *run, uint64_t *seed, uint64_t step) {
    run_step(run, step);
    run_set(run, LOSS, (step > 2000 ? 4.6 : 3) * (1 + 0.01 * random_normal(seed)));
    run_set(run, GRAD_NORM, 0.4 * exp(0.2 * random_normal(seed)));
    run_set(run, LR, 1e-3 * fmin(1, (double)step / 500));
    run_set(run, LOSS_SCALE, 65536);
    if (step % 311 == 0) run_set(run, LOSS, 6);
    if (step % 457 == 0) run_set(run, GRAD_NORM, 5);
    if (step % 503 < 3 && step > 503) {
        run_set(run, LOSS, NAN);
        run_bad_site(run, step % 2 ? 0 : 1, 1, 0);
    }
}

static synthetic_run *new_run(void) {
    synthetic_run *run = malloc(sizeof *run);
    assert_non_null(run);
    run_init(run);
    run_add_site(run, "layers.0", KEEL_ACTIVATION, KEEL_PHASE_FORWARD, 0);
    run_add_site(run, "layers.1", KEEL_ACTIVATION, KEEL_PHASE_FORWARD, 1);
    return run;
}

static void assert_same_incidents(const keel_analysis *a, const keel_analysis *b) {
    size_t m, n;
    const keel_incident *x = keel_analysis_incidents(a, &m), *y = keel_analysis_incidents(b, &n);
    assert_int_equal(m, n);
    assert_true(m > 5);
    assert_memory_equal(x, y, n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        assert_memory_equal(keel_analysis_extra(a, i), keel_analysis_extra(b, i), sizeof(keel_incident_extra));
}

static void stop_and_resume_changes_nothing(void **unused) {
    (void)unused;
    static const uint64_t stops[] = {1, 63, 64, 311, 504, 505, 1509, 2010, 2063, 2064, 2999};
    synthetic_run *run = new_run();
    keel_analysis *whole = analysis_of(run);
    uint64_t seed = 5;
    for (uint64_t step = 1; step <= 3000; step++) {
        troubled_row(run, &seed, step);
        judge(whole, run);
    }
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        keel_analysis *part = analysis_of(run);
        seed = 5;
        for (uint64_t step = 1; step <= 3000; step++) {
            troubled_row(run, &seed, step);
            judge(part, run);
            if (step != stops[i]) continue;
            void *bytes;
            size_t size;
            assert_int_equal(keel_analysis_save(part, &bytes, &size), KEEL_OK);
            keel_analysis_close(part);
            part = analysis_of(run);
            assert_int_equal(keel_analysis_load(part, step, bytes, size), KEEL_OK);
            free(bytes);
        }
        assert_same_incidents(whole, part);
        keel_analysis_close(part);
    }
    keel_analysis_close(whole);
    free(run);
}

static void a_rollback_keeps_what_it_discards(void **unused) {
    (void)unused;
    synthetic_run *run = new_run();
    keel_analysis *analysis = analysis_of(run);
    uint64_t seed = 5;
    void *bytes = NULL;
    size_t size = 0;
    for (uint64_t step = 1; step <= 400; step++) {
        if (step == 300) assert_int_equal(keel_analysis_save(analysis, &bytes, &size), KEEL_OK);
        troubled_row(run, &seed, step); // a spike at step 311
        judge(analysis, run);
    }
    assert_non_null(find_incident(analysis, KEEL_WARNING, "loss", 311, 311));
    assert_int_equal(keel_analysis_rewind(analysis, bytes, size), KEEL_OK);
    for (uint64_t step = 300; step <= 450; step++) { // now it does not happen, but another does
        troubled_row(run, &seed, step);
        run_set(run, LOSS, step == 420 ? 6 : 3);
        judge(analysis, run);
    }
    free(bytes);
    size_t count;
    const keel_incident *incidents = keel_analysis_incidents(analysis, &count);
    assert_int_equal(count, 2);
    assert_int_equal(incidents[0].first_step, 311);
    assert_int_equal(keel_analysis_extra(analysis, 0)->discarded, 1);
    assert_int_equal(incidents[1].first_step, 420);
    assert_int_equal(keel_analysis_extra(analysis, 1)->discarded, 0);
    assert_true(incidents[1].id > incidents[0].id);
    keel_analysis_close(analysis);
    free(run);
}

static void wrong_states_are_refused_and_change_nothing(void **unused) {
    (void)unused;
    synthetic_run *run = new_run();
    keel_analysis *analysis = analysis_of(run), *other = analysis_of(run);
    uint64_t seed = 5;
    for (uint64_t step = 1; step <= 320; step++) { // a spike at step 311
        troubled_row(run, &seed, step);
        judge(analysis, run);
        judge(other, run);
    }
    void *bytes;
    size_t size;
    keel_analysis *later = analysis_of(run);
    for (uint64_t step = 1; step <= 40; step++) { // what is refused is not what OTHER holds
        run_step(run, step);
        run_set(run, LOSS, NAN);
        judge(later, run);
    }
    assert_int_equal(keel_analysis_save(later, &bytes, &size), KEEL_OK);
    unsigned char *state = realloc(bytes, size + 8);
    assert_non_null(state);
    memset(state + size, 0, 8);
    for (size_t cut = 0; cut < size; cut = cut * 5 / 4 + 1)
        assert_int_equal(keel_analysis_load(other, 40, state, cut), KEEL_ERR_FORMAT);
    for (size_t at = 0; at < size; at = at * 5 / 4 + 1) {
        state[at] ^= 1;
        assert_int_equal(keel_analysis_load(other, 40, state, size), KEEL_ERR_FORMAT);
        state[at] ^= 1;
    }
    assert_int_equal(keel_analysis_load(other, 40, state, size + 8), KEEL_ERR_FORMAT);
    assert_int_equal(keel_analysis_load(other, 41, state, size), KEEL_ERR_FORMAT);
    assert_non_null(strstr(keel_error(), "of step 40, the checkpoint of step 41"));
    free(state);
    keel_analysis_close(later);
    assert_int_equal(keel_analysis_last_step(other), 320);
    for (uint64_t step = 321; step <= 1600; step++) {
        troubled_row(run, &seed, step);
        judge(analysis, run);
        judge(other, run);
    }
    assert_same_incidents(analysis, other);
    keel_analysis_close(analysis);
    keel_analysis_close(other);
    free(run);
}

// More incidents than are kept at hand make room in one row: each that is driven out is told to be over.
static void incidents_that_make_room_are_told_of(void **unused) {
    (void)unused;
    enum { FIRST = 32, MORE = 60 };
    keel_run_info info = {.world_size = 1};
    keel_site_index index = {0};
    keel_run_settings settings = {0};
    keel_run_facts facts;
    keel_run_facts_init(&facts);
    const keel_run_view view = {.info = &info, .index = &index, .settings = &settings, .facts = &facts};
    uint32_t plateau = 0;
    while (strcmp(keel_rule_table[plateau]->rule, "plateau") != 0) plateau++;
    keel_group *group;
    assert_int_equal(keel_group_open(&group), KEEL_OK);
    keel_findings *findings = calloc(1, sizeof *findings);
    assert_non_null(findings);
    char series[FIRST + MORE][8];
    for (uint32_t row = 0, n = 0; row < 2; row++) {
        findings->count = 0;
        findings->rule = plateau;
        for (; n < (row ? FIRST + MORE : FIRST); n++) {
            snprintf(series[n], sizeof series[n], "s%u", n);
            const keel_finding f = {.series = series[n],
                                    .severity = KEEL_WARNING,
                                    .key = 1,
                                    .site = -1,
                                    .rank = -1,
                                    .first_step = row + 1,
                                    .peak_step = row + 1,
                                    .last_step = row + 1,
                                    .clause = "it stands still"};
            keel_findings_add(findings, &f);
        }
        assert_int_equal(keel_group_row(group, &view, findings, row), KEEL_OK);
    }
    size_t count, over = 0, open = 0;
    const keel_incident *const *changed = keel_group_changed(group, &count);
    assert_int_equal(count, MORE + FIRST);
    for (size_t i = 0; i < count; i++) {
        over += !changed[i]->open;
        open += changed[i]->open;
    }
    assert_int_equal(over, MORE);
    assert_int_equal(open, FIRST);
    free(findings);
    keel_group_close(group);
}

static void a_site_is_found_under_its_new_id(void **unused) {
    (void)unused;
    const keel_site_info a = {.name = "a"}, b = {.name = "a", .quantity = KEEL_UPDATE}, c = {.name = "c"};
    const keel_site_info sites[] = {c, b};
    const keel_run_info info = {.site_count = 2, .sites = sites};
    assert_int_equal(keel_site_now(&info, 1, keel_site_hash(&b)), 1);
    assert_int_equal(keel_site_now(&info, 0, keel_site_hash(&b)), 1);
    assert_int_equal(keel_site_now(&info, 7, keel_site_hash(&c)), 0);
    assert_int_equal(keel_site_now(&info, 0, keel_site_hash(&a)), -1);
    assert_int_equal(keel_site_now(&info, -1, keel_site_hash(&b)), -1);
}

static void a_site_may_stand_in_any_layer(void **unused) {
    (void)unused;
    const keel_site_info sites[] = {{.layer = 3}, {.layer = INT32_MAX}, {.layer = -1}};
    const keel_run_info info = {.site_count = 3, .sites = sites};
    keel_site_index index;
    assert_int_equal(keel_site_index_open(&info, &index), KEEL_OK);
    assert_int_equal(index.layers, UINT32_C(1) << 31);
    keel_site_index_close(&index);
}

// A new segment that numbers its scalars and sites anew.
static void a_segment_with_other_tables_goes_on(void **unused) {
    (void)unused;
    static const char *const names[] = {"lr", "loss"};
    synthetic_run *run = new_run();
    keel_analysis *analysis = analysis_of(run);
    uint64_t seed = 8;
    for (uint64_t step = 1; step <= 200; step++) {
        run_step(run, step);
        run_set(run, LOSS, 3 + 0.01 * random_normal(&seed));
        judge(analysis, run);
    }
    run->info.scalar_names = names;
    run->info.scalar_count = 2;
    keel_site_info first = run->sites[0];
    run->sites[0] = run->sites[1];
    run->sites[1] = first;
    assert_int_equal(keel_analysis_start(analysis, &run->info), KEEL_OK);
    for (uint64_t step = 201; step <= 300; step++) {
        run_step(run, step);
        run_set(run, 1, step == 250 ? 9 : 3 + 0.01 * random_normal(&seed));
        judge(analysis, run);
    }
    assert_non_null(find_incident(analysis, KEEL_WARNING, "loss", 250, 250));
    keel_analysis_close(analysis);
    free(run);
}

static void health_follows_the_incidents(void **unused) {
    (void)unused;
    synthetic_run *run = new_run();
    keel_analysis *analysis = analysis_of(run);
    uint64_t seed = 8;
    for (uint64_t step = 1; step <= 300; step++) {
        run_step(run, step);
        run_set(run, LOSS, step >= 150 && step < 180 ? NAN : 3 + 0.01 * random_normal(&seed));
        judge(analysis, run);
        keel_health health = keel_analysis_health(analysis);
        assert_int_equal(health.judged_step, step);
        if (step < 150) assert_int_equal(health.quiet_steps, step);
        if (step >= 150 && step < 180) {
            assert_int_equal(health.open_criticals, 1);
            assert_int_equal(health.quiet_steps, 0);
        }
    }
    assert_int_equal(keel_analysis_health(analysis).open_criticals, 0);
    assert_true(keel_analysis_health(analysis).quiet_steps > 100);
    keel_analysis_close(analysis);
    free(run);
}

static void changes_are_listed_as_they_happen(void **unused) {
    (void)unused;
    synthetic_run *run = new_run();
    keel_analysis *analysis = analysis_of(run);
    uint64_t seed = 8;
    size_t count, revisions = 0;
    for (uint64_t step = 1; step <= 300; step++) {
        run_step(run, step);
        run_set(run, LOSS, step == 150 ? 6 : 3 + 0.01 * random_normal(&seed));
        judge(analysis, run);
        const keel_incident *const *changed = keel_analysis_changed(analysis, &count);
        if (step == 150) assert_int_equal(count, 1); // at once
        for (size_t i = 0; i < count; i++) assert_int_equal(changed[i]->revision, ++revisions);
    }
    assert_int_equal(revisions, 2); // begun, and over
    keel_analysis_close(analysis);
    free(run);
}

// ---- parameters ----

static keel_status open_with(const char *rules, keel_analysis **analysis) {
    char text[512];
    snprintf(text, sizeof text, "monitor:\n  rules:\n%s", rules);
    keel_yaml *doc;
    keel_monitor_config *config;
    assert_int_equal(keel_yaml_parse("m.yaml", text, strlen(text), &doc), KEEL_OK);
    assert_int_equal(keel_monitor_config_read(doc, &config), KEEL_OK);
    keel_status status = keel_analysis_open(config, analysis);
    char kept[512];
    snprintf(kept, sizeof kept, "%s", keel_error());
    keel_monitor_config_free(config);
    if (status) keel_fail(status, "%s", kept);
    return status;
}

static void parameters_are_taken_and_checked(void **unused) {
    (void)unused;
    keel_analysis *analysis;
    assert_int_equal(open_with("    loss_spike: {z: 12, rise: 0.5}\n    plateau: {enabled: false}\n", &analysis),
                     KEEL_OK);
    synthetic_run *run = new_run();
    assert_int_equal(keel_analysis_start(analysis, &run->info), KEEL_OK);
    uint64_t seed = 8;
    for (uint64_t step = 1; step <= 5000; step++) {
        run_step(run, step);
        run_set(run, LOSS, step == 150 ? 4.2 : step == 250 ? 6 : 3 + 0.01 * random_normal(&seed));
        judge(analysis, run);
    }
    size_t count;
    const keel_incident *incidents = keel_analysis_incidents(analysis, &count);
    assert_int_equal(count, 1);
    assert_int_equal(incidents[0].first_step, 250);
    keel_analysis_close(analysis);
    free(run);

    assert_int_equal(open_with("    loss_spkie: {z: 12}\n", &analysis), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "m.yaml:3:"));
    assert_non_null(strstr(keel_error(), "nearest known: loss_spike"));
    assert_int_equal(open_with("    loss_spike: {zz: 12}\n", &analysis), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "nearest known: z"));
    assert_int_equal(open_with("    loss_spike: {z: 0.1}\n", &analysis), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "not between 3 and 10000"));
}

static void every_rule_is_described_and_its_defaults_are_in_range(void **unused) {
    (void)unused;
    for (uint32_t r = 0; r < keel_rule_count; r++) {
        const keel_detector *d = keel_rule_table[r];
        assert_true(d->doc && d->doc[0] && strlen(d->rule) < KEEL_RULE_BYTES);
        for (uint32_t k = 0; k < d->param_count; k++) {
            const keel_param_info *p = &d->params[k];
            assert_true(p->doc && p->doc[0]);
            assert_true(p->min <= p->value && p->value <= p->max);
        }
        for (uint32_t other = 0; other < r; other++) assert_string_not_equal(d->rule, keel_rule_table[other]->rule);
    }
}

// ---- the template ----

static void the_template_works(void **unused) {
    (void)unused;
    static const char *const names[] = {"tokens_per_second"};
    const keel_detector *d = &keel_detect_template;
    keel_run_info info = {.scalar_count = 1, .scalar_names = names};
    double value = 0, params[] = {d->params[0].value};
    bool set = true;
    keel_row row = {.scalars = &value, .scalar_set = &set};
    keel_findings *findings = calloc(1, sizeof *findings);
    void *state = calloc(1, d->state_bytes);
    d->init(state);
    d->start(state, &info);
    uint64_t seed = 1;
    for (uint64_t step = 1; step <= 300; step++) {
        row.step.step = step;
        value = (step >= 200 && step < 203 ? 300 : 1000) * (1 + 0.01 * random_normal(&seed));
        findings->count = 0;
        d->update(state, &(keel_detector_input){.info = &info, .row = &row, .params = params, .record = step},
                  findings);
        assert_int_equal(findings->count, step >= 200 && step <= 203);
        if (step == 203) assert_true(findings->entries[0].finding.closed);
    }
    free(state);
    free(findings);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_and_resume_changes_nothing),
        cmocka_unit_test(a_rollback_keeps_what_it_discards),
        cmocka_unit_test(wrong_states_are_refused_and_change_nothing),
        cmocka_unit_test(incidents_that_make_room_are_told_of),
        cmocka_unit_test(a_site_is_found_under_its_new_id),
        cmocka_unit_test(a_site_may_stand_in_any_layer),
        cmocka_unit_test(a_segment_with_other_tables_goes_on),
        cmocka_unit_test(health_follows_the_incidents),
        cmocka_unit_test(changes_are_listed_as_they_happen),
        cmocka_unit_test(parameters_are_taken_and_checked),
        cmocka_unit_test(every_rule_is_described_and_its_defaults_are_in_range),
        cmocka_unit_test(the_template_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
