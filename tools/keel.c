// keel: one program, one command per file cmd_*.c.
#include <stdio.h>
#include <string.h>

#include "analyzers/report/report.h"
#include "tools/commands.h"
#include "tools/log.h"

static const struct {
    const char *name, *doc;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"report", "what happened in a run: a run directory, an .h5 file, or a log of another trainer", keel_cmd_report},
    {"check", "the same as an exit code, for scripts: 0 healthy, 1 incidents, 2 unreadable", keel_cmd_check},
    {"diff", "where two runs part: the first step and tensor, and how far each layer is apart", keel_cmd_diff},
    {"dump", "what a store holds, as text, CSV or JSON", keel_cmd_dump},
    {"import", "a log of another trainer into a store", keel_cmd_import},
    {"lab", "how good the detectors are: small trainings, each with one fault", keel_cmd_lab},
    {"doctor", "what this machine gives: CPU, BLAS, MPI, HDF5, file system", keel_cmd_doctor},
};

enum { COMMANDS = sizeof commands / sizeof *commands };
enum { UNREADABLE = 2 };

static void print_usage(FILE *out) {
    fputs("usage: keel COMMAND [ARGUMENTS]; keel COMMAND --help\n\n", out);
    for (size_t i = 0; i < COMMANDS; i++) fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].doc);
    fputs("\nexit: 0 success, 1 the command's own \"no\", 2 bad usage or unreadable input\n", out);
}

static int run(int argc, char **argv) {
    keel_log_to_stderr("keel", -1);
    if (argc < 2) {
        print_usage(stderr);
        return UNREADABLE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("keel %s\n", KEEL_VERSION);
        return 0;
    }
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "keel: no command \"%s\"; keel --help lists them\n", argv[1]);
    return UNREADABLE;
}

int main(int argc, char **argv) {
    const int code = run(argc, argv);
    if (code == UNREADABLE || !keel_report_written(stdout)) return code; // a command that failed has said so
    fprintf(stderr, "keel: standard output: %s\n", keel_error());
    return UNREADABLE;
}
