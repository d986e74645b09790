// How a log is read, whatever its format: line ends, colours, byte order marks, long lines, gzip, standard input, logs
// that grow or are cut anywhere, and columns that the user names.
#include <math.h>
#include <zlib.h>

#include "tests/unit/collectors/captured_log.h"
#include "tests/unit/tools/import_rows.h"
#include "tools/import/importer.h"

static const char *const two_rows[] = {"10 - loss=3.25", "20 - loss=3.125", NULL};

static void test_line_ends_colours_and_marks(void **state) {
    (void)state;
    check_text("iter 10: loss 3.25, time 1ms\r\niter 20: loss 3.125, time 1ms\r\n", "nanogpt", two_rows);
    check_text(" 10%|#         | 1/10\r 20%|##        | 2/10\riter 10: loss 3.25, time 1ms\r 30%|###\riter 20: loss "
               "3.125, time 1ms\r",
               NULL, two_rows);
    check_text(
        "\xef\xbb\xbfiter 10: loss 3.25, time 1ms\n\x1b[1;32miter\x1b[0m 20: loss \x1b[31m3.125\x1b[0m, time 1ms\n",
        NULL, two_rows);
    check_text("\xef\xbb\xbf{\"step\": 10, \"loss\": 3.25}\n{\"step\": 20, \"loss\": 3.125}\n", NULL, two_rows);
    check_text("\xef\xbb\xbf"
               "step,loss\r\n10,3.25\r\n20,3.125\r\n",
               NULL, two_rows);
    check_text("\xef\xbb\xbf{\"log_history\": [{\"step\": 10, \"loss\": 3.25}, {\"step\": 20, \"loss\": 3.125}]}", NULL,
               two_rows);
}

static void test_lines_of_any_length(void **state) {
    (void)state;
    size_t size = (size_t)KEEL_IMPORT_LINE_BYTES + (3 << 20);
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, 'x', size);
    static const char first[] = "iter 10: loss 3.25, time 1ms\n", last[] = "\niter 20: loss 3.125, time 1ms\n";
    memcpy(text, first, sizeof first - 1);
    memcpy(text + size - (sizeof last - 1), last, sizeof last - 1);
    // A record beyond the bound of a line is out of sight, one within it is not.
    static const char middle[] = " iter 15: loss 9.5, time 1ms \n";
    memcpy(text + 2 * (size_t)KEEL_IMPORT_LINE_BYTES, middle, sizeof middle - 2);
    write_log(scratch_log(), text, size);
    keel_import *import = NULL;
    assert_int_equal(keel_import_open(scratch_log(), NULL, &import), KEEL_OK);
    check_rows(import, 0, two_rows);
    keel_import_close(import);
    size = KEEL_IMPORT_LINE_BYTES / 2;
    memcpy(text + size, middle, sizeof middle - 1);
    memcpy(text + size + (sizeof middle - 1), last + 1, sizeof last - 2);
    write_log(scratch_log(), text, size + sizeof middle + sizeof last - 3);
    assert_int_equal(keel_import_open(scratch_log(), NULL, &import), KEEL_OK);
    check_rows(import, 0, (const char *const[]){"10 - loss=3.25", "15 - loss=9.5", "20 - loss=3.125", NULL});
    keel_import_close(import);
    free(text);
}

// Megabytes of something else before the first record: a program's source, warnings.
static void test_records_after_a_long_preface(void **state) {
    (void)state;
    FILE *file = fopen(scratch_log(), "wb");
    assert_non_null(file);
    for (int i = 0; i < 100000; i++) fprintf(file, "UserWarning: %d: the argument is deprecated\n", i);
    fputs("iter 10: loss 3.25, time 1ms\niter 20: loss 3.125, time 1ms\n", file);
    fclose(file);
    keel_import *import = NULL;
    assert_int_equal(keel_import_open(scratch_log(), NULL, &import), KEEL_OK);
    check_rows(import, 0, two_rows);
    keel_import_close(import);
}

