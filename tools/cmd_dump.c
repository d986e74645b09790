// keel dump: what a store holds, as text, CSV or JSON.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "analyzers/report/json_value.h"
#include "analyzers/report/report.h"
#include "collectors/store/reader.h"
#include "tools/commands.h"
#include "tools/run_path.h"

enum { UNREADABLE = 2 };

typedef struct dump_arguments {
    const char *path;
    const char *series; // a scalar
    const char *sites, *op;
    bool ranks; // of single ranks
    bool json, incidents, help;
} dump_arguments;

static void print_usage(FILE *out) {
    fputs(
        "usage: keel dump PATH [--series NAME | --op OP [--site REGEX] [--ranks] | --incidents] [--format csv|json]\n\n"
        "  PATH          a run directory or one .h5 file\n"
        "  --series NAME a scalar: loss, grad_norm, lr, ...\n"
        "  --op OP       a statistic (norm, max, min, zeros, ...) of every site that keeps it, or of those whose\n"
        "  --site REGEX  NAME:QUANTITY the expression is found in\n"
        "  --ranks       not what the ranks merge to, but the values of each that were kept (monitor.select.ranks)\n"
        "  --incidents   what was recorded live\n"
        "  --format      csv (default) or json\n"
        "Without any of these: what the run is and what can be asked for.\n",
        out);
}

static int fail_usage(const char *text, const char *about) {
    fprintf(stderr, "keel dump: %s%s; keel dump --help\n", text, about);
    return UNREADABLE;
}

static int parse(int argc, char **argv, dump_arguments *a) {
    enum { SERIES = 256, SITE, OP, RANKS, FORMAT, INCIDENTS };
    static const struct option options[] = {
        {"series", required_argument, NULL, SERIES},
        {"site", required_argument, NULL, SITE},
        {"op", required_argument, NULL, OP},
        {"ranks", no_argument, NULL, RANKS},
        {"format", required_argument, NULL, FORMAT},
        {"incidents", no_argument, NULL, INCIDENTS},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    optind = 0; // a fresh scan: another command may have used it in this process
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
        switch (option) {
        case SERIES:
            a->series = optarg;
            break;
        case SITE:
            a->sites = optarg;
            break;
        case OP:
            a->op = optarg;
            break;
        case RANKS:
            a->ranks = true;
            break;
        case FORMAT:
            if (strcmp(optarg, "csv") != 0 && strcmp(optarg, "json") != 0)
                return fail_usage("--format: expected csv or json, not ", optarg);
            a->json = strcmp(optarg, "json") == 0;
            break;
        case INCIDENTS:
            a->incidents = true;
            break;
        case 'h':
            a->help = true;
            return 0;
        case ':':
            return fail_usage("a value is missing after ", argv[optind - 1]);
        default:
            return fail_usage("unknown option ", argv[optind - 1]);
        }
    }
    if (optind != argc - 1) return fail_usage(optind == argc ? "no path given" : "one path only", "");
    a->path = argv[optind];
    if (!!a->series + !!a->op + a->incidents > 1) return fail_usage("one of --series, --op and --incidents only", "");
    if (a->sites && !a->op) return fail_usage("--site needs --op", "");
    if (a->ranks && !a->op) return fail_usage("--ranks needs --op", "");
    if (a->op && keel_op_find(a->op) == KEEL_OP_COUNT) return fail_usage("no such op: ", a->op);
    return 0;
}

// ---- what the run is ----

static void print_names(const char *title, const char *const *names, size_t count) {
    printf("%s", title);
    for (size_t i = 0; i < count; i++) printf("%s%s", i ? ", " : "", names[i]);
    puts(count ? "" : "none");
}

