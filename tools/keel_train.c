// keel-train: the MPI transformer trainer, watched.
#include <errno.h>
#include <getopt.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "analyzers/report/report.h"
#include "analyzers/rules.h"
#include "collectors/mpi/merge_mpi.h"
#include "collectors/mpi/node_board.h"
#include "collectors/select.h"
#include "configs/monitor_config.h"
#include "configs/train_config.h"
#include "tools/assemble_ranks.h"
#include "tools/log.h"
#include "tools/replay_batch.h"
#include "tools/step_csv.h"
#include "tools/stop_signals.h"
#include "train/parallel/affinity.h"
#include "train/tensor/blas.h"
#include "train/tensor/cpu.h"
#include "train/trainer.h"

static const char usage[] =
    "usage: keel-train CONFIG.yaml [--monitor MONITOR.yaml] [--set key.path=value]... [--resume] [--print-structure]\n"
    "       keel-train CONFIG.yaml ... --replay-batch STEP\n"
    "\n"
    "Trains a transformer as CONFIG.yaml says; under mpirun, in parallel over all ranks (parallel_config).\n"
    "\n"
    "  --monitor FILE        watch the run as FILE says (else by the `monitor` section of CONFIG.yaml, if any)\n"
    "  --set key.path=value  override a key of CONFIG.yaml, or with monitor.* one of the monitor\n"
    "  --resume              continue from the newest usable checkpoint\n"
    "  --replay-batch STEP   is it the data? Take the batch of a bad step again from a healthy checkpoint, on its own "
    "rank\n"
    "                        and on another, and say: bad data, hardware, transient, healthy,\n"
    "                        not the data, or cannot tell\n"
    "  --print-structure     print modules, shapes and collectives, and stop; under mpirun, those of its ranks\n"
    "  --version, --help\n"
    "\n"
    "exit: 0 trained, or a verdict on the batch, 1 training stopped by its own rules (see the message), 2 bad usage, "
    "configuration or data,\n"
    "      128 + N stopped in order by signal N, or ended by it at once: before the training, in a replay, or by a "
    "second one\n";

#define DEFAULT_OUTPUT "runs/train" // of the monitor

typedef struct arguments {
    const char *config_path, *monitor_path;
    const char **train_sets, **monitor_sets; // borrowed strings
    size_t train_count, monitor_count;
    bool resume, print_structure;
    uint64_t replay_step; // 0: none
    char *command;        // the whole line, for the store
} arguments;

static int rank, size = 1;

// Every rank comes here with its own status; all leave with the worst. The lowest rank that failed says why.
static keel_status agree(keel_status status) {
    int mine = status ? rank : size, lowest, worst = (int)status, all;
    MPI_Allreduce(&mine, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&worst, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (lowest == rank) fprintf(stderr, "keel-train: %s\n", keel_error());
    return (keel_status)all;
}

// What is wrong with the command line is the same on all ranks, and known before MPI knows them.
static bool first_of_job(void) {
    const char *const numbers[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}; // of Open MPI's launcher, of others
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const char *number = getenv(numbers[i]);
        if (number) return strcmp(number, "0") == 0;
    }
    return true;
}

static void complain(const char *format, ...) KEEL_PRINTF(1, 2);
static void complain(const char *format, ...) {
    if (!first_of_job()) return;
    va_list args;
    va_start(args, format);
    fputs("keel-train: ", stderr);
    vfprintf(stderr, format, args);
    fputs("; try keel-train --help\n", stderr);
    va_end(args);
}

static int exit_code(keel_status status) {
    return status == KEEL_OK ? 0 : status == KEEL_ERR_DIVERGED ? 1 : 2;
}

static bool parse_step(const char *text, uint64_t *step) {
    char *end;
    errno = 0;
    *step = strtoull(text, &end, 10);
    return !errno && end != text && !*end && text[0] != '-' && *step > 0;
}

