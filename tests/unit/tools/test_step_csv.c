// train.csv on a disk that fills up, and after a run that was killed.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/unit/temp_folder.h"
#include "tools/step_csv.h"

static char heard[4096];

static void hear(void *context, keel_log_level level, const char *text) {
    (void)context;
    assert_int_equal(level, KEEL_LOG_WARNING);
    strncat(heard, text, sizeof heard - strlen(heard) - 1);
    strncat(heard, "\n", sizeof heard - strlen(heard) - 1);
}

static void put(keel_step_csv *csv, uint64_t step, uint32_t flags, double loss) {
    keel_step_csv_put(csv, &(keel_step){.step = step, .flags = flags}, loss, 0.5, 0.25, 0);
}

static void expect_file(const char *path, const char *wanted) {
    char text[4096] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    (void)fread(text, 1, sizeof text - 1, file);
    fclose(file);
    assert_string_equal(text, wanted);
}

static void test_a_full_disk(void **state) {
    const char *path = temp_path(*state, "train.csv");
    keel_step_csv *csv;
    assert_int_equal(keel_step_csv_open(path, false, false, &csv), KEEL_OK);
    put(csv, 1, 0, 1);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 50; // in the midst of a line
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    heard[0] = '\0';
    keel_log_set(hear, NULL);
    for (uint64_t step = 2; step <= 5; step++) put(csv, step, 0, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    expect_file(path, "step,loss,grad_norm,lr\n1,1,0.5,0.25\n2,1,0.5,0.25\n");
    const char *told = strstr(heard, "train.csv: cannot be written: ");
    assert_non_null(told);
    assert_null(strstr(told + strlen("train.csv: "), "train.csv: "));
    put(csv, 6, 0, 1);
    keel_log_set(NULL, NULL);
    assert_non_null(strstr(heard, "written again from step 6 on; lines that are missing: 3"));
    keel_step_csv_close(csv);
    expect_file(path, "step,loss,grad_norm,lr\n1,1,0.5,0.25\n2,1,0.5,0.25\n6,1,0.5,0.25\n");
}

static void test_a_resumed_run_goes_on_behind_the_last_whole_line(void **state) {
    static const char cut[] = "step,loss,grad_norm,lr,loss_scale\n1,1,0.5,0.25,2\n2,1,0";
    const char *path = temp_path(*state, "train.csv");
    keel_step_csv *csv;
    temp_write(path, cut, sizeof cut - 1);
    assert_int_equal(keel_step_csv_open(path, true, false, &csv), KEEL_OK);
    put(csv, 2, 0, NAN);
    keel_step_csv_close(csv);
    expect_file(path, "step,loss,grad_norm,lr,loss_scale\n1,1,0.5,0.25,2\n2,nan,0.5,0.25,1\n");
    assert_int_equal(keel_step_csv_open(path, false, true, &csv), KEEL_OK);
    put(csv, 1, KEEL_STEP_OVERFLOW, 1);
    keel_step_csv_close(csv);
    expect_file(path, "step,loss,grad_norm,lr,loss_scale,overflow\n1,1,0.5,0.25,1,1\n");
    assert_int_equal(keel_step_csv_open(temp_path(*state, "lacking/train.csv"), false, true, &csv), KEEL_ERR_IO);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, temp_folder_make, temp_folder_remove)
    const struct CMUnitTest tests[] = {
        TEST(test_a_full_disk),
        TEST(test_a_resumed_run_goes_on_behind_the_last_whole_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