static keel_status print_summary(const char *path, keel_store_reader *reader) {
    static const char *const states[] = {[KEEL_STORE_CLOSED] = "complete",
                                         [KEEL_STORE_LIVE] = "being written",
                                         [KEEL_STORE_KILLED] = "left by a job that did not end in order"};
    keel_incident *incidents;
    size_t incident_count;
    const keel_status status = keel_store_incidents(reader, &incidents, &incident_count);
    if (status) return status;
    free(incidents);
    const uint32_t segments = keel_store_segments(reader);
    const keel_run_info *info = keel_store_info(reader, segments - 1);
    printf("%s  run %s, begun %s, ", path, info->run_id, info->created_utc);
    if (*info->host) // of a log it is not known
        printf("on %s, %" PRIu32 " rank%s, ", info->host, info->world_size, info->world_size == 1 ? "" : "s");
    puts(states[keel_store_state_of(reader)]);
    if (*info->command) printf("command    %s\n", info->command);
    for (uint32_t s = 0; s < segments; s++)
        printf("segment    %s, %" PRIu64 " rows\n", keel_store_segment_path(reader, s),
               keel_store_segment_rows(reader, s));
    print_names("scalars    ", info->scalar_names, info->scalar_count);
    const char *ops[KEEL_OP_COUNT];
    size_t op_count = 0;
    for (int op = 0; op < KEEL_OP_COUNT; op++)
        if (info->op_stored[op]) ops[op_count++] = keel_op_get((keel_op)op)->name;
    print_names("ops        ", ops, op_count);
    printf("sites      %" PRIu32 "\n", info->site_count);
    printf("incidents  %zu recorded live\n", incident_count);
    puts("more       keel dump PATH --series loss; --op norm --site 'layers.0'; --incidents");
    return KEEL_OK;
}

// ---- series ----

static void print_value(double value) {
    if (isfinite(value))
        printf("%.17g", value);
    else
        fputs(isnan(value) ? "nan" : value > 0 ? "inf" : "-inf", stdout);
}

static keel_status no_memory(void) {
    return keel_fail(KEEL_ERR_MEMORY, "no memory for a series");
}

static void print_step(uint64_t step, const char *site, int64_t rank, double value) {
    printf("%" PRIu64 ",", step);
    if (rank >= 0) printf("%" PRId64 ",", rank);
    if (site) printf("%s,", site);
    print_value(value);
    putchar('\n');
}

// A new series of LIST; SITE NULL: a scalar; RANK < 0: of all. NULL: no memory.
static json_t *add_series(json_t *list, const char *name, const char *site, int64_t rank) {
    json_t *series = json_pack("{s:s, s:s?, s:o*, s:[], s:[]}", "series", name, "site", site, "rank",
                               rank < 0 ? NULL : json_integer(rank), "steps", "values");
    return json_array_append_new(list, series) ? NULL : series;
}

static keel_status add_step(json_t *series, uint64_t step, double value) {
    return json_array_append_new(json_object_get(series, "steps"), json_integer((json_int_t)step)) ||
                   json_array_append_new(json_object_get(series, "values"), keel_json_number(value))
               ? no_memory()
               : KEEL_OK;
}

static keel_status dump_scalar(const char *name, keel_store_reader *reader, json_t *list) {
    uint64_t *steps;
    double *values;
    size_t count;
    keel_status status = keel_store_series(reader, name, NULL, &steps, &values, &count);
    if (status) return status;
    json_t *series = list ? add_series(list, name, NULL, -1) : NULL;
    if (list && !series) status = no_memory();
    if (!list) printf("step,%s\n", name);
    for (size_t i = 0; !status && i < count; i++) {
        if (list)
            status = add_step(series, steps[i], values[i]);
        else
            print_step(steps[i], NULL, -1, values[i]);
    }
    free(steps);
    free(values);
    return status;
}

// ---- an op at many sites: one pass over the rows, whatever their number ----

typedef struct site_key {
    uint32_t column; // the site, or the series of a single rank
    int64_t rank;    // -1: of all
    json_t *series;  // borrowed from the list; NULL in CSV
    char text[KEEL_INCIDENT_SITE_BYTES];
} site_key;

typedef struct site_filter {
    pcre2_code *regex;
    pcre2_match_data *match;
    site_key *keys; // of one segment
    size_t count;
    json_t *series_of; // by key, over all segments; NULL in CSV
} site_filter;

