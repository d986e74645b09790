// keel diff: where two runs part.
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analyzers/report/compare_report.h"
#include "tools/commands.h"
#include "tools/import/import.h"
#include "tools/run_path.h"

enum { SAME = 0, PARTED = 1, UNREADABLE = 2 };

typedef struct diff_arguments {
    const char *paths[KEEL_RUN_SIDES];
    keel_compare_options options;
    bool json, help;
} diff_arguments;

// One of the two.
typedef struct diff_run {
    keel_store_reader *reader; // of a store
    keel_import *import;       // of a log
    keel_run_rows *rows;
} diff_run;

static void print_usage(FILE *out) {
    fputs("usage: keel diff A B [--tolerance X] [--from STEP] [--to STEP] [--op OP] [--json]\n\n"
          "Says at which step and in which tensor or scalar two runs part, shows the series around that step side by\n"
          "side, and how far each layer is apart.\n\n"
          "  A, B           run directories, .h5 files, or logs of another trainer\n"
          "  --tolerance X  two values are the same up to this relative difference, |a - b| / max(|a|, |b|); 0.05.\n"
          "                 A difference counts where it lasts (4 of 5 records), or is to a NaN or Inf; with 0 the\n"
          "                 first that is not exactly the same\n"
          "  --from STEP    compare from this step on\n"
          "  --to STEP      compare to this step\n"
          "  --op OP        the statistic of tensors to compare; norm. Not one that is the number of a rank\n"
          "  --json         for programs\n\n"
          "exit: 0 the same within the tolerance, 1 they part, 2 could not be compared\n",
          out);
}

static int fail_usage(const char *text, const char *about) {
    fprintf(stderr, "keel diff: %s%s; keel diff --help\n", text, about);
    return UNREADABLE;
}

static bool parse_step(const char *text, uint64_t *step) {
    char *end;
    errno = 0;
    *step = strtoull(text, &end, 10);
    return !errno && end != text && !*end && text[0] != '-';
}

static int parse(int argc, char **argv, diff_arguments *a) {
    enum { TOLERANCE = 256, FROM, TO, OP, JSON };
    static const struct option known[] = {
        {"tolerance", required_argument, NULL, TOLERANCE},
        {"from", required_argument, NULL, FROM},
        {"to", required_argument, NULL, TO},
        {"op", required_argument, NULL, OP},
        {"json", no_argument, NULL, JSON},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    *a = (diff_arguments){.options = {.tolerance = 0.05, .last_step = UINT64_MAX, .op = KEEL_OP_norm}};
    optind = 0; // a fresh scan: another command may have used it in this process
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":h", known, NULL)) != -1;) {
        char *end;
        switch (option) {
        case TOLERANCE:
            a->options.tolerance = strtod(optarg, &end);
            if (end == optarg || *end || !(a->options.tolerance >= 0) || isinf(a->options.tolerance))
                return fail_usage("--tolerance wants a number from 0, such as 0.05, not ", optarg);
            break;
        case FROM:
            if (!parse_step(optarg, &a->options.first_step)) return fail_usage("--from wants a step, not ", optarg);
            break;
        case TO:
            if (!parse_step(optarg, &a->options.last_step)) return fail_usage("--to wants a step, not ", optarg);
            break;
        case OP:
            a->options.op = keel_op_find(optarg);
            if (a->options.op == KEEL_OP_COUNT) return fail_usage("no such op: ", optarg);
            if (keel_op_is_label(a->options.op))
                return fail_usage(
                    "a number of a rank or micro-batch is the same or not, and has no difference: look at "
                    "it with keel dump RUN --op ",
                    optarg);
            break;
        case JSON:
            a->json = true;
            break;
        case 'h':
            a->help = true;
            return 0;
        case ':':
            return fail_usage("a value is missing after ", argv[optind - 1]);
        default:
            return fail_usage("no such option: ", argv[optind - 1]);
        }
    }
    if (argc - optind != KEEL_RUN_SIDES) return fail_usage("two runs are compared: keel diff A B", "");
    for (int i = 0; i < KEEL_RUN_SIDES; i++) a->paths[i] = argv[optind + i];
    if (a->options.first_step > a->options.last_step) return fail_usage("--from is beyond --to", "");
    return 0;
}

static keel_status open_log(const char *path, diff_run *run) {
    keel_status status = keel_import_open(path, NULL, &run->import);
    if (status) return status;
    const size_t runs = keel_import_runs(run->import);
    if (runs > 1)
        return keel_fail(KEEL_ERR_USAGE,
                         "%s: holds %zu runs, one after another; make a run of each that is to be compared: keel "
                         "import %s -o RUN --run N",
                         path, runs, path);
    return keel_run_rows_of_source(keel_import_run(run->import, 0), &run->rows);
}

static keel_status open_store(const char *path, keel_op op, diff_run *run) {
    keel_status status = keel_path_holds_run(path);
    if (!status) status = keel_store_open(path, &run->reader);
    bool ops[KEEL_OP_COUNT];
    keel_joined_ops(op, ops);
    return status ? status : keel_run_rows_of_store(run->reader, ops, &run->rows);
}

static void close_run(diff_run *run) {
    keel_run_rows_close(run->rows);
    keel_import_close(run->import);
    keel_store_close(run->reader);
}

static keel_status diff(diff_arguments *a, diff_run runs[KEEL_RUN_SIDES], bool *parted) {
    keel_status status = KEEL_OK;
    for (int i = 0; !status && i < KEEL_RUN_SIDES; i++) {
        status = keel_path_is_store(a->paths[i]) ? open_store(a->paths[i], a->options.op, &runs[i])
                                                 : open_log(a->paths[i], &runs[i]);
        if (status) status = keel_name_path(status, a->paths[i]);
        if (!status && runs[i].import) a->options.left_out[i] = keel_import_left_out(runs[i].import);
    }
    keel_comparison *comparison = NULL;
    if (!status) status = keel_compare(runs[KEEL_RUN_A].rows, runs[KEEL_RUN_B].rows, &a->options, &comparison);
    if (status) return status;
    *parted = comparison->parting_count > 0;
    status = (a->json ? keel_compare_json : keel_compare_text)(comparison, a->paths[KEEL_RUN_A], a->paths[KEEL_RUN_B],
                                                               stdout);
    keel_comparison_free(comparison);
    return status;
}

int keel_cmd_diff(int argc, char **argv) {
    diff_arguments a;
    const int refused = parse(argc, argv, &a);
    if (refused) return refused;
    if (a.help) {
        print_usage(stdout);
        return SAME;
    }
    diff_run runs[KEEL_RUN_SIDES] = {0};
    bool parted = false;
    const keel_status status = diff(&a, runs, &parted);
    if (status) fprintf(stderr, "keel diff: %s\n", keel_error());
    for (int i = 0; i < KEEL_RUN_SIDES; i++) close_run(&runs[i]);
    return status ? UNREADABLE : parted ? PARTED : SAME;
}