// 0: go on; else the exit code plus one.
static int parse_arguments(int argc, char **argv, arguments *args) {
    enum { MONITOR = 1, SET, RESUME, REPLAY, STRUCTURE, VERSION, HELP };
    static const struct option options[] = {{"monitor", required_argument, NULL, MONITOR},
                                            {"set", required_argument, NULL, SET},
                                            {"resume", no_argument, NULL, RESUME},
                                            {"replay-batch", required_argument, NULL, REPLAY},
                                            {"print-structure", no_argument, NULL, STRUCTURE},
                                            {"version", no_argument, NULL, VERSION},
                                            {"help", no_argument, NULL, HELP},
                                            {0}};
    size_t bytes = 1;
    for (int i = 0; i < argc; i++) bytes += strlen(argv[i]) + 1;
    args->command = calloc(1, bytes);
    args->train_sets = calloc((size_t)argc, sizeof *args->train_sets);
    args->monitor_sets = calloc((size_t)argc, sizeof *args->monitor_sets);
    if (!args->command || !args->train_sets || !args->monitor_sets) {
        fprintf(stderr, "keel-train: no memory\n");
        return 3;
    }
    for (int i = 0; i < argc; i++) {
        if (i) strcat(args->command, " ");
        strcat(args->command, argv[i]);
    }
    const char **sets = args->train_sets;
    size_t set_count = 0;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":", options, NULL)) != -1;) {
        switch (option) {
        case MONITOR:
            args->monitor_path = optarg;
            break;
        case SET:
            sets[set_count++] = optarg;
            break;
        case RESUME:
            args->resume = true;
            break;
        case REPLAY:
            if (!parse_step(optarg, &args->replay_step)) {
                complain("--replay-batch wants a step, from 1, not %s", optarg);
                return 3;
            }
            break;
        case STRUCTURE:
            args->print_structure = true;
            break;
        case VERSION:
            if (first_of_job()) printf("keel-train %s\n", KEEL_VERSION);
            return 1;
        case HELP:
            if (first_of_job()) fputs(usage, stdout);
            return 1;
        default:
            complain(option == ':' ? "%s: its value is missing" : "%s: unknown option", argv[optind - 1]);
            return 3;
        }
    }
    if (optind != argc - 1) {
        complain("%s", optind == argc ? "no CONFIG.yaml" : "one CONFIG.yaml only");
        return 3;
    }
    args->config_path = argv[optind];
    if (args->replay_step && (args->resume || args->print_structure)) {
        complain("--replay-batch trains nothing and does not go with --resume or --print-structure");
        return 3;
    }

    // With a monitor file of its own, monitor.* overrides are for that file.
    for (size_t i = 0; i < set_count; i++)
        if (args->monitor_path && strncmp(sets[i], "monitor.", 8) == 0)
            args->monitor_sets[args->monitor_count++] = sets[i];
        else
            args->train_sets[args->train_count++] = sets[i];
    return 0;
}

// Without --monitor and a `monitor` section (which a monitor.* override makes) nothing is watched: *config NULL.
static keel_status load_monitor_config(const arguments *args, const keel_train_config *train,
                                       keel_monitor_config **config) {
    *config = NULL;
    if (args->monitor_path && train->monitor)
        return keel_yaml_fail(train->monitor, "--monitor %s is given as well; keep one of the two", args->monitor_path);
    if (args->monitor_path)
        return keel_monitor_config_load(args->monitor_path, args->monitor_sets, args->monitor_count, config);
    return train->monitor ? keel_monitor_config_section(train->monitor, config) : KEEL_OK;
}

// What starting the monitor would refuse, where it is not started.
static keel_status check_monitor_config(const keel_monitor_config *config) {
    keel_rules *rules;
    keel_status status = keel_select_check(config);
    if (!status) status = keel_select_check_ranks(config, (uint32_t)size);
    if (!status) status = keel_rules_open(config, &rules);
    if (!status) keel_rules_close(rules);
    return status;
}

// Rank 0's view of the run: a progress bar, a line every so many steps, and every step exactly in OUTPUT_DIR/train.csv
// (which keel report reads).
typedef struct console_view {
    keel_step_csv *csv; // NULL: could not be opened
    const char *output_dir;
    uint64_t interval;
    bool resume;
    bool drop_rates;    // wanted in the log
    char routing[1024]; // of the step whose line is next
} console_view;

static void print_progress(void *context, const char *what, double done) {
    (void)context;
    if (!isatty(STDERR_FILENO)) return;
    enum { WIDTH = 30 };
    const int full = (int)(done * WIDTH);
    fprintf(stderr, "\r%s [%.*s%*s] %3.0f%%%s", what, full, "##############################", WIDTH - full, "",
            100 * done, done >= 1 ? "\n" : "");
}

static void open_csv(console_view *console, bool scaled) {
    char path[4096];
    snprintf(path, sizeof path, "%s/train.csv", console->output_dir);
    console->output_dir = NULL;
    if (keel_step_csv_open(path, console->resume, scaled, &console->csv))
        keel_log(KEEL_LOG_WARNING, "%s; the run goes on without it", keel_error());
}

static void take_routing(void *context, const keel_step *step, double aux_loss, double z_loss, const double *rates,
                         size_t stride, size_t layers) {
    (void)step;
    console_view *console = context;
    char *text = console->routing;
    const size_t bytes = sizeof console->routing;
    int used = snprintf(text, bytes, "  aux_loss %.4g  z_loss %.4g", aux_loss, z_loss);
    for (size_t l = 0; l < layers && console->drop_rates && (size_t)used < bytes; l++)
        used += snprintf(text + used, bytes - (size_t)used, "%s %.3g", l ? "" : "  drop_rate", rates[l * stride]);
}

