// Every format: its fixture is recognised as what it is and as nothing else, and gives exactly these rows. What is no
// log is refused.
#include "tests/unit/tools/import_rows.h"
#include "tools/import/import_context.h"
#include "tools/import/import_open.h"

typedef struct fixture {
    const char *file, *format;
    const char *const *rows;
} fixture;

// Rows are not broken: they would look like two.
// clang-format off
static const fixture fixtures[] = {
    {"array.json", "json", (const char *const[]){"1 - loss=3.5", "2 - loss=3.25 grad_norm=0.5", NULL}},
    {"build_nanogpt.out", "build-nanogpt",
     (const char *const[]){"0 - loss=10.981204 grad_norm=15.6102 lr=8.3916e-07 eval_loss=10.9801",
                           "1 - loss=10.930417 grad_norm=15.0028 lr=1.6783e-06",
                           "2 - loss=10.833902 grad_norm=14.2217 lr=2.5175e-06",
                           "3 V loss=10.690111 grad_norm=12.904 lr=3.3566e-06 eval_loss=10.6512",
                           "4 - loss=10.54187 grad_norm=10.6139 lr=4.1958e-06", NULL}},
    {"build_nanogpt_file.txt", "build-nanogpt",
     (const char *const[]){"0 - loss=10.981204 eval_loss=10.9801", "1 - loss=10.930417", "2 - loss=10.833902",
                           "250 - loss=6.871201 eval_loss=6.9107", NULL}},
    {"detectron2.json", "detectron2",
     (const char *const[]){"19 - loss=4.4102 lr=1.9981e-05", "39 - loss=3.2115 lr=3.9961e-05",
                           "59 - loss=inf lr=5.9941e-05", NULL}},
    {"events.tfevents", "tensorboard",
     (const char *const[]){"10 - loss=3.75 grad_norm=0.625 lr=0.00048828125",
                           "20 - loss=3.5 grad_norm=0.75 lr=0.000244140625",
                           "30 - loss=3.25 grad_norm=0.875 lr=0.000122070312 eval_loss=3.5",
                           "40 - loss=3 grad_norm=1 lr=6.10351562e-05 eval_loss=3.375",
                           "50 - loss=2.75 grad_norm=1.125 lr=3.05175781e-05", NULL}},
    {"fairseq_epochs.log", "fairseq",
     (const char *const[]){"9820 V loss=6.512 grad_norm=0.402 lr=0.000638242 loss_scale=0.5 perplexity=36.35 eval_loss=6.0112 eval_perplexity=27.9",
                           "10198 - loss=6.498 grad_norm=0.391 lr=0.000626286 loss_scale=0.5 perplexity=36",
                           "10199 SO loss_scale=0.25", "10200 SO loss_scale=0.125", "10201 SO loss_scale=0.0625",
                           NULL}},
    {"fairseq_hydra.log", "fairseq",
     (const char *const[]){"200 - loss=6.812 grad_norm=1.388 lr=3.1e-06 loss_scale=32 skipped_iterations=2",
                           "400 V loss=6.401 grad_norm=0.151 lr=6.2e-06 loss_scale=32 eval_loss=6.3",
                           "600 E loss=5.733 grad_norm=0.472 lr=9.3e-06 loss_scale=32", NULL}},
    {"fairseq_json.log", "fairseq",
     (const char *const[]){"100 - loss=12.231 grad_norm=3.512 lr=1.26e-05 loss_scale=64 perplexity=4045",
                           "200 V loss=10.902 grad_norm=1.987 lr=2.51e-05 loss_scale=64 perplexity=1458 eval_loss=9.871 eval_perplexity=588.1",
                           "300 E loss=9.644 grad_norm=1.402 lr=3.76e-05 loss_scale=64 perplexity=552.6", NULL}},
    {"fairseq_simple.log", "fairseq",
     (const char *const[]){"100 - loss=13.021 grad_norm=4.821 lr=1.25e-05 loss_scale=128 perplexity=7131.4",
                           "200 V loss=11.455 grad_norm=2.102 lr=2.5e-05 loss_scale=128 perplexity=2194.9 eval_loss=10.0121 eval_perplexity=725.12",
                           NULL}},
    {"fairseq_tqdm.log", "fairseq",
     (const char *const[]){"100 - loss=13.021 grad_norm=4.821 lr=1.25e-05 loss_scale=128 perplexity=7131.4",
                           "200 - loss=11.455 grad_norm=2.102 lr=2.5e-05 loss_scale=128 perplexity=2194.9", NULL}},
    {"generic.csv", "csv",
     (const char *const[]){
         "140000 - loss=2.5 grad_norm=0.25 lr=0.0003", "140020 - loss=2.46875 grad_norm=0.26 lr=0.0003",
         "140040 - loss=-0.125 grad_norm=inf lr=0.0003", "140080 - loss=2.375 grad_norm=0.24 lr=0.0003", NULL}},
    {"generic.jsonl", "jsonl",
     (const char *const[]){"32 - loss=11.25 grad_norm=3.5 lr=0.0001",
                           "64 V loss=10.75 grad_norm=3.25 lr=0.0001 eval_loss=10.5 eval_perplexity=36315.5",
                           "96 E loss=nan grad_norm=-inf lr=0.0001", "128 - loss=-0.5 grad_norm=2.5 lr=0.0001", NULL}},
    {"hf_printed.txt", "hugging-face",
     (const char *const[]){"10 - loss=2.2481 grad_norm=0.612100303 lr=0.00019",
                           "20 - loss=2.1102 grad_norm=nan lr=0.00018",
                           "30 V loss=2.0714 grad_norm=0.821100235 lr=0.00017 eval_loss=2.0127",
                           "40 E loss=1.8211 grad_norm=0.790200114 lr=0.00016", NULL}},
    {"hf_trainer_state.json", "hugging-face-state",
     (const char *const[]){"10 - loss=2.2481 grad_norm=0.612100303 lr=0.00019",
                           "20 - loss=2.1102 grad_norm=nan lr=0.00018",
                           "30 V loss=2.0714 grad_norm=0.821100235 lr=0.00017 eval_loss=2.0127",
                           "40 E loss=1.8211 grad_norm=0.790200114 lr=0.00016", NULL}},
    {"keel_train.csv", "csv",
     (const char *const[]){"1 SO loss=5.54517744 grad_norm=inf lr=1e-05 loss_scale=65536 skipped_iterations=1",
                           "2 SO loss=5.54517744 grad_norm=nan lr=1e-05 loss_scale=32768 skipped_iterations=1",
                           "3 - loss=5.5448 grad_norm=2.25 lr=1e-05 loss_scale=16384",
                           "4 - loss=5.5 grad_norm=inf lr=2e-05 loss_scale=16384", NULL}},
    {"lightning.csv", "lightning",
     (const char *const[]){"49 - loss=9.5 lr=0.0003 perplexity=13359.7",
                           "99 V loss=9 lr=0.0003 perplexity=8103.1 eval_loss=8.875",
                           "149 E loss=8.5 lr=0.0003 perplexity=4914.8", "199 - loss=inf", NULL}},
    {"llama_factory.jsonl", "llama-factory",
     (const char *const[]){"5 - loss=1.7612 lr=4.99e-05", "10 V loss=1.7401 lr=4.81e-05 eval_loss=1.7011",
                           "15 - loss=1.7288 lr=4.52e-05", NULL}},
    {"llama2c.log", "nanogpt",
     (const char *const[]){"0 - loss=10.413 lr=0 eval_loss=10.4101", "1 - loss=10.4021 lr=5e-07",
                           "2 - loss=10.3877 lr=1e-06", NULL}},
    {"llmc_early.log", "llm.c",
     (const char *const[]){"0 - loss=10.99113 eval_loss=10.990412", "1 - loss=10.842007", "2 - loss=10.57331", NULL}},
    {"llmc_main.log", "llm.c",
     (const char *const[]){"0 - loss=10.9911 grad_norm=15.41 lr=1e-06 eval_loss=10.9904",
                           "1 - loss=10.942 grad_norm=15.1 lr=2e-06", "2 - loss=10.8377 grad_norm=14.62 lr=3e-06",
                           "3 V loss=10.7002 grad_norm=12.98 lr=3e-06 eval_loss=10.5521", NULL}},
    {"llmc_old.txt", "llm.c",
     (const char *const[]){"1 - loss=4.367857 eval_loss=4.51649", "2 - loss=4.406483", "3 - loss=4.484838", NULL}},
    {"llmc_stdout.txt", "llm.c",
     (const char *const[]){"1 - loss=10.991104 grad_norm=15.4102 lr=8.57e-07 eval_loss=10.990391",
                           "2 - loss=10.942018 grad_norm=15.1001 lr=1.71e-06",
                           "130 V loss=7.201442 grad_norm=1.9021 lr=0.000111 eval_loss=7.18812", NULL}},
    {"megatron.log", "megatron",
     (const char *const[]){
         "140 - loss=9.87123 grad_norm=3.417 lr=2.8e-06 loss_scale=131072",
         "141 - loss=9.866114 grad_norm=3.388 lr=2.82e-06 loss_scale=131072",
         "142 SO loss=9.900871 lr=2.82e-06 loss_scale=65536 skipped_iterations=1",
         "143 SO lr=2.84e-06 loss_scale=32768", "144 - loss=9.851027 grad_norm=3.351 lr=2.86e-06 loss_scale=32768",
         "146 V loss=9.839952 grad_norm=nan lr=2.9e-06 loss_scale=32768 eval_loss=9.812345 eval_perplexity=18273.3",
         "144 R loss=9.852001 grad_norm=3.36 lr=2.86e-06 loss_scale=32768",
         "145 - loss=9.845555 grad_norm=3.342 lr=2.88e-06 loss_scale=32768",
         "146 - loss=9.840404 grad_norm=3.331 lr=2.9e-06 loss_scale=32768",
         "147 - loss=9.83321 grad_norm=3.325 lr=2.92e-06 loss_scale=32768", NULL}},
    {"megatron_sparse.log", "megatron",
     (const char *const[]){"20 - loss=10.81245 lr=6e-06",
                           "40 - loss=10.12345 lr=1.2e-05 aux_loss=1.00321 skipped_iterations=3",
                           "60 - loss=nan lr=1.8e-05 aux_loss=1.0011", "80 - loss=9.5122 lr=2.4e-05", NULL}},
    {"modded_nanogpt.txt", "modded-nanogpt",
     (const char *const[]){"1 - loss=10.8302 eval_loss=10.831", "2 - loss=10.4417", "3 V loss=9.8021 eval_loss=9.7744",
                           "4 - loss=nan", NULL}},
    {"nanogpt.log", "nanogpt",
     (const char *const[]){"0 - loss=10.8274 eval_loss=10.8305", "10 - loss=9.7411", "20 - loss=8.9012",
                           "30 - loss=8.2231 eval_loss=8.2051", "40 - loss=nan", "50 - loss=nan", NULL}},
    {"overflow_apex.log", "overflow",
     (const char *const[]){"10 - loss=9.678 lr=2.518e-05 loss_scale=16384 skipped_iterations=2",
                           "20 - loss=9.433 lr=3.17e-05", "50 E loss=9.172 lr=3.991e-05", NULL}},
    {"overflow_only.log", "overflow",
     (const char *const[]){"1 SO loss_scale=65536", "2 SO loss_scale=32768", "3 SO loss_scale=16384", NULL}}};
