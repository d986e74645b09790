// keel diff: where two runs part, in stores and logs, over different steps and sites; exit codes, JSON, bad usage.
#include <jansson.h>
#include <math.h>

#include "collectors/store/writer.h"
#include "tests/unit/tools/command_rig.h"
#include "tools/commands.h"

enum { SITES = 5, SCALARS = 3 };

static char folder[64];

typedef struct run_plan {
    const char *name;
    uint64_t steps, every; // sites are measured every so many steps, their flags always
    double noise;          // relative, another each step
    uint64_t early,
        late; // from these steps on the gradient of layer 0, of layer 1 grows by a tenth each step; 0: never
    uint64_t spike, sick; // loss doubled at a step; NaN in the gradient of layer 1 from a step on
    bool more;            // one site more
} run_plan;

static const char *const scalar_names[SCALARS] = {"lr", "loss", "tokens_per_second"};

static double flicker(const run_plan *plan, uint64_t step, uint64_t place) {
    const uint64_t mixed = (step * 31 + place) * UINT64_C(0x9e3779b97f4a7c15);
    return 1 + plan->noise * ((double)(mixed >> 40) / 0x1p24 - 0.5);
}

static double grown(uint64_t begin, uint64_t step) {
    return begin && step >= begin ? pow(1.1, (double)(step - begin + 1)) : 1;
}

static void fill_row(const run_plan *plan, uint64_t step, keel_row_buffer *buffer, uint32_t sites) {
    keel_row_buffer_clear(buffer);
    keel_row_buffer_row(buffer)->step = (keel_step){.step = step, .update = step};
    keel_row_buffer_set_scalar(buffer, 0, 1e-3);
    keel_row_buffer_set_scalar(buffer, 1, (step == plan->spike ? 4 : 2) * flicker(plan, step, 91));
    keel_row_buffer_set_scalar(buffer, 2, (double)(strlen(plan->name) * 1000 + step));
    const double growth[SITES] = {1, grown(plan->early, step), grown(plan->late, step), 1, 1};
    for (uint32_t s = 0; s < sites; s++) {
        const bool sick = s == 2 && plan->sick && step >= plan->sick;
        keel_row_buffer_u64(buffer, KEEL_OP_nans)[s] = sick ? 3 : 0;
        keel_row_buffer_u64(buffer, KEEL_OP_infs)[s] = 0;
        if (step % plan->every == 0)
            keel_row_buffer_f64(buffer, KEEL_OP_norm)[s] =
                sick ? (double)NAN : (s + 1) * growth[s] * flicker(plan, step, s);
    }
}

// A store of gradients in the order of the backward pass, and an activation before them.
static char *write_run(const run_plan *plan) {
    static const struct {
        const char *name, *module;
        keel_quantity quantity;
        int32_t layer;
        keel_phase phase;
        uint32_t order;
    } places[SITES] = {{"embedding.weight", "embedding", KEEL_GRAD_REDUCED, -1, KEEL_PHASE_BACKWARD, 30},
                       {"layers.0.mlp.weight", "mlp", KEEL_GRAD_REDUCED, 0, KEEL_PHASE_BACKWARD, 20},
                       {"layers.1.mlp.weight", "mlp", KEEL_GRAD_REDUCED, 1, KEEL_PHASE_BACKWARD, 10},
                       {"layers.0", "block", KEEL_ACTIVATION, 0, KEEL_PHASE_FORWARD, 5},
                       {"adapter", "adapter", KEEL_ACTIVATION, -1, KEEL_PHASE_FORWARD, 6}};
    keel_site_info sites[SITES];
    const uint32_t count = plan->more ? SITES : SITES - 1;
    for (uint32_t s = 0; s < count; s++) {
        sites[s] = (keel_site_info){.id = s,
                                    .quantity = places[s].quantity,
                                    .layer = places[s].layer,
                                    .phase = places[s].phase,
                                    .order = places[s].order,
                                    .ndim = 1,
                                    .shape = {8},
                                    .numel = 8,
                                    .replica_count = 1};
        strcpy(sites[s].name, places[s].name);
        strcpy(sites[s].module, places[s].module);
    }
    keel_run_info info = {.run_id = "run",
                          .command = "",
                          .config_yaml = "",
                          .world_size = 1,
                          .dp = 1,
                          .tp = 1,
                          .pp = 1,
                          .ep = 1,
                          .micro_count = 1,
                          .site_count = count,
                          .sites = sites,
                          .scalar_count = SCALARS,
                          .scalar_names = scalar_names};
    info.op_stored[KEEL_OP_norm] = info.op_stored[KEEL_OP_nans] = info.op_stored[KEEL_OP_infs] = true;
    char *path;
    assert_true(asprintf(&path, "%s/%s", folder, plan->name) > 0);
    keel_sink sink;
    keel_row_buffer *buffer;
    assert_int_equal(keel_store_sink_open(path, &(keel_store_options){.segment_bytes = 1 << 30}, &sink), KEEL_OK);
    assert_int_equal(sink.start(sink.context, &info), KEEL_OK);
    assert_int_equal(keel_row_buffer_open(&info, &buffer), KEEL_OK);
    for (uint64_t step = 1; step <= plan->steps; step++) {
        fill_row(plan, step, buffer, count);
        assert_int_equal(sink.row(sink.context, keel_row_buffer_row(buffer)), KEEL_OK);
    }
    assert_int_equal(sink.flush(sink.context), KEEL_OK);
    sink.close(sink.context);
    keel_row_buffer_close(buffer);
    return path;
}

