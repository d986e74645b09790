// keel-bench: what the parts cost on this machine, each as a ratio within one run.
#include <ftw.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "analyzers/report/report.h"
#include "tools/bench_detect.h"
#include "tools/bench_overhead.h"
#include "tools/bench_stats.h"
#include "tools/bench_store.h"
#include "tools/bench_train.h"
#include "tools/log.h"
#include "train/parallel/affinity.h"
#include "train/tensor/blas.h"
#include "train/tensor/cpu.h"

static const char usage[] =
    "usage: keel-bench COMMAND [--json] [OPTIONS]\n"
    "\n"
    "  stats     statistics kernels against a pure read of the same buffer\n"
    "  overhead  what the monitor costs a training step: blocks with it on and off by turns in one run\n"
    "            --model CONFIG.yaml (GPT-2 124M, batch 4 x 64)  --monitor M.yaml (everything on)\n"
    "            --block STEPS (8)  --blocks N (5)\n"
    "  train     forward and backward against the sgemm peak, AdamW against the copy bandwidth\n"
    "            --model CONFIG.yaml (GPT-2 124M, batch 4 x 256)  --steps N (5)\n"
    "  detect    the rules: time per series and step     --series N (5000)  --steps N (2000)\n"
    "  store     the writer: bytes and time per value    --sites N (5000)   --steps N (256)\n"
    "\n"
    "exit: 0 measured, 2 bad usage or a failure\n";

// GPT-2 124M as the figures in docs/performance.md are for.
static const char gpt2_124m[] = "runner_config: {steps: 1, batch_size: 4, output_dir: %s/out}\n"
                                "model_config: {model_type: gpt2, vocab_size: 50304, seq_length: %d, hidden_size: 768, "
                                "num_layers: 12, num_heads: 12}\n"
                                "lr_schedule: {type: constant, learning_rate: 1.0e-4}\n"
                                "train_dataset: {text: [unused], shards: %s/shards}\n";
static const char everything_on[] = "monitor: {select: [{ops: all}]}\n";

typedef struct arguments {
    bool json;
    const char *model, *monitor;
    int block, blocks, steps, series, sites;
    char folder[64]; // scratch, removed at the end
} arguments;

static keel_status print_json(json_t *object) {
    if (!object) return keel_fail(KEEL_ERR_MEMORY, "no memory for the figures");
    const int failed = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(object);
    return failed ? keel_fail(KEEL_ERR_IO, "the figures could not be printed") : KEEL_OK;
}

static keel_status bench_stats(const arguments *args) {
    static const struct {
        const char *name;
        uint32_t fields;
    } groups[] = {{"base", KEEL_FIELDS_BASE}, {"all", KEEL_FIELDS_ALL}, {"flags", KEEL_FIELDS_FLAGS}};
    static const size_t sizes[] = {(size_t)1 << 20, (size_t)512 << 20};
    json_t *results = json_array();
    if (!args->json)
        printf("%-9s %-6s %12s %10s %10s %7s\n", "dtype", "fields", "bytes", "read GB/s", "stats GB/s", "ratio");
    for (int dtype = 0; dtype < KEEL_DTYPE_COUNT; dtype++)
        for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                keel_bench_stats_result r;
                const keel_status status = keel_bench_stats(sizes[s], (keel_dtype)dtype, groups[g].fields, &r);
                if (status) {
                    json_decref(results);
                    return status;
                }
                const char *name = keel_dtype_name((keel_dtype)dtype);
                if (args->json)
                    json_array_append_new(results,
                                          json_pack("{s:s, s:s, s:I, s:f, s:f, s:f}", "dtype", name, "fields",
                                                    groups[g].name, "bytes", (json_int_t)sizes[s], "read_gbps",
                                                    r.read_gbps, "stats_gbps", r.stats_gbps, "ratio", r.ratio));
                else
                    printf("%-9s %-6s %12zu %10.1f %10.1f %7.2f\n", name, groups[g].name, sizes[s], r.read_gbps,
                           r.stats_gbps, r.ratio);
            }
    if (!args->json) {
        json_decref(results);
        return KEEL_OK;
    }
    return print_json(json_pack("{s:s, s:o}", "isa", keel_isa_name(keel_isa_best()), "results", results));
}