// clang-format on

enum { FIXTURES = sizeof fixtures / sizeof *fixtures };

static void fixture_path(const char *file, char path[PATH_BYTES]) {
    snprintf(path, PATH_BYTES, "%s/%s", KEEL_TEST_DATA, file);
}

static void test_reads_every_format(void **state) {
    (void)state;
    for (size_t i = 0; i < FIXTURES; i++) {
        char path[PATH_BYTES];
        fixture_path(fixtures[i].file, path);
        keel_import *import = NULL;
        if (keel_import_open(path, NULL, &import)) fail_msg("%s: %s", fixtures[i].file, keel_error());
        assert_string_equal(keel_import_format(import), fixtures[i].format);
        assert_int_equal(keel_import_runs(import), 1);
        check_rows(import, 0, fixtures[i].rows);
        check_rows(import, 0, fixtures[i].rows); // a run can be read again
        keel_import_close(import);
    }
}

static keel_status count_line(void *context, const keel_import_line *line) {
    return keel_import_context_line(context, line);
}

// Records that IMPORTER finds in the log, as recognition counts them.
static uint64_t count_records(const keel_importer *importer, const char *path) {
    static char bytes[64 << 10];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    keel_import_match *match = NULL;
    keel_import_context *context = NULL;
    keel_import_lines lines;
    keel_import_lines_init(&lines);
    assert_int_equal(keel_import_match_open(&match), KEEL_OK);
    assert_int_equal(keel_import_context_open(importer, path, NULL, match, true, &context), KEEL_OK);
    if (importer->line) {
        assert_int_equal(keel_import_lines_feed(&lines, bytes, size, count_line, context), KEEL_OK);
        assert_int_equal(keel_import_lines_end(&lines, count_line, context), KEEL_OK);
    } else {
        assert_int_equal(keel_import_context_bytes(context, (const uint8_t *)bytes, size), KEEL_OK);
    }
    uint64_t records = keel_import_assembly_records(keel_import_context_assembly(context));
    keel_import_context_close(context);
    keel_import_match_close(match);
    keel_import_lines_free(&lines);
    return records;
}