static int set_up(void **unused) {
    (void)unused;
    strcpy(folder, "/tmp/keel-diff-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(output, sizeof output, "%s/out", folder);
    return 0;
}

static int tear_down(void **unused) {
    (void)unused;
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

// Two runs of stores; frees their paths.
static int diff_runs(const run_plan *a, const run_plan *b, const char *option, const char *value) {
    char *path_a = write_run(a), *path_b = write_run(b);
    char *argv[] = {"diff", path_a, path_b, (char *)option, (char *)value, NULL};
    const int code = run_to_file(keel_cmd_diff, STDOUT_FILENO, option ? value ? 5 : 4 : 3, argv);
    free(path_a);
    free(path_b);
    return code;
}

static void rounding_is_no_difference(void **unused) {
    (void)unused;
    const run_plan a = {.name = "round-a", .steps = 60, .every = 1},
                   b = {.name = "round-b", .steps = 60, .every = 1, .noise = 0.04};
    assert_int_equal(diff_runs(&a, &b, NULL, NULL), 0);
    const char *text = read_output();
    assert_non_null(strstr(text, "60 steps in common, 1 to 60"));
    assert_non_null(strstr(text, "the same within 5 %; the greatest difference is "));
    assert_non_null(strstr(text, "not judged  tokens_per_second"));
}

static void a_run_is_itself(void **unused) {
    (void)unused;
    const run_plan a = {.name = "self", .steps = 20, .every = 1, .noise = 0.04, .sick = 15};
    char *path = write_run(&a);
    char *argv[] = {"diff", path, path, "--tolerance", "0", NULL};
    assert_int_equal(run_to_file(keel_cmd_diff, STDOUT_FILENO, 5, argv), 0);
    assert_non_null(strstr(read_output(), "the same in every value"));
    free(path);
}

static void without_tolerance_the_first_other_bit_counts(void **unused) {
    (void)unused;
    const run_plan a = {.name = "bit-a", .steps = 30, .every = 1},
                   b = {.name = "bit-b", .steps = 30, .every = 1, .noise = 1e-13};
    assert_int_equal(diff_runs(&a, &b, "--tolerance", "0"), 1);
    assert_non_null(strstr(read_output(), "they part at step 1, first in layers.0:activation norm"));
}

static json_t *parse_output(void) {
    json_error_t error;
    json_t *report = json_loads(read_output(), 0, &error);
    if (!report) fail_msg("%s", error.text);
    return report;
}

static void early_layers_part_first(void **unused) {
    (void)unused;
    const run_plan a = {.name = "early-a", .steps = 80, .every = 2}, b = {.name = "early-b",
                                                                          .steps = 90,
                                                                          .every = 2,
                                                                          .noise = 0.04,
                                                                          .early = 40,
                                                                          .late = 52,
                                                                          .more = true};
    assert_int_equal(diff_runs(&a, &b, "--json", NULL), 1);
    json_t *report = parse_output();
    const json_t *first = json_object_get(report, "first");
    assert_string_equal(json_string_value(json_object_get(first, "site")), "layers.0.mlp.weight:grad_reduced");
    assert_string_equal(json_string_value(json_object_get(first, "series")), "norm");
    assert_int_equal(json_integer_value(json_object_get(first, "step")), 40);
    assert_int_equal(json_integer_value(json_object_get(first, "before")), 38);
    assert_true(fabs(json_real_value(json_object_get(first, "ratio")) - 1.1) < 0.03);
    const json_t *partings = json_object_get(report, "partings");
    assert_int_equal(json_array_size(partings), 2);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(partings, 1), "step")), 52);
    assert_int_equal(json_integer_value(json_object_get(report, "only_b_steps")), 10);
    assert_string_equal(json_string_value(json_array_get(json_object_get(report, "only_b"), 0)), "adapter:activation");
    // The layers, from the early ones to the late: embedding, layer 0, layer 1; then the activation.
    static const int parted[] = {0, 40, 52, 0};
    const json_t *layers = json_object_get(report, "layers");
    assert_int_equal(json_array_size(layers), 4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(json_integer_value(json_object_get(json_array_get(layers, i), "parted")), parted[i]);
    const json_t *layer = json_array_get(layers, 1), *ratios = json_object_get(layer, "ratio");
    const size_t last = json_array_size(ratios) - 1;
    assert_int_equal(json_integer_value(json_array_get(json_object_get(layer, "steps"), last)), 80);
    assert_true(json_real_value(json_array_get(ratios, last)) > 40);
    // Side by side: five records before the parting, eight from it on.
    const json_t *table = json_array_get(json_object_get(report, "tables"), 0),
                 *steps = json_object_get(table, "steps");
    assert_int_equal(json_array_size(steps), 13);
    assert_int_equal(json_integer_value(json_array_get(steps, 0)), 30);
    assert_int_equal(json_integer_value(json_array_get(steps, 5)), 40);
    json_decref(report);
}

