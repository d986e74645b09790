// keel report and keel check over logs: several paths, several runs in one, exit codes, one line for an error.
#include <jansson.h>
#include <math.h>
#include <sys/stat.h>

#include "tests/unit/tools/command_rig.h"
#include "tools/commands.h"

static char folder[64], healthy[96], spiky[96], sick[96], twice[96], later[96];

static void write_records(FILE *file, int from, int to, int spike, int nan_at) {
    for (int i = from; i <= to; i++) {
        double loss = i == spike ? 9 : 3 + 0.01 * sin(i * 12.9898);
        if (i == nan_at)
            fprintf(file, "{\"step\": %d, \"loss\": NaN, \"lr\": 0.001}\n", i);
        else
            fprintf(file, "{\"step\": %d, \"loss\": %.6f, \"lr\": 0.001}\n", i, loss);
    }
}

static FILE *create(char path[96], const char *name) {
    snprintf(path, 96, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    return file;
}

static int set_up(void **unused) {
    (void)unused;
    strcpy(folder, "/tmp/keel-commands-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    FILE *file = create(healthy, "healthy.jsonl");
    write_records(file, 1, 300, 0, 0);
    fclose(file);
    file = create(spiky, "a-spiky.jsonl");
    write_records(file, 1, 300, 200, 0);
    fclose(file);
    file = create(sick, "sick.jsonl");
    write_records(file, 1, 300, 0, 250);
    fclose(file);
    file = create(twice, "twice.jsonl");
    write_records(file, 1, 300, 150, 0);
    write_records(file, 1, 400, 0, 0);
    fclose(file);
    file = create(later, "later.jsonl");
    write_records(file, 1, 300, 0, 0);
    write_records(file, 1, 400, 150, 0);
    write_records(file, 1, 200, 0, 0);
    fclose(file);
    snprintf(output, sizeof output, "%s/out", folder);
    return 0;
}

static int tear_down(void **unused) {
    (void)unused;
    const char *const files[] = {healthy, spiky, sick, twice, later, output};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) unlink(files[i]);
    return rmdir(folder);
}

static void check_tells_by_its_exit_code(void **unused) {
    (void)unused;
    char *quiet[] = {"check", healthy, NULL}, *bad[] = {"check", healthy, spiky, NULL};
    char *only_critical[] = {"check", "--fail-on", "critical", spiky, NULL};
    char *critical[] = {"check", "--fail-on", "critical", sick, NULL};
    assert_int_equal(run_to_file(keel_cmd_check, STDOUT_FILENO, 2, quiet), 0);
    assert_int_equal(lines_of(read_output()), 1);
    assert_int_equal(run_to_file(keel_cmd_check, STDOUT_FILENO, 3, bad), 1);
    assert_non_null(strstr(read_output(), "step 200: loss jumped to 9 at step 200"));
    assert_int_equal(run_to_file(keel_cmd_check, STDOUT_FILENO, 4, only_critical), 0);
    assert_int_equal(run_to_file(keel_cmd_check, STDOUT_FILENO, 4, critical), 1);
}

static void an_unreadable_path_is_one_line_and_two(void **unused) {
    (void)unused;
    char *check[] = {"check", "/nonexistent/run", NULL}, *report[] = {"report", "/nonexistent/run", NULL};
    assert_int_equal(run_to_file(keel_cmd_check, STDERR_FILENO, 2, check), 2);
    char *text = read_output();
    assert_int_equal(lines_of(text), 1);
    assert_non_null(strstr(text, "keel check: /nonexistent/run: "));
    assert_int_equal(run_to_file(keel_cmd_report, STDERR_FILENO, 2, report), 2);
    text = read_output();
    assert_int_equal(lines_of(text), 1);
    assert_non_null(strstr(text, "keel report: /nonexistent/run: "));
}

static void make_file(const char *directory, const char *name) {
    char path[1024];
    mkdir(directory, 0700);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
}

// Every command that reads a run says of the directory PATH, in one line, WANTED.
static void check_no_run(char *path, const char *wanted) {
    static const struct {
        int (*run)(int, char **);
        const char *name;
        int paths;
    } commands[] = {{keel_cmd_report, "report", 1},
                    {keel_cmd_check, "check", 1},
                    {keel_cmd_dump, "dump", 1},
                    {keel_cmd_diff, "diff", 2}};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char *argv[] = {(char *)commands[i].name, path, path, NULL};
        argv[1 + commands[i].paths] = NULL;
        assert_int_equal(run_to_file(commands[i].run, STDERR_FILENO, 1 + commands[i].paths, argv), 2);
        const char *text = read_output();
        assert_int_equal(lines_of(text), 1);
        assert_non_null(strstr(text, path));
        if (!strstr(text, wanted)) fail_msg("%s: %s", commands[i].name, text);
    }
}