// No importer of one trainer's format finds anything in the log of another.
static void test_takes_no_other_format(void **state) {
    (void)state;
    for (size_t i = 0; i < FIXTURES; i++) {
        char path[PATH_BYTES];
        fixture_path(fixtures[i].file, path);
        for (size_t k = 0; k < keel_importer_count; k++) {
            bool own = strcmp(keel_importers[k]->name, fixtures[i].format) == 0;
            if (!own && keel_importers[k]->weight < 4) continue;
            uint64_t records = count_records(keel_importers[k], path);
            if (own != (records > 0))
                fail_msg("%s finds %u records in %s", keel_importers[k]->name, (unsigned)records, fixtures[i].file);
        }
    }
}

static void test_every_format_has_a_fixture(void **state) {
    (void)state;
    for (size_t k = 0; k < keel_importer_count; k++) {
        bool found = strcmp(keel_importers[k]->name, "text") == 0; // its logs are in the test below
        for (size_t i = 0; i < FIXTURES; i++) found |= strcmp(fixtures[i].format, keel_importers[k]->name) == 0;
        if (!found) fail_msg("%s has no fixture", keel_importers[k]->name);
        assert_ptr_equal(keel_importer_find(keel_importers[k]->name), keel_importers[k]);
    }
}

static void test_reads_text_of_other_trainers(void **state) {
    (void)state;
    check_text("INFO - step:  1  loss:  8.1309  grad_norm:  1.5103  memory: 41.20GiB(43%)  wps: 1,023\n"
               "INFO - step: 10  loss:  7.1309  grad_norm:  1.4103  memory: 41.20GiB(43%)  wps: 1,023\n"
               "INFO - step: 20  loss:  nan  grad_norm:  inf  memory: 41.20GiB(43%)  wps: 1,023\n",
               NULL,
               (const char *const[]){"1 - loss=8.1309 grad_norm=1.5103", "10 - loss=7.1309 grad_norm=1.4103",
                                     "20 - loss=nan grad_norm=inf", NULL});
    check_text(
        "{ Epoch:[  1/  2], step:[    2/   4], loss: 10.622, lr: 1.5e-06, loss_scale: 65536.0, global_norm: [5.2] }\n"
        "{ Epoch:[  1/  2], step:[    4/   4], loss: 10.422, lr: 1.6e-06, loss_scale: 65536.0, global_norm: [5.1] }\n"
        "{ Epoch:[  2/  2], step:[    2/   4], loss: 10.222, lr: 1.7e-06, loss_scale: 65536.0, global_norm: [5.0] }\n"
        "{ Epoch:[  2/  2], step:[    4/   4], loss: 10.122, lr: 1.8e-06, loss_scale: 65536.0, global_norm: [4.9] }\n",
        NULL,
        (const char *const[]){"2 - loss=10.622 grad_norm=5.2 lr=1.5e-06 loss_scale=65536",
                              "4 - loss=10.422 grad_norm=5.1 lr=1.6e-06 loss_scale=65536",
                              "6 E loss=10.222 grad_norm=5 lr=1.7e-06 loss_scale=65536",
                              "8 - loss=10.122 grad_norm=4.9 lr=1.8e-06 loss_scale=65536", NULL});
    check_text(
        "Step 1 | loss:1.532 lr:2e-05 tokens_per_second:100.1\nStep 2 | loss:1.522 lr:2e-05 tokens_per_second:100.1\n"
        "Step 3 | loss:1.512 lr:2e-05 tokens_per_second:100.1\n",
        NULL,
        (const char *const[]){"1 - loss=1.532 lr=2e-05", "2 - loss=1.522 lr=2e-05", "3 - loss=1.512 lr=2e-05", NULL});
}