static void the_text_shows_the_layers(void **unused) {
    (void)unused;
    const run_plan a = {.name = "text-a", .steps = 60, .every = 1},
                   b = {.name = "text-b", .steps = 60, .every = 1, .early = 40};
    assert_int_equal(diff_runs(&a, &b, NULL, NULL), 1);
    const char *text = read_output();
    assert_non_null(
        strstr(text, "they part at step 40, first in layers.0.mlp.weight:grad_reduced norm, A 2, B 2.2 (B/A 1.1000)"));
    assert_non_null(strstr(text, "its common record before that is of step 39"));
    assert_non_null(strstr(text, "grad_reduced: norm of a layer's tensors together, B/A at step"));
    assert_non_null(strstr(text, "no layer parts in activation"));
    assert_non_null(strstr(text, ">       40"));
}

static void one_great_difference_need_not_last(void **unused) {
    (void)unused;
    const run_plan a = {.name = "spike-a", .steps = 60, .every = 1},
                   b = {.name = "spike-b", .steps = 60, .every = 1, .spike = 33};
    assert_int_equal(diff_runs(&a, &b, NULL, NULL), 0); // 50 %: ten times the tolerance, not beyond it
    assert_int_equal(diff_runs(&(run_plan){.name = "spike-c", .steps = 60, .every = 1},
                               &(run_plan){.name = "spike-d", .steps = 60, .every = 1, .spike = 33}, "--tolerance",
                               "0.04"),
                     1);
    assert_non_null(strstr(read_output(), "they part at step 33, first in loss, A 2, B 4 (B/A 2.0000)"));
}

// The norm is measured every tenth step, the flags at each.
static void a_nan_counts_at_once_also_where_only_flags_show_it(void **unused) {
    (void)unused;
    const run_plan a = {.name = "nan-a", .steps = 40, .every = 10},
                   b = {.name = "nan-b", .steps = 40, .every = 10, .sick = 33};
    assert_int_equal(diff_runs(&a, &b, NULL, NULL), 1);
    assert_non_null(
        strstr(read_output(), "they part at step 33, first in layers.1.mlp.weight:grad_reduced norm, A finite, B nan"));
    const run_plan c = {.name = "nan-c", .steps = 40, .every = 10},
                   d = {.name = "nan-d", .steps = 40, .every = 10, .sick = 33};
    assert_int_equal(diff_runs(&c, &d, "--to", "32"), 0);
}

static char *write_csv(const char *name, int from, int to, int every, double factor) {
    char *path;
    assert_true(asprintf(&path, "%s/%s", folder, name) > 0);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("step,loss,lr\n", file);
    for (int i = from; i <= to; i += every) fprintf(file, "%d,%.9g,0.001\n", i, (i >= 100 ? factor : 1) * (3 + sin(i)));
    fclose(file);
    return path;
}

