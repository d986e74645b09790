#include "tools/lab/lab_table.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analyzers/report/report.h"
#include "analyzers/series.h"

static double latency(const keel_lab_tally *t) {
    return keel_lab_median(t->latencies, t->found);
}

// "4/5"; "-" where nothing is asked.
static void share(bool asked, uint64_t count, uint64_t of, char text[24]) {
    if (asked)
        snprintf(text, 24, "%" PRIu64 "/%" PRIu64, count, of);
    else
        strcpy(text, "-");
}

typedef struct row {
    char found[24], latency[24], site[24], rank[24], cause[24];
} row;

static row row_of(const keel_lab_tally *t) {
    row r;
    share(true, t->found, t->runs, r.found);
    share(t->has_site, t->site_right, t->runs, r.site);
    share(t->has_rank, t->rank_right, t->runs, r.rank);
    share(true, t->cause_first, t->runs, r.cause);
    if (t->found)
        snprintf(r.latency, sizeof r.latency, "%g", latency(t));
    else
        strcpy(r.latency, "-");
    return r;
}

static void print_healthy(const keel_lab_report *report, FILE *out) {
    const uint64_t alarms = report->criticals + report->warnings, steps = report->healthy_steps;
    if (steps == 0) return;
    fprintf(out,
            "%" PRIu64 " healthy runs, %" PRIu64 " steps: %" PRIu64 " critical, %" PRIu64
            " warnings: %.2g false alarms per 10,000 steps; at most %.2g with 95 %% confidence.\n",
            report->healthy_runs, steps, report->criticals, report->warnings, 1e4 * (double)alarms / (double)steps,
            1e4 * keel_lab_bound(alarms, steps));
}

void keel_lab_print_text(const keel_lab_report *report, FILE *out) {
    size_t width = strlen("fault");
    for (size_t i = 0; i < report->fault_count; i++)
        if (strlen(report->faults[i].name) > width) width = strlen(report->faults[i].name);
    if (report->fault_count)
        fprintf(out, "%-*s  %7s  %8s  %7s  %7s  %7s\n", (int)width, "fault", "found", "latency", "site", "rank",
                "cause");
    for (size_t i = 0; i < report->fault_count; i++) {
        const row r = row_of(&report->faults[i]);
        fprintf(out, "%-*s  %7s  %8s  %7s  %7s  %7s\n", (int)width, report->faults[i].name, r.found, r.latency, r.site,
                r.rank, r.cause);
    }
    print_healthy(report, out);
}

static json_t *count_or_null(bool asked, uint64_t count) {
    return asked ? json_integer((json_int_t)count) : json_null();
}

static json_t *number_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *json_of(const keel_lab_tally *t) {
    return json_pack("{s:s, s:s, s:I, s:I, s:s, s:o, s:b, s:o, s:o, s:I, s:I}", "name", t->name, "about", t->about,
                     "runs", (json_int_t)t->runs, "found", (json_int_t)t->found, "found_by", t->found_by,
                     "latency_steps", number_or_null(latency(t)), "sudden", t->sudden, "site_right",
                     count_or_null(t->has_site, t->site_right), "rank_right", count_or_null(t->has_rank, t->rank_right),
                     "cause_first", (json_int_t)t->cause_first, "early", (json_int_t)t->early);
}

keel_status keel_lab_print_json(const keel_lab_report *report, uint64_t seed, FILE *out) {
    json_t *faults = json_array();
    for (size_t i = 0; i < report->fault_count; i++) json_array_append_new(faults, json_of(&report->faults[i]));
    const uint64_t alarms = report->criticals + report->warnings, steps = report->healthy_steps;
    const double rate = steps ? 1e4 * (double)alarms / (double)steps : NAN;
    const double bound = steps ? 1e4 * keel_lab_bound(alarms, steps) : NAN;
    json_t *root = json_pack("{s:I, s:o, s:{s:I, s:I, s:I, s:I, s:I, s:o, s:o}}", "seed", (json_int_t)seed, "faults",
                             faults, "healthy", "runs", (json_int_t)report->healthy_runs, "steps", (json_int_t)steps,
                             "false_alarms", (json_int_t)alarms, "criticals", (json_int_t)report->criticals, "warnings",
                             (json_int_t)report->warnings, "per_10000", number_or_null(rate), "bound_per_10000",
                             number_or_null(bound));
    if (!root) return keel_fail(KEEL_ERR_MEMORY, "no memory for the JSON of the laboratory");
    const int failed = json_dumpf(root, out, JSON_INDENT(2));
    json_decref(root);
    fputc('\n', out);
    keel_status status = keel_report_written(out);
    return failed && !status ? keel_fail(KEEL_ERR_MEMORY, "no memory for the JSON of the laboratory") : status;
}