static void print_step(void *context, const keel_step *step, double loss, double grad_norm, double lr,
                       double tokens_per_second, double loss_scale) {
    console_view *console = context;
    if (console->output_dir) open_csv(console, loss_scale > 0);
    if (console->csv) keel_step_csv_put(console->csv, step, loss, grad_norm, lr, loss_scale);
    const bool skipped = step->flags & KEEL_STEP_SKIPPED;
    if (step->step != 1 && step->step % console->interval && !skipped) return;
    char scale[32] = "";
    if (loss_scale > 0) snprintf(scale, sizeof scale, "  loss_scale %g", loss_scale);
    printf("step %6llu  loss %8.4f  grad_norm %9.4g  lr %.3e%s%s  %8.0f tokens/s%s\n", (unsigned long long)step->step,
           loss, grad_norm, lr, scale, console->routing, tokens_per_second, skipped ? "  update skipped" : "");
    fflush(stdout);
}

static void print_note(void *context, const char *text) {
    (void)context;
    printf("%s\n", text);
    fflush(stdout);
}

// What the run that is looked at has recorded: its store, where it was watched, else what the trainer itself keeps.
static char *record_of(const keel_train_config *config, const keel_monitor_config *monitor) {
    if (monitor && monitor->enabled) return strdup(monitor->output ? monitor->output : DEFAULT_OUTPUT);
    char *path;
    return asprintf(&path, "%s/train.csv", config->runner.output_dir) < 0 ? NULL : path;
}

// Processors and threads, before anything is made that depends on their number.
static keel_status place(const keel_train_config *config, keel_affinity *affinity) {
    keel_status status = agree(keel_affinity_share(MPI_COMM_WORLD, &config->affinity, affinity));
    if (status) return status;
    const keel_device_affinity *idle = keel_affinity_idle(affinity, &config->affinity);
    if (idle && rank == 0)
        printf("context.affinity_config.device_%lld has no effect: no node has more than %d rank%s of this job\n",
               (long long)idle->device, affinity->most_ranks, affinity->most_ranks == 1 ? "" : "s");
    return agree(keel_blas_check());
}

static keel_status replay(const arguments *args) {
    keel_train_config *config = NULL;
    keel_monitor_config *monitor = NULL;
    char *record = NULL;
    keel_affinity affinity;
    keel_status status = keel_train_config_load(args->config_path, args->train_sets, args->train_count, &config);
    if (!status) status = load_monitor_config(args, config, &monitor);
    if (!status && !(record = record_of(config, monitor))) status = keel_fail(KEEL_ERR_MEMORY, "no memory for a path");
    status = agree(status);
    if (!status) status = place(config, &affinity);
    if (!status)
        status = agree(keel_replay_batch(config, record, args->replay_step, MPI_COMM_WORLD,
                                         &(keel_trainer_report){.progress = print_progress, .note = print_note}));
    free(record);
    keel_monitor_config_free(monitor);
    keel_train_config_free(config);
    return status;
}

static void end_job(void *context) {
    (void)context;
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, exit_code(KEEL_ERR_DIVERGED));
}