static void a_directory_that_is_no_run_says_what_it_is(void **unused) {
    (void)unused;
    char runs[96], name[6][128];
    snprintf(runs, sizeof runs, "%s/runs", folder);
    mkdir(runs, 0700);
    check_no_run(runs, "no run: a directory without keel-NNNN.h5");
    make_file(runs, "train.csv");
    check_no_run(runs, "what keel-train wrote without a monitor: no store, but a log; give ");
    for (int i = 0; i < 6; i++) snprintf(name[i], sizeof name[i], "%s/%c", runs, 'a' + i);
    make_file(name[5], "notes.txt");
    make_file(name[1], "keel-0000.h5");
    check_no_run(runs, "a directory that holds 1 of them; give that: ");
    for (int i = 0; i < 5; i++) make_file(name[i], "keel-0000.h5");
    check_no_run(runs, "a directory that holds 5 of them; give one: ");
    check_no_run(runs, "/runs/c, ...");
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", runs);
    assert_int_equal(system(command), 0);
}

static void several_paths_are_a_line_each_the_worst_first(void **unused) {
    (void)unused;
    char *argv[] = {"report", healthy, spiky, sick, NULL};
    assert_int_equal(run_to_file(keel_cmd_report, STDOUT_FILENO, 4, argv), 0);
    char *text = read_output();
    assert_int_equal(lines_of(text), 3);
    assert_ptr_equal(strstr(text, "critical"), text);
    assert_true(strstr(text, "sick.jsonl") < strstr(text, "spiky.jsonl"));
    assert_true(strstr(text, "spiky.jsonl") < strstr(text, "healthy.jsonl"));
}

static void several_runs_of_a_log_are_told_apart(void **unused) {
    (void)unused;
    char *json[] = {"report", twice, "--format", "json", NULL}, *text[] = {"report", twice, NULL};
    char *second[] = {"report", twice, "--run", "2", "--format", "json", NULL},
         *third[] = {"report", twice, "--run", "3", NULL};
    assert_int_equal(run_to_file(keel_cmd_report, STDOUT_FILENO, 4, json), 0);
    json_t *report = json_loads(read_output(), 0, NULL);
    assert_non_null(report);
    assert_int_equal(json_integer_value(json_object_get(report, "records")), 700);
    assert_int_equal(json_array_size(json_object_get(report, "runs")), 2);
    const json_t *incident = json_array_get(json_object_get(report, "incidents"), 0);
    assert_int_equal(json_integer_value(json_object_get(incident, "run")), 1);
    json_decref(report);
    assert_int_equal(run_to_file(keel_cmd_report, STDOUT_FILENO, 2, text), 0);
    assert_non_null(strstr(read_output(), "twice.jsonl, run 2 of 2: 400 records\n"));
    assert_int_equal(run_to_file(keel_cmd_report, STDOUT_FILENO, 6, second), 0);
    report = json_loads(read_output(), 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(report, "records")), 400);
    assert_int_equal(json_array_size(json_object_get(report, "incidents")), 0);
    json_decref(report);
    assert_int_equal(run_to_file(keel_cmd_report, STDERR_FILENO, 4, third), 2);
    assert_non_null(strstr(read_output(), "no run 3"));
}