static void logs_are_compared_at_common_steps(void **unused) {
    (void)unused;
    char *a = write_csv("a.csv", 10, 200, 10, 1), *b = write_csv("b.csv", 20, 300, 5, 1.2);
    char *argv[] = {"diff", a, b, NULL};
    assert_int_equal(run_to_file(keel_cmd_diff, STDOUT_FILENO, 3, argv), 1);
    const char *text = read_output();
    assert_non_null(strstr(text, "19 steps in common, 20 to 200; 1 only in A; 38 only in B"));
    assert_non_null(strstr(text, "they part at step 100, first in loss"));
    char *before[] = {"diff", a, b, "--to", "95", NULL}, *nothing[] = {"diff", a, b, "--from", "400", NULL};
    assert_int_equal(run_to_file(keel_cmd_diff, STDOUT_FILENO, 5, before), 0);
    assert_int_equal(run_to_file(keel_cmd_diff, STDERR_FILENO, 5, nothing), 2);
    assert_string_equal(read_output(), "keel diff: the two runs have no step in common\n");
    free(a);
    free(b);
}

static void write_losses(FILE *file, int from, int to, double loss) {
    for (int i = from; i <= to; i++) fprintf(file, "{\"step\": %d, \"loss\": %g}\n", i, loss + i % 7);
}

static void of_a_restart_the_later_rows_count(void **unused) {
    (void)unused;
    char once[96], again[96];
    snprintf(once, sizeof once, "%s/once.jsonl", folder);
    snprintf(again, sizeof again, "%s/again.jsonl", folder);
    FILE *file = fopen(once, "w");
    write_losses(file, 1, 120, 3);
    fclose(file);
    file = fopen(again, "w");
    write_losses(file, 1, 97, 3);
    write_losses(file, 98, 100, 9);
    write_losses(file, 98, 120, 3);
    fclose(file);
    char *argv[] = {"diff", once, again, "--tolerance", "0", NULL};
    assert_int_equal(run_to_file(keel_cmd_diff, STDOUT_FILENO, 5, argv), 0);
    assert_non_null(strstr(read_output(), "120 steps in common, 1 to 120\n\nthe same in every value"));
}

static void check_usage(const char *what, int argc, char **argv) {
    assert_int_equal(run_to_file(keel_cmd_diff, STDERR_FILENO, argc, argv), 2);
    assert_int_equal(lines_of(read_output()), 1);
    assert_non_null(strstr(read_output(), what));
}

static void bad_usage_is_one_line(void **unused) {
    (void)unused;
    static const char *const labels[] = {"rank_low",        "rank_high",    "rank_nonfinite",
                                         "micro_nonfinite", "replica_rank", "replica_peer"};
    check_usage("two runs are compared", 2, (char *[]){"diff", "a", NULL});
    check_usage("--tolerance wants a number from 0", 5, (char *[]){"diff", "a", "b", "--tolerance", "-1", NULL});
    check_usage("--from wants a step", 5, (char *[]){"diff", "a", "b", "--from", "x", NULL});
    check_usage("--from is beyond --to", 7, (char *[]){"diff", "a", "b", "--from", "9", "--to", "3", NULL});
    check_usage("no such op: mode", 5, (char *[]){"diff", "a", "b", "--op", "mode", NULL});
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++)
        check_usage("has no difference: look at it with keel dump RUN --op", 5,
                    (char *[]){"diff", "a", "b", "--op", (char *)labels[i], NULL});
    check_usage("no such option: --nothing", 4, (char *[]){"diff", "a", "b", "--nothing", NULL});
    check_usage("keel diff: /nonexistent/a: ", 3, (char *[]){"diff", "/nonexistent/a", "/nonexistent/b", NULL});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_is_no_difference),
        cmocka_unit_test(a_run_is_itself),
        cmocka_unit_test(without_tolerance_the_first_other_bit_counts),
        cmocka_unit_test(early_layers_part_first),
        cmocka_unit_test(the_text_shows_the_layers),
        cmocka_unit_test(one_great_difference_need_not_last),
        cmocka_unit_test(a_nan_counts_at_once_also_where_only_flags_show_it),
        cmocka_unit_test(logs_are_compared_at_common_steps),
        cmocka_unit_test(of_a_restart_the_later_rows_count),
        cmocka_unit_test(bad_usage_is_one_line),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