static void test_brings_tags_together(void **state) {
    (void)state;
    char path[PATH_BYTES];
    fixture_path("columns.tfevents", path); // every loss, then every learning rate
    keel_import *import = NULL;
    assert_int_equal(keel_import_open(path, NULL, &import), KEEL_OK);
    assert_int_equal(keel_import_runs(import), 1);
    const keel_row_source *source = keel_import_run(import, 0);
    const keel_row *row = NULL;
    for (uint64_t step = 1; step <= 40; step++) {
        assert_int_equal(source->next(source->context, &row), KEEL_OK);
        assert_non_null(row);
        assert_int_equal(row->step.step, step);
        assert_true(row->scalars[keel_run_scalar(source->info, "loss")] == 4 - (double)step / 64);
        assert_true(row->scalars[keel_run_scalar(source->info, "lr")] == (double)step / 1024);
    }
    assert_int_equal(source->next(source->context, &row), KEEL_OK);
    assert_null(row);
    keel_import_close(import);
}

static void test_template_reads_its_trainer(void **state) {
    (void)state;
    char path[PATH_BYTES];
    fixture_path("template.log", path);
    keel_import *import = NULL;
    assert_int_equal(keel_import_open_with(path, &keel_importer_template, NULL, &import), KEEL_OK);
    check_rows(import, 0, (const char *const[]){"1 - loss=3.5 grad_norm=0.5", "2 V loss=3.25 eval_loss=3.3", NULL});
    keel_import_close(import);
    assert_int_equal(keel_import_open(path, NULL, &import), KEEL_ERR_FORMAT); // it is an example, not a format
}

