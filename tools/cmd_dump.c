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

#include "analyzers/report/report.h"
#include "collectors/store/reader.h"
#include "tools/commands.h"

enum { UNREADABLE = 2 };

typedef struct dump_arguments {
    const char *path;
    const char *series; // a scalar
    const char *sites, *op;
    bool json, incidents, help;
} dump_arguments;

static void print_usage(FILE *out) {
    fputs("usage: keel dump PATH [--series NAME | --op OP [--site REGEX] | --incidents] [--format csv|json]\n\n"
          "  PATH          a run directory or one .h5 file\n"
          "  --series NAME a scalar: loss, grad_norm, lr, ...\n"
          "  --op OP       a statistic (norm, max, min, zeros, ...) of every site that keeps it, or of those whose\n"
          "  --site REGEX  NAME:QUANTITY the expression is found in\n"
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
    enum { SERIES = 256, SITE, OP, FORMAT, INCIDENTS };
    static const struct option options[] = {
        {"series", required_argument, NULL, SERIES},
        {"site", required_argument, NULL, SITE},
        {"op", required_argument, NULL, OP},
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
    printf("%s  run %s, begun %s on %s, %" PRIu32 " ranks, %s\n", path, info->run_id, info->created_utc, info->host,
           info->world_size, states[keel_store_state_of(reader)]);
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

// A number that is not finite is a string, as in reports.
static json_t *json_value(double value) {
    if (isfinite(value)) return json_real(value);
    return json_string(isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

// SITE NULL: a scalar. In JSON the series joins LIST; else HEADER, if any, comes before it.
static keel_status dump_series(keel_store_reader *reader, const char *name, const char *site, const char *header,
                               json_t *list) {
    uint64_t *steps;
    double *values;
    size_t count;
    const keel_status status = keel_store_series(reader, name, site, &steps, &values, &count);
    if (status) return status;
    if (header && !list) printf("%s%s\n", header, site ? "" : name);
    json_t *step_list = list ? json_array() : NULL, *value_list = list ? json_array() : NULL;
    for (size_t i = 0; i < count; i++) {
        if (list) {
            json_array_append_new(step_list, json_integer((json_int_t)steps[i]));
            json_array_append_new(value_list, json_value(values[i]));
            continue;
        }
        printf("%" PRIu64 ",", steps[i]);
        if (site) printf("%s,", site);
        print_value(values[i]);
        putchar('\n');
    }
    if (list)
        json_array_append_new(list, json_pack("{s:s, s:s?, s:o, s:o}", "series", name, "site", site, "steps", step_list,
                                              "values", value_list));
    free(steps);
    free(values);
    return KEEL_OK;
}

// Earlier segments may have sites that the last one lacks; each key once.
static bool seen_before(const keel_store_reader *reader, uint32_t segment, const keel_site_info *site) {
    for (uint32_t s = 0; s < segment; s++) {
        const keel_run_info *info = keel_store_info(reader, s);
        for (uint32_t i = 0; i < info->site_count; i++)
            if (info->sites[i].quantity == site->quantity && strcmp(info->sites[i].name, site->name) == 0) return true;
    }
    return false;
}

static keel_status dump_op(const dump_arguments *a, keel_store_reader *reader, json_t *list) {
    int code;
    PCRE2_SIZE offset;
    pcre2_code *regex =
        pcre2_compile((PCRE2_SPTR)(a->sites ? a->sites : ""), PCRE2_ZERO_TERMINATED, 0, &code, &offset, NULL);
    if (!regex) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(code, text, sizeof text);
        return keel_fail(KEEL_ERR_USAGE, "--site '%.100s': %s at offset %zu", a->sites, (const char *)text, offset);
    }
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(regex, NULL);
    keel_status status = match ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for a regular expression");
    size_t found = 0;
    for (uint32_t s = 0; !status && s < keel_store_segments(reader); s++) {
        const keel_run_info *info = keel_store_info(reader, s);
        for (uint32_t i = 0; !status && i < info->site_count; i++) {
            char key[KEEL_SITE_NAME_BYTES + 32];
            snprintf(key, sizeof key, "%s:%s", info->sites[i].name, keel_quantity_name(info->sites[i].quantity));
            if (pcre2_match(regex, (PCRE2_SPTR)key, strlen(key), 0, 0, match, NULL) < 0) continue;
            if (seen_before(reader, s, &info->sites[i])) continue;
            status = dump_series(reader, a->op, key, found++ ? NULL : "step,site,value", list);
        }
    }
    pcre2_match_data_free(match);
    pcre2_code_free(regex);
    if (!status && !found)
        status = keel_fail(KEEL_ERR_NOT_FOUND, "%s: no site matches '%.100s'", a->path, a->sites ? a->sites : "");
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
    keel_status status = a->series ? dump_series(reader, a->series, NULL, "step,", list) : dump_op(a, reader, list);
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
    keel_store_reader *reader;
    keel_status status = keel_store_open(a.path, &reader);
    if (status) {
        fprintf(stderr, "keel dump: %s\n", keel_error());
        return UNREADABLE;
    }
    status = dump(&a, reader);
    keel_store_close(reader);
    if (!status && (fflush(stdout) || ferror(stdout)))
        status = keel_fail(KEEL_ERR_IO, "standard output: cannot be written");
    if (!status) return 0;
    fprintf(stderr, "keel dump: %s\n", keel_error());
    return UNREADABLE;
}
