// keel check: the verdict as an exit code, for scripts.
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "analyzers/rules.h"
#include "tools/commands.h"
#include "tools/judge_path.h"
#include "tools/terminal.h"

enum { HEALTHY = 0, INCIDENTS = 1, UNREADABLE = 2 };

typedef struct check_arguments {
    int fail_on; // keel_severity
    const char *monitor;
    bool help, rules;
    char **paths;
    int path_count;
} check_arguments;

static void print_usage(FILE *out) {
    fputs("usage: keel check PATH... [--fail-on warning|critical] [--monitor M.yaml]\n"
          "       keel check --list-rules\n\n"
          "  PATH           a run directory, an .h5 file, a log of another trainer, or - for standard input\n"
          "  --fail-on      the least severity that counts; warning unless set\n"
          "  --monitor      settings that judge instead of the run's own\n"
          "  --list-rules   every rule with its parameters: key, default, range\n\n"
          "exit: 0 healthy, 1 incidents, 2 something could not be read or holds no record\n",
          out);
}

static int fail_usage(const char *format, const char *what) {
    fputs("keel check: ", stderr);
    fprintf(stderr, format, what);
    fputs("; keel check --help\n", stderr);
    return UNREADABLE;
}

static int parse(int argc, char **argv, check_arguments *a) {
    enum { FAIL_ON = 256, MONITOR, RULES };
    static const struct option options[] = {{"fail-on", required_argument, NULL, FAIL_ON},
                                            {"monitor", required_argument, NULL, MONITOR},
                                            {"list-rules", no_argument, NULL, RULES},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int option;
    optind = 0; // a fresh scan: another command may have used it in this process
    opterr = 0;
    a->fail_on = KEEL_WARNING;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        switch (option) {
        case FAIL_ON:
            if (strcmp(optarg, "warning") == 0)
                a->fail_on = KEEL_WARNING;
            else if (strcmp(optarg, "critical") == 0)
                a->fail_on = KEEL_CRITICAL;
            else
                return fail_usage("--fail-on %s: expected warning or critical", optarg);
            break;
        case MONITOR:
            a->monitor = optarg;
            break;
        case RULES:
            a->rules = true;
            return HEALTHY;
        case 'h':
            a->help = true;
            return HEALTHY;
        case ':':
            return fail_usage("%s needs a value", argv[optind - 1]);
        default:
            return fail_usage("unknown option %s", argv[optind - 1]);
        }
    }
    a->paths = argv + optind;
    a->path_count = argc - optind;
    return a->path_count ? HEALTHY : fail_usage("no path given%s", "");
}

// The exit code of one path.
static int check_path(const char *path, const keel_monitor_config *config, int fail_on) {
    keel_judged judged;
    if (keel_judge_path(path, &(keel_judge_options){.config = config}, &judged)) {
        fprintf(stderr, "keel check: %s\n", keel_error());
        return UNREADABLE;
    }
    const keel_report_style style = keel_terminal_style(stdout);
    const keel_result *worst = keel_judged_worst(&judged);
    keel_status status = keel_report_line(worst, &style, stdout);
    int code = keel_judged_severity(&judged) >= fail_on ? INCIDENTS : worst->records ? HEALTHY : UNREADABLE;
    keel_judged_free(&judged);
    if (!status) return code;
    fprintf(stderr, "keel check: %s\n", keel_error());
    return UNREADABLE;
}

int keel_cmd_check(int argc, char **argv) {
    check_arguments a = {0};
    int code = parse(argc, argv, &a);
    if (code) return code;
    if (a.help) print_usage(stdout);
    if (a.rules) keel_rules_describe(stdout);
    if (a.help || a.rules) return HEALTHY;
    keel_monitor_config *config = NULL;
    if (a.monitor && keel_monitor_config_load(a.monitor, NULL, 0, &config)) {
        fprintf(stderr, "keel check: %s\n", keel_error());
        return UNREADABLE;
    }
    for (int i = 0; i < a.path_count; i++) {
        int one = check_path(a.paths[i], config, a.fail_on);
        if (one > code) code = one;
    }
    keel_monitor_config_free(config);
    return code;
}
