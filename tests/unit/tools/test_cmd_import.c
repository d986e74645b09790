// keel import: a log becomes a run directory that reads as the log does; what is wrong is told in one line and leaves
// nothing behind.
#include <dirent.h>
#include <sys/stat.h>

#include "collectors/store/reader.h"
#include "tests/unit/tools/import_rows.h"
#include "tools/commands.h"

static char root[PATH_BYTES];

static int make_root(void **state) {
    (void)state;
    const char *folder = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/keel-cmd-import-XXXXXX", folder ? folder : "/tmp");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
    (void)state;
    char command[PATH_BYTES + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

// Runs the command with what it prints on TEXT (both streams).
static int run(const char *const *words, char *text, size_t size) {
    char storage[16][PATH_BYTES + 8], *argv[16] = {NULL};
    int argc = 0;
    for (; words[argc]; argc++) {
        snprintf(storage[argc], sizeof storage[argc], "%s", words[argc]);
        argv[argc] = storage[argc];
    }
    FILE *caught = tmpfile();
    assert_non_null(caught);
    fflush(stdout);
    fflush(stderr);
    int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    dup2(fileno(caught), STDOUT_FILENO);
    dup2(fileno(caught), STDERR_FILENO);
    int code = keel_cmd_import(argc, argv);
    fflush(stdout);
    fflush(stderr);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    rewind(caught);
    text[fread(text, 1, size - 1, caught)] = 0;
    fclose(caught);
    return code;
}

static void check_stored(const char *directory, const char *const *rows) {
    keel_store_reader *reader = NULL;
    if (keel_store_open(directory, &reader)) fail_msg("%s", keel_error());
    const keel_row *row = NULL;
    keel_store_position position = {0};
    char text[ROW_BYTES];
    for (; *rows; rows++) {
        assert_int_equal(keel_store_next(reader, &row, &position), KEEL_OK);
        if (!row) {
            fail_msg("no row where \"%s\" belongs", *rows);
            return;
        }
        describe_row(keel_store_info(reader, position.segment), row, text);
        assert_string_equal(text, *rows);
    }
    assert_int_equal(keel_store_next(reader, &row, &position), KEEL_OK);
    assert_null(row);
    keel_store_close(reader);
}

static void test_makes_a_run_of_a_log(void **state) {
    (void)state;
    char log[PATH_BYTES], directory[PATH_BYTES + 8], text[1024];
    snprintf(log, sizeof log, "%s/llmc_main.log", KEEL_TEST_DATA);
    snprintf(directory, sizeof directory, "%s/run", root);
    assert_int_equal(run((const char *const[]){"import", log, "-o", directory, NULL}, text, sizeof text), 0);
    assert_non_null(strstr(text, "4 records of the format llm.c"));
    check_stored(directory, (const char *const[]){"0 - loss=10.9911 grad_norm=15.41 lr=1e-06 eval_loss=10.9904",
                                                  "1 - loss=10.942 grad_norm=15.1 lr=2e-06",
                                                  "2 - loss=10.8377 grad_norm=14.62 lr=3e-06",
                                                  "3 V loss=10.7002 grad_norm=12.98 lr=3e-06 eval_loss=10.5521", NULL});
    assert_int_equal(run((const char *const[]){"import", log, "-o", directory, NULL}, text, sizeof text), 2);
    assert_non_null(strstr(text, "a run is there already"));
}

static void test_chooses_a_run(void **state) {
    (void)state;
    char log[PATH_BYTES + 8], directory[PATH_BYTES + 8], text[1024];
    snprintf(log, sizeof log, "%s/two.csv", root);
    snprintf(directory, sizeof directory, "%s/second", root);
    static const char runs[] = "t;objective\n1;4\n2;3.5\n3;3.25\n1;5\n2;4.5\n";
    write_log(log, runs, sizeof runs - 1);
    const char *columns = "--columns=step=t,loss=objective";
    assert_int_equal(run((const char *const[]){"import", log, columns, "-o", directory, NULL}, text, sizeof text), 2);
    assert_non_null(strstr(text, "holds 2 runs"));
    assert_int_equal(
        run((const char *const[]){"import", log, columns, "--run=3", "-o", directory, NULL}, text, sizeof text), 2);
    assert_non_null(strstr(text, "--run 3, but it holds 2"));
    assert_int_equal(
        run((const char *const[]){"import", log, columns, "--run", "2", "-o", directory, NULL}, text, sizeof text), 0);
    check_stored(directory, (const char *const[]){"1 - loss=5", "2 - loss=4.5", NULL});
}

static void test_refuses_in_one_line(void **state) {
    (void)state;
    char log[PATH_BYTES], directory[PATH_BYTES + 8], text[2048];
    snprintf(log, sizeof log, "%s/CMakeLists.txt", KEEL_SOURCE_DIR);
    snprintf(directory, sizeof directory, "%s/none", root);
    const char *const cases[][8] = {
        {"import", log, "-o", directory, NULL},
        {"import", "/no/such/log", "-o", directory, NULL},
        {"import", log, "-o", directory, "--format", "tarot", NULL},
        {"import", log, "-o", directory, "--format", "csv", "--columns", "loss"},
        {"import", log, NULL},
        {"import", "-o", directory, NULL},
        {"import", log, log, "-o", directory, NULL},
        {"import", log, "-o", NULL},
        {"import", log, "-o", directory, "--run", "0", NULL},
        {"import", log, "-o", directory, "--speed", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *words[9] = {NULL};
        memcpy(words, cases[i], sizeof cases[i]);
        assert_int_equal(run(words, text, sizeof text), 2);
        assert_int_equal(strncmp(text, "keel import: ", 13), 0);
        const char *end = strchr(text, '\n');
        assert_true(end && end[1] == 0);
        struct stat info;
        assert_int_not_equal(stat(directory, &info), 0);
    }
}

static void test_tells_what_it_knows(void **state) {
    (void)state;
    char text[8192];
    assert_int_equal(run((const char *const[]){"import", "--list-formats", NULL}, text, sizeof text), 0);
    assert_non_null(strstr(text, "megatron"));
    assert_int_equal(run((const char *const[]){"import", "--help", NULL}, text, sizeof text), 0);
    assert_non_null(strstr(text, "usage: keel import LOG -o RUN"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_makes_a_run_of_a_log),
        cmocka_unit_test(test_chooses_a_run),
        cmocka_unit_test(test_refuses_in_one_line),
        cmocka_unit_test(test_tells_what_it_knows),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