static void report_and_check_speak_of_the_same_run(void **unused) {
    (void)unused;
    char *report[] = {"report", later, NULL}, *check[] = {"check", later, NULL};
    char *first[] = {"report", later, "--run", "1", NULL};
    assert_int_equal(run_to_file(keel_cmd_report, STDOUT_FILENO, 2, report), 0);
    const char *text = read_output();
    assert_ptr_equal(strstr(text, later), text);
    assert_ptr_equal(strstr(text, ", run 2 of 3  run later.jsonl#2, steps 1 to 400"), text + strlen(later));
    const char *worst = strstr(text, "WARNING: loss jumped to 9 at step 150");
    const char *line = strstr(text, "later.jsonl, run 1 of 3: 300 records\n");
    assert_non_null(worst);
    assert_true(line > worst);
    assert_true(strstr(text, "later.jsonl, run 3 of 3: 200 records\n") > line);
    assert_int_equal(run_to_file(keel_cmd_check, STDOUT_FILENO, 2, check), 1);
    assert_int_equal(lines_of(read_output()), 1);
    assert_non_null(strstr(read_output(), "later.jsonl, run 2 of 3: 1 incident in 400 records; step 150: "));
    assert_int_equal(run_to_file(keel_cmd_report, STDOUT_FILENO, 4, first), 0);
    assert_non_null(strstr(read_output(), "run 1 of 3"));
    assert_null(strstr(read_output(), "run 2 of 3"));
}

static void several_paths_as_json_are_a_list(void **unused) {
    (void)unused;
    char *argv[] = {"report", healthy, sick, "--format", "json", NULL};
    assert_int_equal(run_to_file(keel_cmd_report, STDOUT_FILENO, 5, argv), 0);
    json_t *list = json_loads(read_output(), 0, NULL);
    assert_int_equal(json_array_size(list), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "source")), sick);
    json_decref(list);
}

static void html_is_refused_clearly(void **unused) {
    (void)unused;
    char *argv[] = {"report", healthy, "--format", "html", NULL};
    assert_int_equal(run_to_file(keel_cmd_report, STDERR_FILENO, 4, argv), 2);
    assert_int_equal(lines_of(read_output()), 1);
}

static void what_a_log_left_out_is_in_the_json(void **unused) {
    (void)unused;
    char torn[96];
    FILE *file = create(torn, "torn.jsonl");
    write_records(file, 1, 20, 0, 0);
    fputs("{\"step\": 21, \"loss\": 3.\n{\"step\": 22, \"loss\": \"bad\"}\n", file);
    fclose(file);
    char *report[] = {"report", torn, "--format", "json", NULL}, *diff[] = {"diff", healthy, torn, "--json", NULL};
    assert_int_equal(run_to_file(keel_cmd_report, STDOUT_FILENO, 4, report), 0);
    json_t *root = json_loads(read_output(), 0, NULL);
    json_int_t lines, rows, first;
    assert_int_equal(
        json_unpack(root, "{s:{s:I, s:I, s:I}}", "left_out", "lines", &lines, "rows", &rows, "first_line", &first), 0);
    assert_true(lines == 1 && rows == 1 && first == 21);
    json_decref(root);
    assert_int_equal(run_to_file(keel_cmd_diff, STDOUT_FILENO, 4, diff), 0);
    root = json_loads(read_output(), 0, NULL);
    json_int_t none;
    assert_int_equal(json_unpack(root, "{s:{s:{s:I}, s:{s:I}}}", "left_out", "a", "lines", &none, "b", "lines", &lines),
                     0);
    assert_true(none == 0 && lines == 1);
    json_decref(root);
    unlink(torn);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_tells_by_its_exit_code),
        cmocka_unit_test(an_unreadable_path_is_one_line_and_two),
        cmocka_unit_test(a_directory_that_is_no_run_says_what_it_is),
        cmocka_unit_test(several_paths_are_a_line_each_the_worst_first),
        cmocka_unit_test(several_runs_of_a_log_are_told_apart),
        cmocka_unit_test(report_and_check_speak_of_the_same_run),
        cmocka_unit_test(several_paths_as_json_are_a_list),
        cmocka_unit_test(html_is_refused_clearly),
        cmocka_unit_test(what_a_log_left_out_is_in_the_json),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
