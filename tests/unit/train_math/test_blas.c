// Which kernels OpenBLAS ought to run, and that a program that finds others starts again with the right ones.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "train/tensor/blas.h"
#include "train/tensor/cpu.h"

static const char *program;

static void test_levels(void **state) {
    (void)state;
    assert_true(keel_blas_is_below("Prescott", "SkylakeX"));
    assert_true(keel_blas_is_below("Haswell", "SkylakeX"));
    assert_true(keel_blas_is_below("Sandybridge", "Zen"));
    assert_true(keel_blas_is_below("Core2", "Haswell"));
    assert_true(keel_blas_is_below("core2", "haswell"));
    assert_false(keel_blas_is_below("SkylakeX", "SkylakeX"));
    assert_false(keel_blas_is_below("Cooperlake", "SkylakeX"));
    assert_false(keel_blas_is_below("SapphireRapids", "SkylakeX"));
    assert_false(keel_blas_is_below("Zen", "Haswell"));
    assert_false(keel_blas_is_below("SkylakeX", "Haswell"));
    assert_false(keel_blas_is_below("NEOVERSEN1", "SkylakeX"));
    assert_false(keel_blas_is_below("Prescott", NULL));
    assert_false(keel_blas_is_below(NULL, "Haswell"));
}

static void test_products(void **state) {
    (void)state;
    if (keel_blas_check() != KEEL_OK) fail_msg("%s", keel_error());
    assert_int_equal(keel_cpu_check(), KEEL_OK);
    char *text = keel_blas_describe();
    assert_non_null(text);
    assert_non_null(strstr(text, "OpenBLAS "));
    assert_non_null(strstr(text, keel_blas_core()));
    assert_non_null(strstr(text, " kernels, "));
    free(text);
}

// Runs this program with MODE; gives the line it prints.
static void run(const char *mode, const char *core_variable, char *line, size_t size) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        unsetenv("KEEL_BLAS_CHOSEN");
        if (core_variable)
            setenv("OPENBLAS_CORETYPE", core_variable, 1);
        else
            unsetenv("OPENBLAS_CORETYPE");
        dup2(ends[1], STDOUT_FILENO);
        execl(program, program, mode, "an argument", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *in = fdopen(ends[0], "r");
    assert_non_null(in);
    *line = 0;
    if (!fgets(line, (int)size, in)) *line = 0;
    fclose(in);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_starts_again(void **state) {
    (void)state;
    // The lowest kernels with names of their own: every x86-64 CPU can run them.
    if (!keel_blas_core_expected()) skip();
    char line[128], expected[128];
    run("ancient", NULL, line, sizeof line);
    snprintf(expected, sizeof expected, "chosen 1 core %s argument an argument\n", keel_blas_core_expected());
    assert_string_equal(line, expected);
}

static void test_leaves_a_users_choice(void **state) {
    (void)state;
    if (!keel_blas_core_expected()) skip();
    char line[128];
    run("ancient", "Nehalem", line, sizeof line);
    assert_string_equal(line, "chosen 0 core Nehalem argument an argument\n");
}

static void test_leaves_what_is_right(void **state) {
    (void)state;
    char line[128], expected[128];
    run("right", NULL, line, sizeof line);
    snprintf(expected, sizeof expected, "chosen 0 core %s argument an argument\n", keel_blas_core());
    assert_string_equal(line, expected);
}

static int child(char **argv) {
    if (!strcmp(argv[1], "ancient"))
        keel_blas_choose_for(argv, "Prescott", keel_blas_core_expected());
    else
        keel_blas_choose_for(argv, keel_blas_core(), keel_blas_core());
    printf("chosen %d core %s argument %s\n", getenv("KEEL_BLAS_CHOSEN") != NULL, keel_blas_core(), argv[2]);
    return 0;
}

int main(int argc, char **argv) {
    program = argv[0];
    if (argc > 2) return child(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_starts_again),
        cmocka_unit_test(test_leaves_a_users_choice),
        cmocka_unit_test(test_leaves_what_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
