// Reports of small runs against golden files in data/: KEEL_TEST_UPDATE=1 in the environment writes them anew.
#include "tests/unit/analyzers/synthetic_run.h"

#include <jansson.h>

#include "analyzers/report/report.h"

// A row source: STEPS rows, each filled by a function of its step.
typedef struct story {
    synthetic_run run;
    keel_row_source source;
    uint64_t step, steps, seed;
    void (*tell)(struct story *story, uint64_t step);
} story;

static keel_status next_row(void *context, const keel_row **row) {
    story *s = context;
    *row = NULL;
    if (s->step == s->steps) return KEEL_OK;
    run_step(&s->run, ++s->step);
    run_set(&s->run, LOSS, 2 + 4 * exp(-(double)s->step / 60) + 0.01 * random_normal(&s->seed));
    run_set(&s->run, GRAD_NORM, 0.5 * exp(0.1 * random_normal(&s->seed)));
    run_set(&s->run, LR, 1e-3);
    s->tell(s, s->step);
    *row = &s->run.row;
    return KEEL_OK;
}

static keel_result *judge_story(story *s, void (*tell)(story *, uint64_t), uint64_t steps, bool sites) {
    memset(s, 0, sizeof *s);
    run_init(&s->run);
    if (sites) {
        run_add_site(&s->run, "layers.0.mlp", KEEL_ACTIVATION, KEEL_PHASE_FORWARD, 1);
        run_add_site(&s->run, "layers.1.mlp", KEEL_ACTIVATION, KEEL_PHASE_FORWARD, 2);
        run_add_site(&s->run, "head", KEEL_ACTIVATION, KEEL_PHASE_FORWARD, 3);
    }
    s->tell = tell;
    s->steps = steps;
    s->seed = 2024;
    s->source = (keel_row_source){.context = s, .info = &s->run.info, .next = next_row};
    keel_result *result;
    assert_int_equal(keel_offline_rows("runs/example", &s->source, NULL, &result), KEEL_OK);
    return result;
}

static void nothing(story *s, uint64_t step) {
    (void)s;
    (void)step;
}

static void bad_batch(story *s, uint64_t step) {
    if (step != 150) return;
    run_set(&s->run, LOSS, 7.5);
    run_set(&s->run, GRAD_NORM, 9);
}

static void nan_from_one_layer(story *s, uint64_t step) {
    if (step < 120) return;
    run_set(&s->run, LOSS, NAN);
    if (step > 120) return;
    run_bad_site(&s->run, 1, 1, 0);
    run_bad_site(&s->run, 2, 1, 0);
}

static char *read_all(FILE *file, size_t *size) {
    char *text = NULL;
    *size = 0;
    for (int c; (c = fgetc(file)) != EOF;) {
        text = realloc(text, *size + 2);
        assert_non_null(text);
        text[(*size)++] = (char)c;
        text[*size] = 0;
    }
    return text;
}

static void compare_with_golden(FILE *written, const char *name) {
    char path[512];
    size_t size, golden_size;
    snprintf(path, sizeof path, "%s/%s", KEEL_TEST_DATA, name);
    rewind(written);
    char *text = read_all(written, &size);
    if (getenv("KEEL_TEST_UPDATE")) {
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        assert_int_equal(fwrite(text, 1, size, out), size);
        fclose(out);
    }
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *golden = read_all(file, &golden_size);
    fclose(file);
    if (size != golden_size || memcmp(text, golden, size) != 0) print_message("%s differs; got:\n%s\n", name, text);
    assert_int_equal(size, golden_size);
    assert_memory_equal(text, golden, size);
    free(text);
    free(golden);
}

static void check(void (*tell)(story *, uint64_t), bool sites, const char *name) {
    story *s = malloc(sizeof *s);
    keel_result *result = judge_story(s, tell, 300, sites);
    char file[64];
    FILE *out = tmpfile();
    assert_int_equal(keel_report_json((const keel_result *const *)&result, 1, out), KEEL_OK);
    snprintf(file, sizeof file, "%s.json", name);
    compare_with_golden(out, file);
    fclose(out);
    for (int ascii = 0; ascii < 2; ascii++) {
        out = tmpfile();
        const keel_report_style style = {.ascii = ascii, .width = 80};
        assert_int_equal(keel_report_text(result, &style, out), KEEL_OK);
        snprintf(file, sizeof file, "%s%s.txt", name, ascii ? "_ascii" : "");
        compare_with_golden(out, file);
        fclose(out);
    }
    keel_result_free(result);
    free(s);
}