static void test_gzip(void **state) {
    (void)state;
    gzFile zipped = gzopen(scratch_log(), "wb");
    assert_non_null(zipped);
    for (int step = 1; step <= 20000; step++)
        gzprintf(zipped, "{\"step\": %d, \"loss\": %.17g}\n", step, sin(step) + 3);
    assert_int_equal(gzclose(zipped), Z_OK);
    keel_import *import = NULL;
    assert_int_equal(keel_import_open(scratch_log(), NULL, &import), KEEL_OK);
    const keel_row_source *source = keel_import_run(import, 0);
    const keel_row *row = NULL;
    for (uint64_t step = 1; step <= 20000; step++) {
        assert_int_equal(source->next(source->context, &row), KEEL_OK);
        assert_non_null(row);
        assert_int_equal(row->step.step, step);
        assert_true(row->scalars[0] == sin((double)step) + 3);
    }
    keel_import_close(import);
    // Damaged in the middle: an error, not half a run.
    FILE *file = fopen(scratch_log(), "rb+");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    unsigned char kept[64];
    fseek(file, size / 4, SEEK_SET);
    assert_int_equal(fread(kept, 1, sizeof kept, file), sizeof kept);
    fseek(file, size / 4, SEEK_SET);
    for (size_t i = 0; i < sizeof kept; i++) fputc(~kept[i] & 0xff, file);
    fflush(file);
    keel_status status = keel_import_open(scratch_log(), NULL, &import);
    if (!status) fail_msg("a damaged file was read");
    assert_int_equal(status, KEEL_ERR_FORMAT);
    assert_non_null(strstr(keel_error(), "damaged gzip"));
    // Cut in the middle, as of a run that is still being compressed: what is there.
    fseek(file, size / 4, SEEK_SET);
    assert_int_equal(fwrite(kept, 1, sizeof kept, file), sizeof kept);
    fflush(file);
    assert_int_equal(ftruncate(fileno(file), size / 2), 0);
    fclose(file);
    capture_log();
    assert_int_equal(keel_import_open(scratch_log(), NULL, &import), KEEL_OK);
    source = keel_import_run(import, 0);
    uint64_t rows = 0;
    while (!source->next(source->context, &row) && row) assert_int_equal(row->step.step, ++rows);
    assert_true(rows > 1000 && rows < 20000);
    assert_int_equal(captured_with("ends in the middle"), 1); // and it is said, once
    assert_int_equal(captured_with(scratch_log()), 1);
    keel_log_set(NULL, NULL);
    keel_import_close(import);
}