// The model as configured, or GPT-2 124M with SEQ tokens.
static keel_status load_model(const arguments *args, int seq, keel_train_config **config) {
    if (args->model) return keel_train_config_load(args->model, NULL, 0, config);
    char text[1024];
    const int length = snprintf(text, sizeof text, gpt2_124m, args->folder, seq, args->folder);
    return keel_train_config_parse("GPT-2 124M", text, (size_t)length, config);
}

static keel_status load_monitor(const arguments *args, keel_monitor_config **config) {
    char output[128];
    snprintf(output, sizeof output, "monitor.output=%s/run", args->folder);
    const char *override = output;
    if (args->monitor) return keel_monitor_config_load(args->monitor, &override, 1, config);
    keel_yaml *doc;
    keel_status status = keel_yaml_parse("everything on", everything_on, sizeof everything_on - 1, &doc);
    if (status) return status;
    if ((status = keel_yaml_set(doc, override))) {
        keel_yaml_free(doc);
        return status;
    }
    return keel_monitor_config_read(doc, config);
}

static const char *const step_part_names[KEEL_TRAINER_PART_COUNT] = {[KEEL_TRAINER_PART_MODEL] = "forward_backward",
                                                                     [KEEL_TRAINER_PART_NORM] = "grad_norm",
                                                                     [KEEL_TRAINER_PART_UPDATE] = "update"};

static json_t *step_parts_json(const keel_bench_overhead_result *r) {
    json_t *parts = json_object();
    for (int p = 0; p < KEEL_TRAINER_PART_COUNT; p++)
        json_object_set_new(parts, step_part_names[p],
                            json_pack("{s:f, s:f}", "seconds_off", r->part_off[p], "added", r->part_added[p]));
    return parts;
}

static void print_overhead(const keel_bench_overhead_result *r) {
    printf("overhead %.2f %%: %.4f s a step with the monitor, %.4f s without; CPU %.4f s and %.4f s\n",
           100 * r->overhead, r->seconds_on, r->seconds_off, r->cpu_seconds_on, r->cpu_seconds_off);
    for (int p = 0; p < KEEL_TRAINER_PART_COUNT; p++)
        printf("  %-16s %.4f s without, the monitor adds %.4f s\n", step_part_names[p], r->part_off[p],
               r->part_added[p]);
}

static keel_status bench_overhead(const arguments *args) {
    keel_train_config *train = NULL;
    keel_monitor_config *monitor = NULL;
    keel_bench_overhead_result r;
    keel_status status = load_model(args, 64, &train);
    if (!status) status = load_monitor(args, &monitor);
    if (!status) {
        train->runner.steps = INT64_MAX;
        train->checkpoint.save_interval = 0;
        status = keel_bench_overhead(&(keel_bench_overhead_plan){.train = train,
                                                                 .monitor = monitor,
                                                                 .block_steps = (uint32_t)args->block,
                                                                 .blocks = (uint32_t)args->blocks},
                                     &r);
    }
    if (!status && args->json)
        status = print_json(json_pack("{s:f, s:f, s:f, s:f, s:f, s:o}", "overhead", r.overhead, "seconds_on",
                                      r.seconds_on, "seconds_off", r.seconds_off, "cpu_seconds_on", r.cpu_seconds_on,
                                      "cpu_seconds_off", r.cpu_seconds_off, "parts", step_parts_json(&r)));
    else if (!status)
        print_overhead(&r);
    keel_monitor_config_free(monitor);
    keel_train_config_free(train);
    return status;
}