static void healthy(void **unused) {
    (void)unused;
    check(nothing, false, "healthy");
}

static void spike(void **unused) {
    (void)unused;
    check(bad_batch, false, "bad_batch");
}

static void nonfinite(void **unused) {
    (void)unused;
    check(nan_from_one_layer, true, "nonfinite");
}

static void ascii_is_ascii(void **unused) {
    (void)unused;
    story *s = malloc(sizeof *s);
    keel_result *result = judge_story(s, bad_batch, 300, false);
    FILE *out = tmpfile();
    assert_int_equal(keel_report_text(result, &(keel_report_style){.ascii = true, .width = 40}, out), KEEL_OK);
    rewind(out);
    for (int c; (c = fgetc(out)) != EOF;) assert_true(c < 0x80);
    fclose(out);
    keel_result_free(result);
    free(s);
}

static void lines_and_severities(void **unused) {
    (void)unused;
    story *s = malloc(sizeof *s);
    keel_result *result = judge_story(s, nothing, 300, false);
    assert_int_equal(keel_report_severity(result), -1);
    assert_null(keel_report_worst(result));
    keel_result_free(result);
    FILE *out = tmpfile();
    size_t size;
    result = judge_story(s, nothing, 0, false); // not healthy: nothing is known of it
    assert_int_equal(keel_report_line(result, &(keel_report_style){.width = 80}, out), KEEL_OK);
    assert_int_equal(keel_report_text(result, &(keel_report_style){.width = 80}, out), KEEL_OK);
    keel_result_free(result);
    rewind(out);
    char *text = read_all(out, &size);
    assert_ptr_equal(strstr(text, "empty    runs/example: 0 records\n"), text);
    assert_non_null(strstr(text, "\nEMPTY: no step was recorded, and nothing could be judged\n"));
    free(text);
    fclose(out);
    result = judge_story(s, nan_from_one_layer, 300, true);
    assert_int_equal(keel_report_severity(result), KEEL_CRITICAL);
    out = tmpfile();
    assert_int_equal(keel_report_line(result, &(keel_report_style){.width = 80}, out), KEEL_OK);
    rewind(out);
    char *line = read_all(out, &size);
    assert_non_null(strstr(line, "critical runs/example: 1 incident in 300 records; step 120: NaN first seen in "));
    assert_ptr_equal(strchr(line, '\n'), line + size - 1);
    free(line);
    fclose(out);
    keel_result_free(result);
    free(s);
}

// Two gradients that were not finite, caught in time.
static void skipped_updates(story *s, uint64_t step) {
    if (step != 120 && step != 122) return;
    run_set(&s->run, GRAD_NORM, NAN);
    run_bad_site(&s->run, 1, 1, 0);
    s->run.row.step.flags |= KEEL_STEP_SKIPPED;
}

// The same, but the second one was applied.
static void one_skipped_update(story *s, uint64_t step) {
    skipped_updates(s, step);
    if (step == 122) s->run.row.step.flags = 0;
}