// *STOPPED_BY: the signal that has ended it before its time; 0: none.
static keel_status train(const arguments *args, bool threaded, int *stopped_by) {
    keel_train_config *config = NULL;
    keel_monitor_config *monitor = NULL;
    keel_assembly *assembly = NULL;
    keel_trainer *trainer = NULL;
    char *settings = NULL;
    size_t settings_size = 0;
    bool started = false;
    keel_merge merge = {0};
    keel_beat_board board = {0};
    console_view console = {.resume = args->resume};
    keel_affinity affinity;
    char sharing[512];

    keel_status status = keel_train_config_load(args->config_path, args->train_sets, args->train_count, &config);
    if (!status) status = load_monitor_config(args, config, &monitor);
    if (!status && monitor && args->print_structure) status = check_monitor_config(monitor);
    if (!status) status = keel_yaml_dump(config->doc, &settings, &settings_size);
    if ((status = agree(status)) || (status = place(config, &affinity))) goto done;
    keel_affinity_describe(&affinity, sharing, sizeof sharing);

    if (size > 1) status = keel_merge_mpi_open(MPI_COMM_WORLD, threaded, &merge);
    if ((status = agree(status))) goto done;
    if (size > 1) status = keel_node_board_open(MPI_COMM_WORLD, &board);
    if ((status = agree(status))) goto done;
    keel_monitor_config *off = NULL;
    if (!monitor || args->print_structure) {
        if ((status = agree(keel_monitor_config_default(&off)))) goto done;
        off->enabled = false;
    }
    const keel_parallel_config *parallel = &config->parallel; // a mesh that does not divide the ranks is refused below
    keel_affinity_enter(&affinity, KEEL_CPU_WRITER);          // of the threads that are made now
    status = keel_assembly_open_ranks(
        &(keel_assembly_options){.config = off ? off : monitor,
                                 .output = DEFAULT_OUTPUT,
                                 .command = args->command,
                                 .config_yaml = settings,
                                 .dp = (uint32_t)(size / (parallel->model_parallel * parallel->pipeline_stage)),
                                 .tp = (uint32_t)parallel->model_parallel,
                                 .pp = (uint32_t)parallel->pipeline_stage,
                                 .ep = (uint32_t)parallel->expert_parallel,
                                 .resume = args->resume},
        size > 1 ? &(keel_assembly_ranks){.merge = &merge, .board = &board, .end_job = end_job} : NULL, &assembly);
    keel_affinity_enter(&affinity, KEEL_CPU_DATA);
    keel_monitor_config_free(off);
    if ((status = agree(status))) goto done;
    keel_probe *probe = keel_assembly_probe(assembly);

    console.output_dir = config->runner.output_dir;
    console.interval = (uint64_t)config->runner.log_interval;
    console.drop_rates = config->model.moe.callback_moe_droprate;
    const keel_trainer_report report = {.context = &console,
                                        .progress = print_progress,
                                        .step = print_step,
                                        .routing = take_routing,
                                        .note = print_note};
    status = (args->print_structure ? keel_trainer_open_structure : keel_trainer_open)(config, MPI_COMM_WORLD, probe,
                                                                                       args->resume, &report, &trainer);
    keel_affinity_enter(&affinity, KEEL_CPU_MAIN);
    if ((status = agree(status))) goto done;
    if (args->print_structure) {
        status = agree(keel_trainer_print_structure(trainer, stdout));
        if (!status && rank == 0) printf("\nprocessors of rank 0: %s\n", sharing);
        goto done;
    }
    keel_affinity_enter(&affinity, KEEL_CPU_WRITER); // of the threads that are made now
    status = keel_probe_start(probe);
    keel_affinity_enter(&affinity, KEEL_CPU_MAIN);
    if ((status = agree(status))) goto done;
    started = true;
    if (rank == 0) {
        char *blas = keel_blas_describe();
        printf("%s; %s\n", blas ? blas : keel_error(), sharing);
        free(blas);
        if (monitor && monitor->enabled)
            printf("monitor: %s -> %s\n", keel_assembly_describe(assembly), keel_assembly_directory(assembly));
        fflush(stdout);
    }

    keel_stop_signals_train(trainer, assembly, rank == 0);
    status = agree(keel_trainer_run(trainer));
    // One that comes after the last update has stopped nothing.
    *stopped_by = status || keel_trainer_is_complete(trainer) ? 0 : keel_stop_signals_taken();
done:
    keel_stop_signals_over();
    keel_trainer_close(trainer);
    if (assembly) {
        char *directory =
            monitor && keel_assembly_directory(assembly) ? strdup(keel_assembly_directory(assembly)) : NULL;
        const keel_status closed = keel_assembly_close(assembly);
        if (closed) fprintf(stderr, "keel-train: monitor: %s\n", keel_error());
        if (rank == 0 && started && directory) printf("recorded in %s; next: keel report %s\n", directory, directory);
        free(directory);
        if (closed == KEEL_ERR_COMM) { // an abandoned merge can be neither cancelled nor freed
            fflush(NULL);
            _exit(status ? exit_code(status) : 0);
        }
    }
    keel_step_csv_close(console.csv);
    free(settings);
    keel_monitor_config_free(monitor);
    keel_train_config_free(config);
    return status;
}

int main(int argc, char **argv) {
    if (keel_cpu_check()) {
        fprintf(stderr, "keel-train: %s\n", keel_error());
        return 2;
    }
    keel_blas_choose(argv);
    arguments args = {0};
    bool trains = false;
    int code = parse_arguments(argc, argv, &args);
    if (code) {
        code--;
        goto done;
    }
    if (keel_stop_signals_begin()) {
        fprintf(stderr, "keel-train: %s\n", keel_error());
        code = 2;
        goto done;
    }
    trains = !args.replay_step && !args.print_structure;
    int provided;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    keel_log_to_stderr("keel-train", size > 1 ? rank : -1);

    int stopped_by = 0;
    const bool threaded = provided == MPI_THREAD_MULTIPLE;
    const keel_status status = args.replay_step ? replay(&args) : train(&args, threaded, &stopped_by);
    code = stopped_by ? 128 + stopped_by : exit_code(status);
    MPI_Finalize();
done:
    // What a training prints is not what it is for.
    if (!trains && !code && keel_report_written(stdout)) {
        fprintf(stderr, "keel-train: standard output: %s\n", keel_error());
        code = 2;
    }
    free(args.train_sets);
    free(args.monitor_sets);
    free(args.command);
    return code;
}