// Over all runs of all faults.
typedef struct sums {
    uint64_t runs, found, cause, asked_rank, rank, asked_site, site;
    double sudden; // median latency of sudden faults
} sums;

static sums sum_up(const keel_lab_report *report) {
    sums s = {.sudden = NAN};
    for (size_t i = 0; i < report->fault_count; i++) {
        const keel_lab_tally *t = &report->faults[i];
        s.runs += t->runs;
        s.found += t->found;
        s.cause += t->cause_first;
        s.asked_rank += t->has_rank ? t->runs : 0;
        s.rank += t->has_rank ? t->rank_right : 0;
        s.asked_site += t->has_site ? t->runs : 0;
        s.site += t->has_site ? t->site_right : 0;
    }
    double *all = calloc(s.runs + 1, sizeof *all);
    size_t count = 0;
    for (size_t i = 0; all && i < report->fault_count; i++)
        for (uint64_t k = 0; report->faults[i].sudden && k < report->faults[i].found; k++)
            all[count++] = report->faults[i].latencies[k];
    if (all) keel_sort_doubles(all, count);
    if (all) s.sudden = keel_lab_median(all, count);
    free(all);
    return s;
}

// "97.5 %"; "-" of nothing.
static void percent(uint64_t count, uint64_t of, char text[16]) {
    if (of)
        snprintf(text, 16, "%.1f %%", 100 * (double)count / (double)of);
    else
        strcpy(text, "-");
}

void keel_lab_print_document(const keel_lab_report *report, const char *command, FILE *out) {
    const sums s = sum_up(report);
    fputs("# What the detectors find\n\n"
          "`keel lab` trains small real transformers, each with one fault, and healthy ones of many kinds, and judges "
          "each as a live run\n"
          "is judged: by the rows of its store, one after the other, with the rules' defaults. Every case is one file "
          "in `configs/lab`, with\n"
          "what must be found; its numbers (onset, site, rank, strength) are drawn anew for each run. This document is "
          "what the command\n"
          "prints, on a seed that was not used while the rules were made:\n\n",
          out);
    fprintf(out, "    %s\n\n", command);
    fputs("*found*: runs with an alert (a warning or worse) of a rule that the case names, from the onset on. "
          "*latency*: median steps from\n"
          "the onset to the row after which the alert goes out; faults marked + begin in one step. *site*, *rank*: "
          "runs in which the\n"
          "incident names the tensor or layer and the rank that were disturbed. *cause*: runs in which the first cause "
          "that is named is the\n"
          "right one (`unknown` names none).\n\n"
          "What `precision_policy` reads in a run's settings does not count as found: it tells the same setting where "
          "it does no harm.\n\n"
          "| fault | | found | by | latency | site | rank | cause |\n|---|---|---|---|---|---|---|---|\n",
          out);
    for (size_t i = 0; i < report->fault_count; i++) {
        const keel_lab_tally *t = &report->faults[i];
        const row r = row_of(t);
        fprintf(out, "| `%s`%s | %s | %s | %s | %s | %s | %s | %s |\n", t->name, t->sudden ? " +" : "", t->about,
                r.found, t->found_by, r.latency, r.site, r.rank, r.cause);
    }
    char found[16], site[16], rank[16], cause[16];
    percent(s.found, s.runs, found);
    percent(s.site, s.asked_site, site);
    percent(s.rank, s.asked_rank, rank);
    percent(s.cause, s.runs, cause);
    fprintf(out,
            "\nAll together: found %s of %" PRIu64 " runs, median latency of sudden faults %g steps, right site %s, "
            "right rank %s,\nright cause first %s.\n\n",
            found, s.runs, s.sudden, site, rank, cause);
    print_healthy(report, out);
}