static keel_status open_filter(const char *pattern, bool json, site_filter *filter) {
    int code;
    PCRE2_SIZE offset;
    *filter = (site_filter){0};
    filter->regex = pcre2_compile((PCRE2_SPTR)(pattern ? pattern : ""), PCRE2_ZERO_TERMINATED, 0, &code, &offset, NULL);
    if (!filter->regex) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(code, text, sizeof text);
        return keel_fail(KEEL_ERR_USAGE, "--site '%.100s': %s at offset %zu", pattern, (const char *)text, offset);
    }
    filter->match = pcre2_match_data_create_from_pattern(filter->regex, NULL);
    if (json) filter->series_of = json_object();
    return filter->match && (!json || filter->series_of) ? KEEL_OK : no_memory();
}

static void close_filter(site_filter *filter) {
    pcre2_match_data_free(filter->match);
    pcre2_code_free(filter->regex);
    free(filter->keys);
    json_decref(filter->series_of);
}

// Ids differ between segments; a site that was there before goes on with its series.
static keel_status find_series(site_filter *filter, const char *op, site_key *key, json_t *list) {
    char name[KEEL_INCIDENT_SITE_BYTES + 24];
    snprintf(name, sizeof name, "%s %" PRId64, key->text, key->rank);
    key->series = json_object_get(filter->series_of, name);
    if (key->series) return KEEL_OK;
    key->series = add_series(list, op, key->text, key->rank);
    return !key->series || json_object_set(filter->series_of, name, key->series) ? no_memory() : KEEL_OK;
}

static keel_status match_sites(site_filter *filter, const dump_arguments *a, const keel_run_info *info, json_t *list) {
    const char *op = a->op;
    const uint32_t columns = a->ranks ? info->rank_series_count : info->site_count;
    free(filter->keys);
    filter->count = 0;
    filter->keys = calloc((size_t)columns + 1, sizeof *filter->keys);
    if (!filter->keys) return no_memory();
    keel_status status = KEEL_OK;
    for (uint32_t i = 0; !status && i < columns; i++) {
        site_key *key = &filter->keys[filter->count];
        const keel_site_info *site = &info->sites[a->ranks ? info->rank_series[i].site : i];
        key->column = i;
        key->rank = a->ranks ? (int64_t)info->rank_series[i].rank : -1;
        snprintf(key->text, sizeof key->text, "%s:%s", site->name, keel_quantity_name(site->quantity));
        if (pcre2_match(filter->regex, (PCRE2_SPTR)key->text, strlen(key->text), 0, 0, filter->match, NULL) < 0)
            continue;
        filter->count++;
        if (list) status = find_series(filter, op, key, list);
    }
    return status;
}

static keel_status dump_row(const site_filter *filter, keel_op op, const keel_row *row) {
    keel_status status = KEEL_OK;
    for (size_t i = 0; !status && i < filter->count; i++) {
        const site_key *key = &filter->keys[i];
        const double value =
            key->rank < 0 ? keel_row_value(row, op, key->column) : keel_row_rank_value(row, op, key->column);
        if (keel_is_not_collected(value)) continue;
        if (key->series)
            status = add_step(key->series, row->step.step, value);
        else
            print_step(row->step.step, key->text, key->rank, value);
    }
    return status;
}

static keel_status dump_sites(const dump_arguments *a, keel_store_reader *reader, site_filter *filter, json_t *list) {
    const keel_op op = keel_op_find(a->op);
    bool ops[KEEL_OP_COUNT] = {false};
    ops[op] = true;
    keel_store_want(reader, ops, a->ranks);
    uint32_t segment = UINT32_MAX;
    size_t found = 0;
    keel_status status = KEEL_OK;
    for (;;) {
        const keel_row *row;
        keel_store_position position;
        if (!status) status = keel_store_next(reader, &row, &position);
        if (status || !row) break;
        if (position.segment != segment) {
            segment = position.segment;
            status = match_sites(filter, a, keel_store_info(reader, segment), list);
            if (!list && !found && filter->count) puts(a->ranks ? "step,rank,site,value" : "step,site,value");
            found += filter->count;
        }
        if (!status && !position.superseded) status = dump_row(filter, op, row);
    }
    if (!status && !found && keel_store_rows(reader) > 0)
        status = keel_fail(KEEL_ERR_NOT_FOUND, "%s: no site matches '%.100s'", a->path, a->sites ? a->sites : "");
    return status;
}

