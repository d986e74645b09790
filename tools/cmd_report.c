// keel report: what happened in a run, when it began, and the likely cause.
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands.h"
#include "tools/judge_path.h"
#include "tools/terminal.h"

enum { SUCCESS = 0, UNREADABLE = 2 };

typedef struct report_arguments {
    bool json, help;
    const char *output, *monitor;
    keel_import_options import;
    size_t run;
    char **paths;
    size_t path_count;
} report_arguments;

static void print_usage(FILE *out) {
    fputs("usage: keel report PATH... [--format text|json] [-o FILE] [--monitor M.yaml] [--run N]\n\n"
          "  PATH           a run directory, an .h5 file, a log of another trainer, or - for standard input;\n"
          "                 of several one line each is given, the worst first; of a log with several runs\n"
          "                 the worst in full and a line for each other\n"
          "  --format       text (with small plots) or json\n"
          "  -o FILE        write there instead of standard output\n"
          "  --monitor      settings that judge instead of the run's own\n"
          "  --run N        only the N-th run of a log that holds several\n"
          "  --log-format   name of the log's format instead of recognising it (keel import --list-formats)\n"
          "  --columns      names of the log's columns: step=iter,loss=train_loss\n",
          out);
}

static int fail_usage(const char *format, const char *what) {
    fputs("keel report: ", stderr);
    fprintf(stderr, format, what);
    fputs("; keel report --help\n", stderr);
    return UNREADABLE;
}

static int parse_format(const char *name, report_arguments *a) {
    a->json = strcmp(name, "json") == 0;
    if (a->json || strcmp(name, "text") == 0) return SUCCESS;
    if (strcmp(name, "html") == 0) return fail_usage("--format html is not there yet%s", "");
    return fail_usage("--format %s: expected text or json", name);
}

static int parse(int argc, char **argv, report_arguments *a) {
    enum { FORMAT = 256, MONITOR, RUN, LOG_FORMAT, COLUMNS };
    static const struct option options[] = {{"format", required_argument, NULL, FORMAT},
                                            {"output", required_argument, NULL, 'o'},
                                            {"monitor", required_argument, NULL, MONITOR},
                                            {"run", required_argument, NULL, RUN},
                                            {"log-format", required_argument, NULL, LOG_FORMAT},
                                            {"columns", required_argument, NULL, COLUMNS},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int option, code;
    optind = 0; // a fresh scan: another command may have used it in this process
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":o:h", options, NULL)) != -1) {
        switch (option) {
        case FORMAT:
            if ((code = parse_format(optarg, a))) return code;
            break;
        case 'o':
            a->output = optarg;
            break;
        case MONITOR:
            a->monitor = optarg;
            break;
        case LOG_FORMAT:
            a->import.format = optarg;
            break;
        case COLUMNS:
            a->import.columns = optarg;
            break;
        case RUN: {
            char *end;
            errno = 0;
            unsigned long long n = strtoull(optarg, &end, 10);
            if (errno || *end || n == 0 || optarg[0] == '-')
                return fail_usage("--run %s: expected a number from 1", optarg);
            a->run = (size_t)n;
            break;
        }
        case 'h':
            a->help = true;
            return SUCCESS;
        case ':':
            return fail_usage("%s needs a value", argv[optind - 1]);
        default:
            return fail_usage("unknown option %s", argv[optind - 1]);
        }
    }
    a->paths = argv + optind;
    a->path_count = (size_t)(argc - optind);
    return a->path_count ? SUCCESS : fail_usage("no path given%s", "");
}

// The worst run in full, which is the one that keel check speaks of, and a line for each of the others.
static keel_status write_text(const keel_judged *j, const keel_report_style *style, FILE *out) {
    const keel_result *worst = keel_judged_worst(j);
    keel_status status = keel_report_text(worst, style, out);
    if (j->count > 1) fputc('\n', out);
    for (size_t i = 0; !status && i < j->count; i++)
        if (j->results[i] != worst) status = keel_report_line(j->results[i], style, out);
    return status;
}

static int compare_judged(const void *a, const void *b) {
    const keel_judged *x = a, *y = b;
    int difference = keel_judged_severity(y) - keel_judged_severity(x);
    return difference ? difference : strcmp(x->path, y->path);
}

static keel_status write_reports(keel_judged *judged, size_t count, const report_arguments *a, FILE *out) {
    const keel_report_style style = keel_terminal_style(out);
    keel_status status = KEEL_OK;
    qsort(judged, count, sizeof *judged, compare_judged);
    bool list = a->json && a->path_count > 1;
    if (list) fputs("[\n", out);
    for (size_t i = 0; !status && i < count; i++) {
        if (list && i > 0) fputs(",\n", out);
        if (a->json)
            status = keel_report_json((const keel_result *const *)judged[i].results, judged[i].count, out);
        else if (a->path_count > 1)
            status = keel_report_line(keel_judged_worst(&judged[i]), &style, out);
        else
            status = write_text(&judged[i], &style, out);
    }
    if (list) fputs("]\n", out);
    return status ? status : keel_report_written(out);
}

// The reports of all that could be read, to the file or to standard output.
static int deliver(keel_judged *judged, size_t count, const report_arguments *a) {
    FILE *out = a->output ? fopen(a->output, "w") : stdout;
    if (!out) {
        fprintf(stderr, "keel report: %s: cannot be written: %s\n", a->output, strerror(errno));
        return UNREADABLE;
    }
    keel_status status = write_reports(judged, count, a, out);
    if (a->output && fclose(out) != 0 && !status)
        status = keel_fail(KEEL_ERR_IO, "the report cannot be written: %s", strerror(errno));
    if (!status) return SUCCESS;
    fprintf(stderr, "keel report: %s: %s\n", a->output ? a->output : "standard output", keel_error());
    return UNREADABLE;
}

int keel_cmd_report(int argc, char **argv) {
    report_arguments a = {0};
    int code = parse(argc, argv, &a);
    if (code) return code;
    if (a.help) {
        print_usage(stdout);
        return SUCCESS;
    }
    keel_monitor_config *config = NULL;
    if (a.monitor && keel_monitor_config_load(a.monitor, NULL, 0, &config)) {
        fprintf(stderr, "keel report: %s\n", keel_error());
        return UNREADABLE;
    }
    keel_judged *judged = calloc(a.path_count, sizeof *judged);
    size_t count = 0;
    if (!judged) {
        fprintf(stderr, "keel report: no memory for %zu paths\n", a.path_count);
        code = UNREADABLE;
        goto end;
    }
    const keel_judge_options options = {.config = config, .import = &a.import, .run = a.run};
    for (size_t i = 0; i < a.path_count; i++) {
        if (keel_judge_path(a.paths[i], &options, &judged[count]) == KEEL_OK) {
            count++;
            continue;
        }
        fprintf(stderr, "keel report: %s\n", keel_error());
        code = UNREADABLE;
    }
    if (count > 0) {
        int written = deliver(judged, count, &a);
        if (written) code = written;
    }
    for (size_t i = 0; i < count; i++) keel_judged_free(&judged[i]);
end:
    free(judged);
    keel_monitor_config_free(config);
    return code;
}