static void nothing_is_to_be_undone_where_updates_were_skipped(void **unused) {
    (void)unused;
    static const struct {
        void (*tell)(story *, uint64_t);
        uint64_t steps;
        bool undo;
    } cases[] = {{skipped_updates, 300, false}, {skipped_updates, 122, true}, {one_skipped_update, 300, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        story *s = malloc(sizeof *s);
        keel_result *result = judge_story(s, cases[i].tell, cases[i].steps, true);
        FILE *out = tmpfile();
        assert_int_equal(keel_report_text(result, &(keel_report_style){.width = 400}, out), KEEL_OK);
        rewind(out);
        size_t size;
        char *text = read_all(out, &size);
        assert_true((strstr(text, "go back to the last checkpoint") != NULL) == cases[i].undo);
        assert_true((strstr(text, "next      2 updates were skipped and training went on, so that there is nothing to "
                                  "undo; look at the batch of the first step and at the input and dtype of "
                                  "layers.1.mlp:activation\n") != NULL) == !cases[i].undo);
        free(text);
        fclose(out);
        keel_result_free(result);
        free(s);
    }
}

// 49 rows that each stand for a lost step more, and one without values at the end, which stands for two.
static void every_other_step(story *s, uint64_t step) {
    s->run.row.dropped_frames = 1;
    if (step < 50) return;
    s->run.row.step.flags |= KEEL_STEP_DROPPED;
    memset(s->run.set, 0, sizeof s->run.set);
}

static void steps_that_were_not_recorded_are_said(void **unused) {
    (void)unused;
    static const char said[] = "51 of 100 steps were not recorded (very short steps, a slow disk or a slow sink)";
    story *s = malloc(sizeof *s);
    keel_result *result = judge_story(s, every_other_step, 50, true);
    assert_int_equal(result->records, 49);
    assert_int_equal(result->dropped_steps, 51);
    assert_int_equal(result->last_step, 50);
    assert_int_equal(result->incident_count, 0);
    keel_status (*const forms[])(const keel_result *, const keel_report_style *, FILE *) = {keel_report_text,
                                                                                            keel_report_line};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        FILE *out = tmpfile();
        assert_int_equal(forms[i](result, &(keel_report_style){.width = 80}, out), KEEL_OK);
        rewind(out);
        size_t size;
        char *text = read_all(out, &size);
        assert_non_null(strstr(text, said));
        free(text);
        fclose(out);
    }
    FILE *out = tmpfile();
    assert_int_equal(keel_report_json((const keel_result *const *)&result, 1, out), KEEL_OK);
    rewind(out);
    json_t *report = json_loadf(out, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(report, "dropped_steps")), 51);
    json_decref(report);
    fclose(out);
    keel_result_free(result);
    free(s);
}

static void json_holds_what_the_schema_says(void **unused) {
    (void)unused;
    story *s = malloc(sizeof *s);
    keel_result *result = judge_story(s, nan_from_one_layer, 300, true);
    char *text;
    assert_int_equal(keel_incident_json(&result->incidents[0], keel_analysis_extra(result->analysis, 0), &text),
                     KEEL_OK);
    assert_null(strchr(text, '\n'));
    json_t *k = json_loads(text, 0, NULL);
    assert_non_null(k);
    assert_string_equal(json_string_value(json_object_get(k, "site")), "layers.1.mlp:activation");
    assert_int_equal(json_integer_value(json_object_get(k, "rank")), 1);
    assert_string_equal(json_string_value(json_object_get(k, "value")), "nan");
    assert_true(json_is_array(json_object_get(k, "series")));
    assert_string_equal(json_string_value(json_object_get(json_object_get(k, "cause"), "name")), "non-finite tensor");
    assert_null(json_object_get(k, "discarded"));
    json_decref(k);
    free(text);
    keel_result_free(result);
    free(s);
}

static void a_path_of_any_bytes_is_valid_json(void **unused) {
    (void)unused;
    story *s = malloc(sizeof *s);
    keel_result *result = judge_story(s, nothing, 10, false);
    strcpy(result->source, "r\xff\xfe/\"\\");
    FILE *out = tmpfile();
    assert_int_equal(keel_report_json((const keel_result *const *)&result, 1, out), KEEL_OK);
    rewind(out);
    json_t *report = json_loadf(out, 0, NULL);
    assert_non_null(report);
    assert_string_equal(json_string_value(json_object_get(report, "source")), "r?\?/\"\\");
    json_decref(report);
    fclose(out);
    keel_result_free(result);
    free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(healthy),
        cmocka_unit_test(spike),
        cmocka_unit_test(nonfinite),
        cmocka_unit_test(ascii_is_ascii),
        cmocka_unit_test(lines_and_severities),
        cmocka_unit_test(nothing_is_to_be_undone_where_updates_were_skipped),
        cmocka_unit_test(steps_that_were_not_recorded_are_said),
        cmocka_unit_test(json_holds_what_the_schema_says),
        cmocka_unit_test(a_path_of_any_bytes_is_valid_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
