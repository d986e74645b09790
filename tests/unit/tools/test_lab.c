// Cases as they are read, and the figures of the table.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/lab/lab.h"

static char folder[] = "/tmp/keel-test-lab-XXXXXX";

static keel_lab_case *load(const char *text, uint64_t seed) {
    char path[128];
    snprintf(path, sizeof path, "%s/flip.yaml", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    keel_lab_case *made = NULL;
    if (keel_lab_case_load(path, seed, &made)) fail_msg("%s", keel_error());
    unlink(path);
    return made;
}

static void test_case(void **state) {
    (void)state;
    keel_lab_case *c =
        load("about: a flip\nranks: 2\nalone: true\n"
             "draw: {onset: [100, 200], factor: [2.0, 8.0], layer: {of: [one, two]}}\n"
             "train: {a: {b: $factor, c: x$layer.d}}\nresume: [{}, {e: $onset}]\n"
             "find: {rules: [r, s], onset: $onset, site: layers.$layer, rank: 1, cause: c, sudden: yes}\n",
             5);
    assert_string_equal(c->name, "flip");
    assert_string_equal(c->about, "a flip");
    assert_true(c->ranks == 2 && c->alone && c->faulty && c->find.sudden && c->find.rank == 1);
    assert_true(c->find.onset >= 100 && c->find.onset <= 200);
    assert_string_equal(c->find.rules[1], "s");
    assert_null(c->find.rules[2]);
    assert_true(strcmp(c->find.site, "layers.one") == 0 || strcmp(c->find.site, "layers.two") == 0);
    assert_int_equal(keel_yaml_size(c->resume), 2);
    double factor;
    int64_t onset;
    const keel_yaml_node *a = keel_yaml_get(c->train, "a");
    assert_int_equal(keel_yaml_to_double(keel_yaml_get(a, "b"), &factor), KEEL_OK);
    assert_true(factor >= 2 && factor <= 8);
    assert_int_equal(keel_yaml_to_int(keel_yaml_get(keel_yaml_item(c->resume, 1), "e"), &onset), KEEL_OK);
    assert_int_equal(onset, c->find.onset);
    keel_lab_case_free(c);

    c = load("about: well\n", 1);
    assert_true(!c->faulty && c->ranks == 1 && !c->alone && !c->resume);
    keel_lab_case_free(c);
    keel_lab_case_free(NULL);
}

// Over many seeds a range is met whole and nowhere else, each value about as often.
static void test_draws(void **state) {
    (void)state;
    unsigned seen[4] = {0};
    for (uint64_t seed = 0; seed < 400; seed++) {
        keel_lab_case *c = load("about: a\ndraw: {n: [3, 6]}\nfind: {rules: [r], cause: c, onset: $n}\n", seed);
        assert_true(c->find.onset >= 3 && c->find.onset <= 6);
        seen[c->find.onset - 3]++;
        keel_lab_case_free(c);
    }
    for (size_t i = 0; i < 4; i++) assert_true(seen[i] > 60 && seen[i] < 140);
}

static void test_cases_that_come_with_the_program(void **state) {
    (void)state;
    char **names, path[512];
    size_t count, healthy = 0;
    assert_int_equal(keel_lab_case_names(KEEL_SOURCE_DIR "/configs/lab", &names, &count), KEEL_OK);
    for (size_t i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/configs/lab/%s.yaml", KEEL_SOURCE_DIR, names[i]);
        for (uint64_t seed = 1; seed <= 20; seed++) {
            keel_lab_case *c = NULL;
            if (keel_lab_case_load(path, seed, &c)) fail_msg("%s", keel_error());
            if (seed == 1) healthy += !c->faulty;
            keel_lab_case_free(c);
        }
    }
    assert_true(healthy >= 1 && count > healthy);
    keel_yaml_free_strings(names);
}

static void test_figures(void **state) {
    (void)state;
    const double latencies[] = {0, 1, 4, 9};
    assert_true(isnan(keel_lab_median(latencies, 0)));
    assert_true(keel_lab_median(latencies, 1) == 0 && keel_lab_median(latencies, 3) == 1);
    assert_true(keel_lab_median(latencies, 4) == 2.5);
    // Upper bounds of a Poisson mean, one-sided 95 %: 2.996, 4.744, 6.296, 18.208 for 0, 1, 2, 11.
    assert_true(fabs(keel_lab_bound(0, 100000) * 1e5 - 2.9957) < 1e-3);
    assert_true(fabs(keel_lab_bound(1, 1000) * 1e3 - 4.7439) < 1e-3);
    assert_true(fabs(keel_lab_bound(2, 10) * 10 - 6.2958) < 1e-3);
    assert_true(fabs(keel_lab_bound(11, 10) * 10 - 18.2075) < 1e-3);
}

static void test_text(void **state) {
    (void)state;
    char from[128], to[128], got[64] = "";
    snprintf(from, sizeof from, "%s/from", folder);
    snprintf(to, sizeof to, "%s/to", folder);
    FILE *file = fopen(from, "w");
    fputs("One 22-TWO. ", file);
    fclose(file);
    keel_yaml *doc = NULL;
    char list[300];
    snprintf(list, sizeof list, "[%s, %s]", from, from);
    assert_int_equal(keel_yaml_parse("list", list, strlen(list), &doc), KEEL_OK);
    const keel_lab_text text = {.small = 3, .capitals = 10};
    assert_int_equal(keel_lab_text_write(&text, keel_yaml_root(doc), to), KEEL_OK);
    file = fopen(to, "r");
    assert_int_equal(fread(got, 1, sizeof got, file), 16);
    fclose(file);
    keel_yaml_free(doc);
    assert_string_equal(got, "one tWo one two ");
    unlink(from);
    unlink(to);
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_case),    cmocka_unit_test(test_draws),
        cmocka_unit_test(test_figures), cmocka_unit_test(test_cases_that_come_with_the_program),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