static void test_standard_input(void **state) {
    (void)state;
    int ends[2], before = dup(STDIN_FILENO);
    assert_int_equal(pipe(ends), 0);
    static const char text[] = "iter 10: loss 3.25, time 1ms\niter 20: loss 3.125, time 1ms\n";
    assert_int_equal(write(ends[1], text, sizeof text - 1), (ssize_t)sizeof text - 1);
    close(ends[1]);
    assert_int_equal(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
    close(ends[0]);
    keel_import *import = NULL;
    keel_status status = keel_import_open("-", NULL, &import);
    dup2(before, STDIN_FILENO);
    close(before);
    if (status) fail_msg("%s", keel_error());
    check_rows(import, 0, two_rows);
    assert_string_equal(keel_import_run(import, 0)->info->run_id, "stdin");
    keel_import_close(import);
}

// The last line of a log that grows: nothing of it is taken that may still change.
static void test_a_growing_log(void **state) {
    (void)state;
    check_text("iter 10: loss 3.25, time 1ms\niter 20: loss 3.1", "nanogpt",
               (const char *const[]){"10 - loss=3.25", NULL});
    check_text("s:1 trl:3.25 lr:0.001 norm:0.5\ns:2 trl:3.125 lr:0.001 norm:0.", "llm.c",
               (const char *const[]){"1 - loss=3.25 grad_norm=0.5 lr=0.001", "2 - loss=3.125 lr=0.001", NULL});
    check_text("s:1 trl:3.25\ns:2 trl:nan", "llm.c",
               (const char *const[]){"1 - loss=3.25", "2 - loss=nan", NULL}); // cannot grow
    check_text("{\"step\": 10, \"loss\": 3.25}\n{\"step\": 20, \"loss\": 3.125}", NULL, two_rows);
    check_text("{\"step\": 10, \"loss\": 3.25}\n{\"step\": 20, \"loss\": 3.1", NULL,
               (const char *const[]){"10 - loss=3.25", NULL});
    check_text("step,lr,loss\n1,0.5,3.25\n2,0.5,3.1", NULL, (const char *const[]){"1 - loss=3.25 lr=0.5", NULL});
    check_text("step,loss,lr\n1,3.25,0.5\n2,3.1", NULL, (const char *const[]){"1 - loss=3.25 lr=0.5", NULL});
}

// ---- cut anywhere ----

typedef struct known_values {
    struct {
        uint64_t step;
        char name[32];
        double value;
    } * values;
    size_t count;
} known_values;

static bool is_known(const known_values *known, uint64_t step, const char *name, double value) {
    for (size_t i = 0; i < known->count; i++)
        if (known->values[i].step == step && strcmp(known->values[i].name, name) == 0 &&
            (known->values[i].value == value || (isnan(value) && isnan(known->values[i].value))))
            return true;
    return false;
}

static void visit_values(keel_import *import, known_values *known, bool check, const char *what, size_t cut) {
    for (size_t run = 0; run < keel_import_runs(import); run++) {
        const keel_row_source *source = keel_import_run(import, run);
        const keel_row *row = NULL;
        while (!source->next(source->context, &row) && row) {
            if (check && row->step.flags & KEEL_STEP_OVERFLOW) continue; // it stands alone until its record comes
            for (uint32_t i = 0; i < source->info->scalar_count; i++) {
                if (!row->scalar_set[i]) continue;
                const char *name = source->info->scalar_names[i];
                if (!check) {
                    known->values = realloc(known->values, (known->count + 1) * sizeof *known->values);
                    assert_non_null(known->values);
                    known->values[known->count].step = row->step.step;
                    known->values[known->count].value = row->scalars[i];
                    snprintf(known->values[known->count++].name, sizeof known->values->name, "%s", name);
                } else if (!is_known(known, row->step.step, name, row->scalars[i]) && strncmp(name, "eval", 4) != 0) {
                    fail_msg("%s cut at %zu: %s=%.9g at step %llu", what, cut, name, row->scalars[i],
                             (unsigned long long)row->step.step);
                }
            }
        }
    }
}

// Wherever a log ends, what is read of it is true: each value is that of the whole log at the same step.
static void test_cut_anywhere(void **state) {
    (void)state;
    static const struct {
        const char *file, *format;
    } logs[] = {
        {"nanogpt.log", "nanogpt"},
        {"build_nanogpt.out", "build-nanogpt"},
        {"build_nanogpt_file.txt", "build-nanogpt"},
        {"llmc_main.log", "llm.c"},
        {"llmc_stdout.txt", "llm.c"},
        {"modded_nanogpt.txt", "modded-nanogpt"},
        {"fairseq_simple.log", "fairseq"},
        {"fairseq_hydra.log", "fairseq"},
        {"fairseq_tqdm.log", "fairseq"},
        {"detectron2.json", "detectron2"},
        {"hf_trainer_state.json", "hugging-face-state"},
        {"hf_printed.txt", "hugging-face"},
        {"llama_factory.jsonl", "llama-factory"},
        {"generic.jsonl", "jsonl"},
        {"lightning.csv", "lightning"},
        {"events.tfevents", "tensorboard"},
        {"megatron.log", "megatron"},
        {"array.json", "json"},
    };
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
        char path[PATH_BYTES], bytes[16 << 10];
        snprintf(path, sizeof path, "%s/%s", KEEL_TEST_DATA, logs[i].file);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        size_t size = fread(bytes, 1, sizeof bytes, file);
        fclose(file);
        assert_true(size > 0 && size < sizeof bytes);
        keel_import_options options = {.format = logs[i].format};
        keel_import *import = NULL;
        assert_int_equal(keel_import_open(path, &options, &import), KEEL_OK);
        known_values known = {.count = 0};
        visit_values(import, &known, false, NULL, 0);
        keel_import_close(import);
        for (size_t cut = 1; cut < size; cut += 1 + cut % 7) {
            write_log(scratch_log(), bytes, cut);
            keel_status status = keel_import_open(scratch_log(), &options, &import);
            if (status == KEEL_ERR_FORMAT) continue; // nothing yet
            assert_int_equal(status, KEEL_OK);
            visit_values(import, &known, true, logs[i].file, cut);
            keel_import_close(import);
        }
        free(known.values);
    }
}

// ---- columns ----

static void test_columns_that_the_user_names(void **state) {
    (void)state;
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/columns.csv", KEEL_TEST_DATA);
    keel_import *import = NULL;
    keel_import_options options = {.columns = "step=t,loss=objective,kl=kl,return=reward"};
    assert_int_equal(keel_import_open(path, &options, &import), KEEL_OK);
    assert_string_equal(keel_import_format(import), "csv");
    check_rows(import, 0,
               (const char *const[]){"1 - loss=0.5 kl=0.01 return=1.25", "2 - loss=0.25 kl=0.02 return=1.5",
                                     "3 - loss=0.125 kl=0.04 return=nan", NULL});
    keel_import_close(import);
    // What the user names is preferred to what would be taken.
    import = open_text("{\"iter\": 5, \"step\": 1, \"loss\": 9, \"inner\": {\"loss\": 3.5}}\n{\"iter\": 10, \"step\": "
                       "2, \"loss\": 9, \"inner\": {\"loss\": 3.25}}\n",
                       &(keel_import_options){.columns = "step=iter,loss=inner/loss"});
    check_rows(import, 0, (const char *const[]){"5 - loss=3.5", "10 - loss=3.25", NULL});
    keel_import_close(import);
    import = open_text("t=1 objective=3.5 kl=0.5\nt=2 objective=3.25 kl=0.5\nt=3 objective=3.125 kl=0.25\n",
                       &(keel_import_options){.columns = "step=t,loss=objective,kl=kl"});
    check_rows(import, 0,
               (const char *const[]){"1 - loss=3.5 kl=0.5", "2 - loss=3.25 kl=0.5", "3 - loss=3.125 kl=0.25", NULL});
    keel_import_close(import);
    snprintf(path, sizeof path, "%s/events.tfevents", KEEL_TEST_DATA);
    options.columns = "loss=train/grad_norm";
    assert_int_equal(keel_import_open(path, &options, &import), KEEL_OK);
    check_rows(import, 0,
               (const char *const[]){"10 - loss=0.625 lr=0.00048828125", "20 - loss=0.75 lr=0.000244140625",
                                     "30 - loss=0.875 lr=0.000122070312 eval_loss=3.5",
                                     "40 - loss=1 lr=6.10351562e-05 eval_loss=3.375",
                                     "50 - loss=1.125 lr=3.05175781e-05", NULL});
    keel_import_close(import);
}