static keel_status bench_train(const arguments *args) {
    keel_train_config *config;
    keel_status status = load_model(args, 256, &config);
    if (status) return status;
    keel_bench_train_result r;
    status = keel_bench_train(&config->model, (size_t)config->runner.batch_size, (size_t)config->model.seq_length,
                              args->steps, &r);
    keel_train_config_free(config);
    if (status) return status;
    if (args->json) {
        json_t *parts = json_object();
        for (int i = 0; i < KEEL_PART_COUNT; i++)
            json_object_set_new(parts, keel_part_name((keel_part)i), json_real(r.part[i]));
        return print_json(json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "threads",
                                    r.threads, "step_seconds", r.step_seconds, "tokens_per_second", r.tokens_per_second,
                                    "gflops", r.gflops, "sgemm_gflops", r.sgemm_gflops, "utilisation", r.utilisation,
                                    "parts", parts, "optimizer_gbps", r.optimizer_gbps, "optimizer_base_gbps",
                                    r.optimizer_base_gbps, "optimizer_plain_gbps", r.optimizer_plain_gbps, "copy_gbps",
                                    r.copy_gbps, "optimizer_ratio", r.optimizer_ratio, "optimizer_base_ratio",
                                    r.optimizer_base_ratio, "norm_gbps", r.norm_gbps));
    }
    printf("%d threads: %.0f tokens/s, %.1f GFLOP/s = %.2f of the sgemm peak of %.1f\n", r.threads, r.tokens_per_second,
           r.gflops, r.utilisation, r.sgemm_gflops);
    for (int i = 0; i < KEEL_PART_COUNT; i++)
        printf("  %-10s %5.1f %%\n", keel_part_name((keel_part)i), 100 * r.part[i]);
    printf("AdamW, every tensor observed: %.1f GB/s with every field = %.2f of the copy bandwidth of %.1f, %.1f = %.2f "
           "with "
           "the base fields; unobserved %.1f\n",
           r.optimizer_gbps, r.optimizer_ratio, r.copy_gbps, r.optimizer_base_gbps, r.optimizer_base_ratio,
           r.optimizer_plain_gbps);
    return KEEL_OK;
}

static keel_status bench_detect(const arguments *args) {
    keel_bench_detect_result r;
    const keel_status status = keel_bench_detect((uint32_t)args->series, (uint32_t)args->steps, &r);
    if (status) return status;
    if (args->json)
        return print_json(json_pack("{s:i, s:i, s:f}", "series", args->series, "steps", args->steps,
                                    "ns_per_series_step", r.ns_per_series_step));
    printf("%.0f ns per series and step (%d series, %d steps), all rules\n", r.ns_per_series_step, args->series,
           args->steps);
    return KEEL_OK;
}

static keel_status bench_store(const arguments *args) {
    keel_bench_store_result r;
    const keel_status status = keel_bench_store((uint32_t)args->sites, (uint32_t)args->steps, args->folder, &r);
    if (status) return status;
    if (args->json)
        return print_json(json_pack("{s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "sites", (int)r.sites, "ops",
                                    (int)r.ops, "steps", (int)r.steps, "bytes_per_site_step", r.bytes_per_site,
                                    "microseconds_per_site_step", r.us_per_site, "bytes_per_value_live",
                                    r.live_bytes_per_value, "bytes_per_value_repacked", r.packed_bytes_per_value,
                                    "writer_ms_per_step", r.row_ms_median, "writer_ms_worst", r.row_ms_worst,
                                    "fill_ms_per_step", r.fill_ms_median));
    printf("%u sites x %u ops: %.2f ms of the writer thread a step (worst %.2f), %.2f to fill the row; %.2f bytes a "
           "value live, %.2f "
           "repacked\n",
           r.sites, r.ops, r.row_ms_median, r.row_ms_worst, r.fill_ms_median, r.live_bytes_per_value,
           r.packed_bytes_per_value);
    return KEEL_OK;
}

static const struct {
    const char *name;
    keel_status (*run)(const arguments *args);
    bool trains; // needs MPI and the cores' sharing
    int steps;
} commands[] = {{"stats", bench_stats, false, 0},
                {"overhead", bench_overhead, true, 0},
                {"train", bench_train, true, 5},
                {"detect", bench_detect, false, 2000},
                {"store", bench_store, false, 256}};

enum { COMMANDS = sizeof commands / sizeof *commands };

enum { MOST = 10000000 };

static bool parse_count(const char *text, int low, int *value) {
    char *end;
    const long number = strtol(text, &end, 10);
    if (*end || end == text || number < low || number > MOST) return false;
    *value = (int)number;
    return true;
}

