#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analyzers/report/advice.h"
#include "analyzers/report/plot.h"
#include "analyzers/report/report.h"

enum { TABLE_ROWS = 20, PLOTTED = 3 };

static bool discarded(const keel_result *r, size_t i) {
    return keel_analysis_extra(r->analysis, i)->discarded != 0;
}

// < 0 if incident A is to be spoken of before B.
static int worse(const keel_result *r, size_t a, size_t b) {
    const keel_incident *x = &r->incidents[a], *y = &r->incidents[b];
    if (discarded(r, a) != discarded(r, b)) return discarded(r, a) ? 1 : -1;
    if (x->severity != y->severity) return x->severity > y->severity ? -1 : 1;
    if (x->first_step != y->first_step) return x->first_step < y->first_step ? -1 : 1;
    return a < b ? -1 : 1;
}

static size_t worst_index(const keel_result *r) {
    size_t worst = 0;
    for (size_t i = 1; i < r->incident_count; i++)
        if (worse(r, i, worst) < 0) worst = i;
    return worst;
}

const keel_incident *keel_report_worst(const keel_result *r) {
    return r->incident_count ? &r->incidents[worst_index(r)] : NULL;
}

int keel_report_severity(const keel_result *r) {
    if (r->incident_count == 0 || discarded(r, worst_index(r))) return -1;
    return (int)keel_report_worst(r)->severity;
}

static const char *colour_of(const keel_report_style *style, int severity) {
    if (!style->colour) return "";
    return severity == KEEL_CRITICAL ? "\x1b[1;31m" : severity == KEEL_WARNING ? "\x1b[33m" : "\x1b[32m";
}

static const char *plain(const keel_report_style *style) {
    return style->colour ? "\x1b[0m" : "";
}

static size_t count_of(const keel_result *r, keel_severity severity) {
    size_t count = 0;
    for (size_t i = 0; i < r->incident_count; i++) count += r->incidents[i].severity == severity && !discarded(r, i);
    return count;
}

static const char *plural(size_t n) {
    return n == 1 ? "" : "s";
}

// TEXT over lines of WIDTH columns, those after the first indented.
static void print_wrapped(FILE *out, const char *text, int indent, int width) {
    int at = indent;
    while (*text) {
        size_t word = strcspn(text, " ");
        if (at > indent && at + (int)word + 1 > width) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
        } else if (at > indent)
            at += fprintf(out, " ");
        at += fprintf(out, "%.*s", (int)word, text);
        text += word + strspn(text + word, " ");
    }
    fputc('\n', out);
}

static void print_item(FILE *out, const char *name, const char *text, int width) {
    fprintf(out, "  %-9s ", name);
    print_wrapped(out, text, 12, width);
}

static void print_source(const keel_result *r, FILE *out) {
    fprintf(out, "%s", r->source);
    if (r->runs > 1) fprintf(out, ", run %zu of %zu", r->run, r->runs);
}

// Silence about a run of which nothing is known is no health.
static bool nothing_to_judge(const keel_result *r) {
    return r->records == 0 && keel_report_severity(r) < KEEL_WARNING;
}

// BEFORE, then how many steps are missing; nothing where none are.
static void print_dropped(const keel_result *r, const char *before, FILE *out) {
    if (r->dropped_steps == 0) return;
    fprintf(out, "%s%" PRIu64 " of %" PRIu64 " steps were not recorded (very short steps, a slow disk or a slow sink)",
            before, r->dropped_steps, r->records + r->dropped_steps);
}

static void print_head(const keel_result *r, FILE *out) {
    const keel_run_info *info = r->info;
    print_source(r, out);
    if (info && info->run_id[0]) fprintf(out, "  run %s", info->run_id);
    if (info && info->host[0]) fprintf(out, " on %s", info->host);
    if (info && info->world_size > 1) fprintf(out, ", %" PRIu32 " ranks", info->world_size);
    if (r->records) fprintf(out, ", steps %" PRIu64 " to %" PRIu64, r->first_step, r->last_step);
    fprintf(out, ", %" PRIu64 " record%s", r->records, plural(r->records));
    print_dropped(r, "\n", out);
    fputs("\n\n", out);
}

