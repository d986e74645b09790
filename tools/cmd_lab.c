// keel lab: how good the detectors are, on real trainings with one fault each.
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/lab/lab_table.h"

enum { DONE = 0, FAILED = 2, HEALTHY_PER_RUN = 20000 };

typedef enum output_form { TEXT, JSON, DOCUMENT, LIST } output_form;

typedef struct lab_arguments {
    keel_lab_options options;
    const char *cases; // NULL: those that come with the program
    output_form form;
    bool help, healthy_set;
} lab_arguments;

static void print_usage(FILE *out) {
    fputs("usage: keel lab [--seed S] [--runs N] [--fault NAME]... [--healthy STEPS] [--json | --markdown] [--output "
          "DIR]\n"
          "                [--cases DIR]\n"
          "       keel lab --list\n\n"
          "Trains small models, each with one fault, and healthy ones, and says what was found of them.\n\n"
          "  --seed S          what is drawn: weights, order of the data, onsets, places, strengths; 1 unless set\n"
          "  --runs N          of each fault; 5 unless set\n"
          "  --fault NAME      this fault alone (and others that are named so), and no healthy runs\n"
          "  --healthy STEPS   healthy steps to make at least; 20,000 times N unless set, 0 with --fault\n"
          "  --json            the table as JSON\n"
          "  --markdown        the table as a document: docs/detectors.md\n"
          "  --output DIR      keep the runs there, to be looked at; else they are removed\n"
          "  --cases DIR       other cases than those that come with the program\n"
          "  --list            the names of the cases\n\n"
          "exit: 0 all was run, whatever was found; 2 something could not be run; 128 + N ended by signal N\n",
          out);
}

static int fail_usage(const char *format, const char *what) {
    fputs("keel lab: ", stderr);
    fprintf(stderr, format, what);
    fputs("; keel lab --help\n", stderr);
    return FAILED;
}

static bool read_number(const char *text, uint64_t most, uint64_t *number) {
    char *end;
    if (*text < '0' || *text > '9') return false;
    const unsigned long long value = strtoull(text, &end, 10);
    if (*end || value > most) return false;
    *number = value;
    return true;
}

static int parse(int argc, char **argv, lab_arguments *a) {
    enum { SEED = 256, RUNS, FAULT, HEALTHY, FORM_JSON, FORM_MARKDOWN, OUTPUT, CASES, FORM_LIST };
    static const struct option options[] = {{"seed", required_argument, NULL, SEED},
                                            {"runs", required_argument, NULL, RUNS},
                                            {"fault", required_argument, NULL, FAULT},
                                            {"healthy", required_argument, NULL, HEALTHY},
                                            {"json", no_argument, NULL, FORM_JSON},
                                            {"markdown", no_argument, NULL, FORM_MARKDOWN},
                                            {"output", required_argument, NULL, OUTPUT},
                                            {"cases", required_argument, NULL, CASES},
                                            {"list", no_argument, NULL, FORM_LIST},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int option;
    optind = 0;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        bool good = true;
        switch (option) {
        case SEED:
            good = read_number(optarg, (uint64_t)1 << 53, &a->options.seed);
            break;
        case RUNS:
            good = read_number(optarg, 1000, &a->options.runs) && a->options.runs > 0;
            break;
        case HEALTHY:
            good = read_number(optarg, 100000000, &a->options.healthy);
            a->healthy_set = true;
            break;
        case FAULT:
            a->options.faults[a->options.fault_count++] = optarg;
            break;
        case FORM_JSON:
            a->form = JSON;
            break;
        case FORM_MARKDOWN:
            a->form = DOCUMENT;
            break;
        case FORM_LIST:
            a->form = LIST;
            break;
        case OUTPUT:
            a->options.output = optarg;
            break;
        case CASES:
            a->cases = optarg;
            break;
        case 'h':
            a->help = true;
            return DONE;
        case ':':
            return fail_usage("%s needs a value", argv[optind - 1]);
        default:
            return fail_usage("%s: unknown option", argv[optind - 1]);
        }
        if (!good) return fail_usage("%s: expected a whole number in range", optarg);
    }
    if (optind < argc) return fail_usage("%s: unexpected argument", argv[optind]);
    if (!a->healthy_set) a->options.healthy = a->options.fault_count ? 0 : HEALTHY_PER_RUN * a->options.runs;
    return DONE;
}

static void print_progress(void *context, const char *line) {
    (void)context;
    fprintf(stderr, "%s\n", line);
}

static keel_status list_cases(const char *folder) {
    char **names, *path;
    size_t count;
    keel_status status = keel_lab_case_names(folder, &names, &count);
    if (status) return status;
    for (size_t i = 0; !status && i < count; i++) {
        keel_lab_case *one = NULL;
        if (asprintf(&path, "%s/%s.yaml", folder, names[i]) < 0) {
            status = keel_fail(KEEL_ERR_MEMORY, "no memory for a path");
            break;
        }
        status = keel_lab_case_load(path, 1, &one);
        if (!status) printf("%-24s %-8s %s\n", one->name, one->faulty ? "fault" : "healthy", one->about);
        keel_lab_case_free(one);
        free(path);
    }
    keel_yaml_free_strings(names);
    return status;
}

static keel_status print_report(const lab_arguments *a, const keel_lab_report *report) {
    if (a->form == JSON) return keel_lab_print_json(report, a->options.seed, stdout);
    if (a->form == TEXT) {
        keel_lab_print_text(report, stdout);
        return KEEL_OK;
    }
    char command[128];
    snprintf(command, sizeof command, "keel lab --seed %llu --runs %llu --markdown >docs/detectors.md",
             (unsigned long long)a->options.seed, (unsigned long long)a->options.runs);
    keel_lab_print_document(report, command, stdout);
    return KEEL_OK;
}

// The folder of this program.
static keel_status find_programs(char folder[PATH_MAX]) {
    const ssize_t length = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    char *slash = NULL;
    if (length > 0) {
        folder[length] = '\0';
        slash = strrchr(folder, '/');
    }
    if (!slash) return keel_fail(KEEL_ERR_IO, "/proc/self/exe: cannot be read");
    *slash = '\0';
    return KEEL_OK;
}

static keel_status run(const lab_arguments *a) {
    char programs[PATH_MAX], trainer[PATH_MAX + 16], cases[PATH_MAX + 64];
    keel_status status = find_programs(programs);
    if (status) return status;
    snprintf(trainer, sizeof trainer, "%s/keel-train", programs);
    snprintf(cases, sizeof cases, "%s/%s/lab", programs, KEEL_DATA_FROM_BIN);
    keel_lab_options options = a->options;
    options.folder = a->cases ? a->cases : cases;
    options.trainer = trainer;
    options.progress = print_progress;
    if (a->form == LIST) return list_cases(options.folder);
    keel_lab_report report;
    status = keel_lab(&options, &report);
    if (status) return status;
    status = print_report(a, &report);
    keel_lab_report_free(&report);
    return status;
}

int keel_cmd_lab(int argc, char **argv) {
    lab_arguments a = {.options = {.seed = 1, .runs = 5}};
    a.options.faults = calloc((size_t)argc, sizeof *a.options.faults);
    if (!a.options.faults) {
        fputs("keel lab: no memory\n", stderr);
        return FAILED;
    }
    int code = parse(argc, argv, &a);
    if (!code && a.help) print_usage(stdout);
    if (!code && !a.help && run(&a)) {
        fprintf(stderr, "keel lab: %s\n", keel_error());
        code = keel_lab_stop_signal() ? 128 + keel_lab_stop_signal() : FAILED;
    }
    free(a.options.faults);
    return code;
}
