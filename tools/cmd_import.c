#include <dirent.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectors/store/writer.h"
#include "tools/commands.h"
#include "tools/import/import.h"

enum { USAGE = 2, UNREADABLE = 2 };

typedef struct import_arguments {
    const char *log, *output;
    keel_import_options options;
    long run; // from 1; 0: the only one
    bool list;
} import_arguments;

static void print_usage(FILE *out) {
    fputs("usage: keel import LOG -o RUN [--format NAME] [--columns NAME=COLUMN,...] [--run N]\n"
          "       keel import --list-formats\n\n"
          "Makes a run directory of the log of another trainer, whose format is recognised by what it holds.\n\n"
          "  LOG              a file, plain or gzip; - for standard input\n"
          "  -o, --output RUN the run directory, which must not hold a run yet\n"
          "  --format NAME    do not recognise the format, take this one\n"
          "  --columns LIST   what the log calls the step, the loss, ...: step=iter,loss=train_loss; other names on "
          "the left add scalars\n"
          "  --run N          which run, where several were appended in one file (from 1)\n"
          "  --list-formats   the formats, one a line\n",
          out);
}

static int usage_error(const char *text, const char *about) {
    fprintf(stderr, "keel import: %s%s; keel import --help\n", text, about);
    return USAGE;
}

// 0, or the exit code with the reason told.
static int read_arguments(int argc, char **argv, import_arguments *arguments) {
    enum { FORMAT = 256, COLUMNS, RUN, LIST };
    static const struct option known[] = {
        {"output", required_argument, NULL, 'o'},      {"format", required_argument, NULL, FORMAT},
        {"columns", required_argument, NULL, COLUMNS}, {"run", required_argument, NULL, RUN},
        {"list-formats", no_argument, NULL, LIST},     {NULL, 0, NULL, 0},
    };
    *arguments = (import_arguments){.log = NULL};
    optind = 0; // a fresh scan: another command may have used it in this process
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":o:", known, NULL)) != -1;) {
        char *end;
        switch (option) {
        case 'o':
            arguments->output = optarg;
            break;
        case FORMAT:
            arguments->options.format = optarg;
            break;
        case COLUMNS:
            arguments->options.columns = optarg;
            break;
        case LIST:
            arguments->list = true;
            break;
        case RUN:
            arguments->run = strtol(optarg, &end, 10);
            if (*end || end == optarg || arguments->run < 1)
                return usage_error("--run wants a number from 1, not ", optarg);
            break;
        case ':':
            return usage_error("a value is missing after ", argv[optind - 1]);
        default:
            return usage_error("no such option: ", argv[optind - 1]);
        }
    }
    if (arguments->list) return 0;
    if (optind + 1 != argc) return usage_error(optind == argc ? "which log?" : "one log at a time", "");
    arguments->log = argv[optind];
    if (!arguments->output) return usage_error("no run directory (-o RUN)", "");
    return 0;
}

static bool holds_run(const char *directory) {
    DIR *opened = opendir(directory);
    if (!opened) return false;
    bool found = false;
    for (struct dirent *entry; (entry = readdir(opened));) {
        size_t size = strlen(entry->d_name);
        found |= size > 3 && strcmp(entry->d_name + size - 3, ".h5") == 0;
    }
    closedir(opened);
    return found;
}

static keel_status store_rows(const keel_row_source *source, const char *directory, uint64_t *rows) {
    keel_sink sink;
    keel_status status =
        keel_store_sink_open(directory, &(keel_store_options){.segment_bytes = UINT64_C(1) << 30}, &sink);
    if (status) return status;
    status = sink.start(sink.context, source->info);
    for (const keel_row *row; !status;) {
        status = source->next(source->context, &row);
        if (status || !row) break;
        status = sink.row(sink.context, row);
        ++*rows;
    }
    if (!status && sink.flush) status = sink.flush(sink.context);
    sink.close(sink.context);
    return status;
}

static keel_status choose_run(keel_import *import, const import_arguments *arguments, size_t *run) {
    size_t runs = keel_import_runs(import);
    if (arguments->run) {
        if ((size_t)arguments->run > runs)
            return keel_fail(KEEL_ERR_USAGE, "%s: --run %ld, but it holds %zu", arguments->log, arguments->run, runs);
        *run = (size_t)arguments->run - 1;
        return KEEL_OK;
    }
    if (runs > 1)
        return keel_fail(KEEL_ERR_USAGE, "%s: holds %zu runs, one after another; choose with --run 1 to --run %zu",
                         arguments->log, runs, runs);
    *run = 0;
    return KEEL_OK;
}

int keel_cmd_import(int argc, char **argv) {
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_usage(stdout);
        return 0;
    }
    import_arguments arguments;
    int refused = read_arguments(argc, argv, &arguments);
    if (refused) return refused;
    if (arguments.list) {
        keel_import_list(stdout);
        return 0;
    }
    if (holds_run(arguments.output)) return usage_error("a run is there already: ", arguments.output);
    keel_import *import = NULL;
    size_t run = 0;
    uint64_t rows = 0;
    keel_status status = keel_import_open(arguments.log, &arguments.options, &import);
    if (!status) status = choose_run(import, &arguments, &run);
    if (!status) status = store_rows(keel_import_run(import, run), arguments.output, &rows);
    if (status)
        fprintf(stderr, "keel import: %s\n", keel_error());
    else
        printf("%s: %llu records of the format %s, in %s\n", arguments.log, (unsigned long long)rows,
               keel_import_format(import), arguments.output);
    keel_import_close(import);
    return status ? UNREADABLE : 0;
}