static void print_verdict(const keel_result *r, const keel_report_style *style, int width, FILE *out) {
    int severity = keel_report_severity(r);
    if (nothing_to_judge(r)) {
        fprintf(out, "%sEMPTY%s: no step was recorded, and nothing could be judged\n", colour_of(style, KEEL_WARNING),
                plain(style));
        return;
    }
    if (severity < KEEL_WARNING) {
        fprintf(out, "%sHEALTHY%s: no warning or critical incident\n", colour_of(style, -1), plain(style));
        return;
    }
    size_t index = worst_index(r);
    const keel_incident *k = &r->incidents[index];
    fprintf(out, "%s%s%s: ", colour_of(style, severity), severity == KEEL_CRITICAL ? "CRITICAL" : "WARNING",
            plain(style));
    print_wrapped(out, k->message, severity == KEEL_CRITICAL ? 10 : 9, width);
    char text[512];
    const char *end = k->open ? "still going on at the end of what was read" : "over";
    if (k->first_step == k->last_step)
        snprintf(text, sizeof text, "step %" PRIu64 "; %s", k->first_step, end);
    else
        snprintf(text, sizeof text, "steps %" PRIu64 " to %" PRIu64 ", worst at %" PRIu64 "; %s", k->first_step,
                 k->last_step, k->peak_step, end);
    print_item(out, "when", text, width);
    snprintf(text, sizeof text, "%s%s%s", k->series, k->site[0] ? ", first in " : "", k->site);
    print_item(out, "where", text, width);
    if (k->rank >= 0) {
        snprintf(text, sizeof text, "%" PRId32, k->rank);
        print_item(out, "rank", text, width);
    }
    if (strcmp(k->cause, "unknown") == 0)
        snprintf(text, sizeof text, "unknown: what was seen does not decide it");
    else
        snprintf(text, sizeof text, "%s (confidence %.2f)", k->cause, k->confidence);
    print_item(out, "cause", text, width);
    const keel_incident_extra *extra = keel_analysis_extra(r->analysis, index);
    char advice[KEEL_ADVICE_BYTES];
    keel_advice(k, extra, advice);
    print_item(out, "next", advice, width);
    if (extra->evidence_count < 2 && !k->site[0]) return;
    fprintf(out, "  %s\n", k->site[0] ? "seen, in the order of the data flow:" : "seen, in the order of steps:");
    for (uint32_t i = 0; i < extra->evidence_count; i++) {
        fprintf(out, "    ");
        print_wrapped(out, extra->evidence[i], 6, width);
    }
}

static void print_table(const keel_result *r, const keel_report_style *style, int width, FILE *out) {
    if (r->incident_count == 0 || (r->incident_count == 1 && keel_report_severity(r) >= KEEL_WARNING))
        return; // said already
    fprintf(out, "\nincidents: %zu critical, %zu warning%s, %zu note%s\n", count_of(r, KEEL_CRITICAL),
            count_of(r, KEEL_WARNING), plural(count_of(r, KEEL_WARNING)), count_of(r, KEEL_INFO),
            plural(count_of(r, KEEL_INFO)));
    size_t shown = 0, last = 0;
    for (; shown < TABLE_ROWS && shown < r->incident_count; shown++) { // the next worst one, without a copy
        size_t best = SIZE_MAX;
        for (size_t i = 0; i < r->incident_count; i++) {
            if (shown > 0 && (i == last || worse(r, i, last) < 0)) continue;
            if (best == SIZE_MAX || worse(r, i, best) < 0) best = i;
        }
        last = best;
        const keel_incident *k = &r->incidents[best];
        fprintf(out, "  %s%-8s%s %-20s ", colour_of(style, (int)k->severity), keel_severity_name(k->severity),
                plain(style), k->rule);
        char text[KEEL_MESSAGE_BYTES + 64];
        snprintf(text, sizeof text, "step %" PRIu64 ": %s%s", k->first_step, k->message,
                 discarded(r, best) ? " (rolled back)" : "");
        print_wrapped(out, text, 32, width);
    }
    if (shown < r->incident_count) fprintf(out, "  and %zu more: --format json lists all\n", r->incident_count - shown);
}

static void print_plots(const keel_result *r, const keel_report_style *style, FILE *out) {
    static const char *const names[PLOTTED] = {"loss", "grad_norm", "lr"};
    for (int i = 0; i < PLOTTED; i++) {
        int index = keel_trace_find(r->trace, names[i]);
        if (index >= 0) keel_plot_series(r, (uint32_t)index, style, out);
    }
}

keel_status keel_report_written(FILE *out) {
    errno = 0;
    if (fflush(out) == 0 && !ferror(out)) return KEEL_OK;
    return keel_fail(KEEL_ERR_IO, "output cannot be written: %s", errno ? strerror(errno) : "an earlier write failed");
}

keel_status keel_report_text(const keel_result *r, const keel_report_style *style, FILE *out) {
    int width = style->width > 60 ? style->width : 60;
    print_head(r, out);
    print_verdict(r, style, width, out);
    print_table(r, style, width, out);
    print_plots(r, style, out);
    return keel_report_written(out);
}

keel_status keel_report_line(const keel_result *r, const keel_report_style *style, FILE *out) {
    int severity = keel_report_severity(r);
    const bool empty = nothing_to_judge(r);
    const char *verdict = empty                     ? "empty"
                          : severity < KEEL_WARNING ? "healthy"
                                                    : keel_severity_name((keel_severity)severity);
    size_t count = count_of(r, KEEL_CRITICAL) + count_of(r, KEEL_WARNING);
    fprintf(out, "%s%-8s%s ", colour_of(style, empty ? KEEL_WARNING : severity), verdict, plain(style));
    print_source(r, out);
    fputs(": ", out);
    if (severity < KEEL_WARNING)
        fprintf(out, "%" PRIu64 " record%s", r->records, plural(r->records));
    else
        fprintf(out, "%zu incident%s in %" PRIu64 " record%s; step %" PRIu64 ": %s", count, plural(count), r->records,
                plural(r->records), keel_report_worst(r)->first_step, keel_report_worst(r)->message);
    print_dropped(r, "; ", out);
    fputc('\n', out);
    return keel_report_written(out);
}