static keel_status dump_op(const dump_arguments *a, keel_store_reader *reader, json_t *list) {
    bool stored = false;
    for (uint32_t s = 0; s < keel_store_segments(reader); s++) {
        const keel_run_info *info = keel_store_info(reader, s);
        stored = stored || (a->ranks ? info->rank_op_stored : info->op_stored)[keel_op_find(a->op)];
    }
    if (!stored)
        return keel_fail(KEEL_ERR_NOT_FOUND, "%s: no site keeps %s%s", a->path, a->op,
                         a->ranks ? " of single ranks" : "");
    site_filter filter;
    keel_status status = open_filter(a->sites, list != NULL, &filter);
    if (!status) status = dump_sites(a, reader, &filter, list);
    close_filter(&filter);
    return status;
}

// ---- incidents ----

static keel_status dump_incidents(const dump_arguments *a, keel_store_reader *reader) {
    keel_incident *incidents;
    size_t count;
    keel_status status = keel_store_incidents(reader, &incidents, &count);
    if (status) return status;
    if (!a->json) puts("id,severity,rule,first_step,peak_step,last_step,rank,site,message");
    for (size_t i = 0; !status && i < count; i++) {
        const keel_incident *at = &incidents[i];
        if (a->json) {
            char *text;
            status = keel_incident_json(at, NULL, &text);
            if (status) break;
            puts(text);
            free(text);
        } else {
            printf("%" PRIu32 ",%s,%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRId32 ",%s,\"", at->id,
                   keel_severity_name(at->severity), at->rule, at->first_step, at->peak_step, at->last_step, at->rank,
                   at->site);
            for (const char *c = at->message; *c; c++) printf(*c == '"' ? "\"\"" : "%c", *c);
            puts("\"");
        }
    }
    free(incidents);
    return status;
}

static keel_status dump(const dump_arguments *a, keel_store_reader *reader) {
    if (a->incidents) return dump_incidents(a, reader);
    if (!a->series && !a->op) return print_summary(a->path, reader);
    json_t *list = a->json ? json_array() : NULL;
    if (a->json && !list) return keel_fail(KEEL_ERR_MEMORY, "no memory for the series");
    keel_status status = a->series ? dump_scalar(a->series, reader, list) : dump_op(a, reader, list);
    if (!status && list && json_dumpf(list, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17)))
        status = keel_fail(KEEL_ERR_IO, "standard output: cannot be written");
    if (!status && list) putchar('\n');
    json_decref(list);
    return status;
}

int keel_cmd_dump(int argc, char **argv) {
    dump_arguments a = {0};
    const int code = parse(argc, argv, &a);
    if (code) return code;
    if (a.help) {
        print_usage(stdout);
        return 0;
    }
    if (!keel_path_is_store(a.path) && access(a.path, R_OK) == 0) {
        fprintf(stderr, "keel dump: %s: not a store; make one of a log with: keel import %s -o RUN\n", a.path, a.path);
        return UNREADABLE;
    }
    keel_store_reader *reader;
    keel_status status = keel_path_holds_run(a.path);
    if (!status) status = keel_store_open(a.path, &reader);
    if (status) {
        fprintf(stderr, "keel dump: %s\n", keel_error());
        return UNREADABLE;
    }
    status = dump(&a, reader);
    keel_store_close(reader);
    if (!status) status = keel_report_written(stdout);
    if (!status) return 0;
    fprintf(stderr, "keel dump: %s\n", keel_error());
    return UNREADABLE;
}