// False after one line on standard error.
static bool parse_arguments(int argc, char **argv, arguments *args) {
    enum { JSON = 256, MODEL, MONITOR, COUNTS }; // beyond getopt's '?'
    const struct {
        const char *name;
        int *value;
        int least;
    } counts[] = {{"block", &args->block, 8},
                  {"blocks", &args->blocks, 1},
                  {"steps", &args->steps, 1},
                  {"series", &args->series, 1},
                  {"sites", &args->sites, 1}};
    enum { COUNT = sizeof counts / sizeof *counts };
    struct option options[3 + COUNT + 1] = {{"json", no_argument, NULL, JSON},
                                            {"model", required_argument, NULL, MODEL},
                                            {"monitor", required_argument, NULL, MONITOR}};
    for (int c = 0; c < COUNT; c++)
        options[3 + c] = (struct option){counts[c].name, required_argument, NULL, COUNTS + c};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == JSON) {
            args->json = true;
        } else if (option == MODEL) {
            args->model = optarg;
        } else if (option == MONITOR) {
            args->monitor = optarg;
        } else if (option < COUNTS) {
            fprintf(stderr, "keel-bench: %s: unknown option, or one without its value; try keel-bench --help\n",
                    argv[optind - 1]);
            return false;
        } else if (!parse_count(optarg, counts[option - COUNTS].least, counts[option - COUNTS].value)) {
            fprintf(stderr, "keel-bench: --%s %s: not a whole number from %d to %d\n", counts[option - COUNTS].name,
                    optarg, counts[option - COUNTS].least, MOST);
            return false;
        }
    }
    if (optind != argc) {
        fprintf(stderr, "keel-bench: %s: not expected; try keel-bench --help\n", argv[optind]);
        return false;
    }
    return true;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk) {
    (void)info, (void)type, (void)walk;
    return remove(path);
}

static void remove_folder(const char *folder) {
    if (nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS))
        fprintf(stderr, "keel-bench: %s: could not be removed\n", folder);
}

static keel_status run(size_t command, arguments *args) {
    if (!commands[command].trains) return commands[command].run(args);
    int provided;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    keel_affinity affinity;
    keel_status status = keel_affinity_share(MPI_COMM_WORLD, NULL, &affinity);
    if (!status) status = keel_blas_check();
    if (!status) status = commands[command].run(args);
    MPI_Finalize();
    return status;
}

static int run_program(int argc, char **argv) {
    if (keel_cpu_check()) {
        fprintf(stderr, "keel-bench: %s\n", keel_error());
        return 2;
    }
    keel_blas_choose(argv);
    if (argc < 2) {
        fputs(usage, stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    size_t command = 0;
    while (command < COMMANDS && strcmp(commands[command].name, argv[1]) != 0) command++;
    if (command == COMMANDS) {
        fprintf(stderr, "keel-bench: no command \"%s\"; keel-bench --help lists them\n", argv[1]);
        return 2;
    }
    arguments args = {.block = 8, .blocks = 5, .series = 5000, .sites = 5000, .steps = commands[command].steps};
    if (!parse_arguments(argc - 1, argv + 1, &args)) return 2;
    keel_log_to_stderr("keel-bench", -1);
    const char *scratch = getenv("TMPDIR");
    snprintf(args.folder, sizeof args.folder, "%s/keel-bench-XXXXXX",
             scratch && strlen(scratch) < 32 ? scratch : "/tmp");
    if (!mkdtemp(args.folder)) {
        fprintf(stderr, "keel-bench: no scratch folder %s\n", args.folder);
        return 2;
    }
    const keel_status status = run(command, &args);
    if (status) fprintf(stderr, "keel-bench: %s\n", keel_error());
    remove_folder(args.folder);
    return status ? 2 : 0;
}

int main(int argc, char **argv) {
    const int code = run_program(argc, argv);
    if (code || !keel_report_written(stdout)) return code;
    fprintf(stderr, "keel-bench: standard output: %s\n", keel_error());
    return 2;
}
