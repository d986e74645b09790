#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/commands.h"

static struct {
    int code;
    char out[8192], err[1024];
} told;

static void read_back(FILE *file, char *text, size_t size) {
    rewind(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

// Runs keel doctor with up to two arguments and keeps what it prints.
static void doctor(const char *first, const char *second) {
    char texts[3][256] = {"doctor"};
    char *argv[] = {texts[0], first ? texts[1] : NULL, second ? texts[2] : NULL, NULL};
    if (first) snprintf(texts[1], sizeof texts[1], "%s", first);
    if (second) snprintf(texts[2], sizeof texts[2], "%s", second);
    FILE *out = tmpfile(), *err = tmpfile();
    fflush(stdout);
    fflush(stderr);
    const int old_out = dup(STDOUT_FILENO), old_err = dup(STDERR_FILENO);
    dup2(fileno(out), STDOUT_FILENO);
    dup2(fileno(err), STDERR_FILENO);
    told.code = keel_cmd_doctor(1 + (first != NULL) + (second != NULL), argv);
    fflush(stdout);
    fflush(stderr);
    dup2(old_out, STDOUT_FILENO);
    dup2(old_err, STDERR_FILENO);
    close(old_out);
    close(old_err);
    read_back(out, told.out, sizeof told.out);
    read_back(err, told.err, sizeof told.err);
}

static void test_says_what_the_machine_gives(void **state) {
    (void)state;
    char directory[] = "/tmp/keel-doctor-test-XXXXXX";
    assert_non_null(mkdtemp(directory));
    doctor(directory, NULL);
    static const char version_line[] = "keel " KEEL_VERSION "\n";
    static const char *const expected[] = {version_line,    "processor: ",    "statistics kernels: ",
                                           "cores: ",       "blas: OpenBLAS", "mpi: Open MPI v",
                                           "thread level ", "hdf5: 1.",       "store: /tmp/keel-doctor-test-",
                                           "GiB free\n",    "  space is ",    "ranks watch one another: ",
                                           "  files can"};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (!strstr(told.out, expected[i])) fail_msg("no \"%s\" in:\n%s%s", expected[i], told.out, told.err);
    assert_int_equal(told.code, strstr(told.out, "problem: ") != NULL);
    assert_int_equal(rmdir(directory), 0); // it leaves nothing behind
}

static void test_directory_is_optional(void **state) {
    (void)state;
    doctor(NULL, NULL);
    assert_true(told.code == 0 || told.code == 1);
    assert_non_null(strstr(told.out, "store: not looked at"));
}

static void assert_refused(const char *first, const char *second, const char *line) {
    doctor(first, second);
    assert_int_equal(told.code, 2);
    assert_string_equal(told.out, "");
    assert_string_equal(told.err, line);
}

static void test_bad_arguments(void **state) {
    (void)state;
    assert_refused("/nothing/here", NULL, "keel doctor: /nothing/here: No such file or directory\n");
    assert_refused("/proc/self/status", NULL, "keel doctor: /proc/self/status: Not a directory\n");
    assert_refused("--verbose", NULL, "keel doctor: --verbose: no such option; keel doctor --help\n");
    assert_refused(".", "..", "keel doctor: ..: one directory at most; keel doctor --help\n");
}

static void test_directory_that_takes_no_store(void **state) {
    (void)state;
    doctor("/proc/self/fd", NULL);
    assert_int_equal(told.code, 1);
    assert_non_null(strstr(told.out, "  problem: nothing can be written there: "));
}

static void test_help(void **state) {
    (void)state;
    doctor("--help", NULL);
    assert_int_equal(told.code, 0);
    assert_non_null(strstr(told.out, "usage: keel doctor [DIR]"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_says_what_the_machine_gives),
        cmocka_unit_test(test_directory_is_optional),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_directory_that_takes_no_store),
        cmocka_unit_test(test_help),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