static void check_columns_refused(const char *columns, const char *format, const char *text) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/columns.csv", KEEL_TEST_DATA);
    keel_import *import = NULL;
    keel_import_options options = {.columns = columns, .format = format};
    assert_int_equal(keel_import_open(path, &options, &import), KEEL_ERR_CONFIG);
    if (!strstr(keel_error(), text)) fail_msg("\"%s\" does not say \"%s\"", keel_error(), text);
}

// JSON lines whose format is not given but recognised: the message is that of a given one.
static void test_a_wrong_column_of_a_recognised_log(void **state) {
    (void)state;
    static const char text[] = "{\"it\": 1, \"objective\": 3.5}\n{\"it\": 2, \"objective\": 3.25}\n";
    write_log(scratch_log(), text, sizeof text - 1);
    keel_import *import = NULL;
    for (int given = 0; given < 2; given++) {
        const keel_import_options options = {.columns = "step=it,loss=nosuch", .format = given ? "jsonl" : NULL};
        assert_int_equal(keel_import_open(scratch_log(), &options, &import), KEEL_ERR_CONFIG);
        assert_non_null(strstr(keel_error(), "nothing is called \"nosuch\" (columns: loss=nosuch); there are \"it\", "
                                             "\"objective\""));
    }
}

static void test_columns_that_are_wrong(void **state) {
    (void)state;
    check_columns_refused("loss=objectve,step=t", "csv",
                          "nothing is called \"objectve\" (columns: loss=objectve); there are \"t\", \"objective\"");
    check_columns_refused("loss", NULL, "\"loss\" is not name=column");
    check_columns_refused("=t", NULL, "\"=t\" is not name=column");
    check_columns_refused("loss=", NULL, "\"loss=\" is not name=column");
    check_columns_refused("", NULL, "\"\" is not name=column");
    check_columns_refused("loss=objective,loss=kl", NULL, "\"loss\" is given twice");
    check_columns_refused("a_name_of_more_than_thirty_one_characters=kl", NULL, "longer than 31");
    check_columns_refused("loss=objective", "megatron", "no columns to name");
}

// The first name of a table of names that a log has gives the value; other names are not mixed in.
static void test_names_are_not_mixed(void **state) {
    (void)state;
    check_text("{\"step\": 1, \"train_loss\": 3.5}\n{\"step\": 2, \"train_loss\": 3.25}\n{\"step\": 2, \"loss\": 9.5, "
               "\"epoch\": 1}\n{\"step\": 3, \"train_loss\": 3.125}\n",
               NULL, (const char *const[]){"1 - loss=3.5", "2 - loss=3.25", "3 - loss=3.125", NULL});
    check_text("epoch,loss,train/loss,Learning Rate\n1,3.5,9,0.5\n2,3.25,9,0.5\n", NULL,
               (const char *const[]){"1 - loss=3.5 lr=0.5", "2 - loss=3.25 lr=0.5", NULL});
    check_text("Step,\"sweep-7 - train/loss\",\"sweep-7 - train/loss__MIN\"\n1,3.5,1\n2,3.25,1\n", NULL,
               (const char *const[]){"1 - loss=3.5", "2 - loss=3.25", NULL});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line_ends_colours_and_marks),
        cmocka_unit_test(test_lines_of_any_length),
        cmocka_unit_test(test_records_after_a_long_preface),
        cmocka_unit_test(test_gzip),
        cmocka_unit_test(test_standard_input),
        cmocka_unit_test(test_a_growing_log),
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_columns_that_the_user_names),
        cmocka_unit_test(test_columns_that_are_wrong),
        cmocka_unit_test(test_a_wrong_column_of_a_recognised_log),
        cmocka_unit_test(test_names_are_not_mixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
