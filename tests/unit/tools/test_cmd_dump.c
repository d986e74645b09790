// keel dump: what it says of a run that was imported, and of what is no store.
#include "tests/unit/tools/command_rig.h"
#include "tools/commands.h"

static char folder[64], log_path[96], run[96];

static int set_up(void **unused) {
    (void)unused;
    strcpy(folder, "/tmp/keel-dump-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(output, sizeof output, "%s/out", folder);
    snprintf(log_path, sizeof log_path, "%s/log.csv", folder);
    snprintf(run, sizeof run, "%s/run", folder);
    FILE *file = fopen(log_path, "w");
    if (!file) return -1;
    fputs("step,loss\n1,3.5\n2,3.25\n3,3.125\n", file);
    return fclose(file);
}

static int tear_down(void **unused) {
    (void)unused;
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static void a_log_is_to_be_imported_first(void **unused) {
    (void)unused;
    char *argv[] = {"dump", log_path, NULL};
    assert_int_equal(run_to_file(keel_cmd_dump, STDERR_FILENO, 2, argv), 2);
    assert_int_equal(lines_of(read_output()), 1);
    assert_non_null(strstr(read_output(), "not a store; make one of a log with: keel import /tmp/keel-dump-"));
    char *missing[] = {"dump", "/nonexistent/run", NULL};
    assert_int_equal(run_to_file(keel_cmd_dump, STDERR_FILENO, 2, missing), 2);
    assert_non_null(strstr(read_output(), "/nonexistent/run: No such file or directory"));
}

static void of_an_imported_run_no_host_and_ranks_are_shown(void **unused) {
    (void)unused;
    char *import[] = {"import", log_path, "-o", run, NULL}, *dump[] = {"dump", run, NULL};
    assert_int_equal(run_to_file(keel_cmd_import, STDOUT_FILENO, 4, import), 0);
    assert_int_equal(run_to_file(keel_cmd_dump, STDOUT_FILENO, 2, dump), 0);
    const char *text = read_output();
    assert_non_null(strstr(text, "Z, complete\n"));
    assert_null(strstr(text, " on "));
    assert_null(strstr(text, "rank"));
}

static void values_of_single_ranks_are_shown(void **unused) {
    (void)unused;
    char *path = KEEL_SOURCE_DIR "/tests/fuzz/corpus/store/ranks.h5";
    char *dump[] = {"dump", path, "--op", "nans", "--ranks", "--site", "layers.0", NULL};
    assert_int_equal(run_to_file(keel_cmd_dump, STDOUT_FILENO, 7, dump), 0);
    const char *text = read_output();
    assert_int_equal(strncmp(text, "step,rank,site,value\n1,3,layers.0.weight:weight,", 47), 0);
    assert_non_null(strstr(text, "\n4,1,layers.0.weight:weight,11346210\n"));
    char *none[] = {"dump", path, "--op", "max", "--ranks", NULL};
    assert_int_equal(run_to_file(keel_cmd_dump, STDERR_FILENO, 5, none), 2);
    assert_non_null(strstr(read_output(), "no site keeps max of single ranks"));
    char *alone[] = {"dump", path, "--ranks", NULL};
    assert_int_equal(run_to_file(keel_cmd_dump, STDERR_FILENO, 3, alone), 2);
    assert_non_null(strstr(read_output(), "--ranks needs --op"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_log_is_to_be_imported_first),
        cmocka_unit_test(of_an_imported_run_no_host_and_ranks_are_shown),
        cmocka_unit_test(values_of_single_ranks_are_shown),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