// ---- what is no log ----

static void check_refused(const char *path, keel_status expected, const char *text) {
    keel_import *import = NULL;
    keel_status status = keel_import_open(path, NULL, &import);
    if (!status) fail_msg("%s is taken for a log of %s", path, keel_import_format(import));
    assert_int_equal(status, expected);
    assert_null(import);
    assert_non_null(strstr(keel_error(), path));
    assert_null(strchr(keel_error(), '\n'));
    if (!strstr(keel_error(), text)) fail_msg("\"%s\" does not say \"%s\"", keel_error(), text);
}

static void check_bytes_refused(const void *bytes, size_t size, keel_status expected, const char *text) {
    write_log(scratch_log(), bytes, size);
    check_refused(scratch_log(), expected, text);
}

static void test_refuses_what_is_no_log(void **state) {
    (void)state;
    static const char *const sources[] = {"tools/import/import.c",
                                          "tools/import/from_llmc.c",
                                          "tools/import/from_jsonl.c",
                                          "tools/import/from_json.c",
                                          "tools/import/import_overflow.c",
                                          "CMakeLists.txt",
                                          "probe/stats.h"};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", KEEL_SOURCE_DIR, sources[i]);
        check_refused(path, KEEL_ERR_FORMAT, "not a log of a known trainer");
        assert_non_null(strstr(keel_error(), "keel import --list-formats"));
    }
    static const char prose[] = "# A project\n\nIt trains a model. At step 7 the loss was 3.2, later less.\n\n| step | "
                                "loss |\n|---|---|\n| 1 | 3.5 |\n";
    check_bytes_refused(prose, sizeof prose - 1, KEEL_ERR_FORMAT, "(line 1: \"# A project\")");
    static const char config[] = "{\"model\": {\"layers\": 12, \"lr\": 0.001}, \"step\": 3}\n";
    check_bytes_refused(config, sizeof config - 1, KEEL_ERR_FORMAT, "not a log");
    static const char table[] = "name,size,colour\nbox,3,red\nball,4,blue\n";
    check_bytes_refused(table, sizeof table - 1, KEEL_ERR_FORMAT, "not a log");
    static const char comma[] = "step;loss\n1;3,25\n2;3,125\n", quoted[] = "step,loss\n1,\"3,25\"\n2,\"3,125\"\n";
    check_bytes_refused(comma, sizeof comma - 1, KEEL_ERR_FORMAT, "decimal commas (line 1: \"step;loss\")");
    check_bytes_refused(quoted, sizeof quoted - 1, KEEL_ERR_FORMAT, "numbers are read with a point, 3.25");
    static const unsigned char picture[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n', 0, 0,
                                            0,    13,  'I', 'H', 'D',  'R',  0,    0,    1, 0};
    check_bytes_refused(picture, sizeof picture, KEEL_ERR_FORMAT, "(line 1: \".PNG");
    static const unsigned char wide[] = {0xff, 0xfe, 's', 0, 't', 0, 'e', 0, 'p', 0, '\n', 0};
    check_bytes_refused(wide, sizeof wide, KEEL_ERR_FORMAT, "UTF-16");
    check_bytes_refused("", 0, KEEL_ERR_FORMAT, "empty");
    check_bytes_refused("\n\n\n", 3, KEEL_ERR_FORMAT, "not a log");
    unsigned char noise[65536];
    uint32_t seed = 1;
    for (size_t i = 0; i < sizeof noise; i++) {
        seed = seed * UINT32_C(1664525) + UINT32_C(1013904223);
        noise[i] = (unsigned char)(seed >> 24);
    }
    check_bytes_refused(noise, sizeof noise, KEEL_ERR_FORMAT, "not a log");
    check_refused(KEEL_TEST_DATA, KEEL_ERR_IO, "directory");
    check_refused("/no/such/log", KEEL_ERR_IO, "No such file");
}

static void test_names_what_it_does_not_know(void **state) {
    (void)state;
    keel_import *import = NULL;
    assert_int_equal(keel_import_open("-", &(keel_import_options){.format = "tarot"}, &import), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "\"tarot\""));
    FILE *list = tmpfile();
    assert_non_null(list);
    keel_import_list(list);
    rewind(list);
    char line[PATH_BYTES];
    size_t lines = 0;
    while (fgets(line, sizeof line, list)) {
        size_t size = strlen(keel_importers[lines]->name);
        assert_memory_equal(line, keel_importers[lines]->name, size);
        assert_int_equal(line[size], ' ');
        lines++;
    }
    assert_int_equal(lines, keel_importer_count);
    fclose(list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_every_format),         cmocka_unit_test(test_takes_no_other_format),
        cmocka_unit_test(test_every_format_has_a_fixture), cmocka_unit_test(test_reads_text_of_other_trainers),
        cmocka_unit_test(test_brings_tags_together),       cmocka_unit_test(test_template_reads_its_trainer),
        cmocka_unit_test(test_refuses_what_is_no_log),     cmocka_unit_test(test_names_what_it_does_not_know),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
