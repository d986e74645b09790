#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "analyzers/report/compare_report.h"
#include "analyzers/report/report.h"

enum { PARTINGS_SHOWN = 12, NAMES_SHOWN = 6, LAYERS_SHOWN = 16, LABEL = 16, COLUMN = 11 };

double keel_compare_ratio(double a, double b) {
    if (keel_is_not_collected(a) || keel_is_not_collected(b)) return keel_not_collected();
    return a == 0 && b == 0 ? 1 : b / a;
}

const keel_compared *keel_compare_greatest(const keel_comparison *c) {
    const keel_compared *greatest = NULL;
    for (size_t i = 0; i < c->count; i++) {
        if (!c->list[i].judged || c->list[i].greatest == 0 || isinf(c->list[i].greatest)) continue;
        if (!greatest || c->list[i].greatest > greatest->greatest) greatest = &c->list[i];
    }
    return greatest;
}

static const char *value_text(char text[32], const char *format, double value) {
    if (keel_is_not_collected(value))
        strcpy(text, "finite"); // what the flags say of it
    else if (isnan(value))
        strcpy(text, "nan");
    else
        snprintf(text, 32, format, value);
    return text;
}

static const char *ratio_text(char text[32], double a, double b) {
    const double ratio = keel_compare_ratio(a, b);
    if (keel_is_not_collected(ratio)) return strcpy(text, "-");
    return value_text(text, fabs(ratio) >= 0.1 && fabs(ratio) < 1000 ? "%.4f" : "%.3g", ratio);
}

static void print_op(const keel_comparison *c, const keel_compared *at, FILE *out) {
    if (at->series->is_site) fprintf(out, " %s", keel_op_get(c->options.op)->name);
}

static void print_steps(const keel_comparison *c, FILE *out) {
    const keel_joined *joined = &c->joined;
    fprintf(out, "%" PRIu64 " step%s in common, %" PRIu64 " to %" PRIu64, joined->common,
            joined->common == 1 ? "" : "s", c->first_step, c->last_step);
    for (int i = 0; i < KEEL_RUN_SIDES; i++)
        if (joined->only[i]) fprintf(out, "; %" PRIu64 " only in %c", joined->only[i], "AB"[i]);
    fputs("\n\n", out);
}

static void print_parting(const keel_comparison *c, const keel_compared *at, FILE *out) {
    char a[32], b[32], ratio[32];
    fprintf(out, "%s", at->series->name);
    print_op(c, at, out);
    fprintf(out, ", A %s, B %s (B/A %s)", value_text(a, "%.6g", at->parting.a), value_text(b, "%.6g", at->parting.b),
            ratio_text(ratio, at->parting.a, at->parting.b));
}

static void print_first(const keel_comparison *c, FILE *out) {
    const keel_compared *greatest = keel_compare_greatest(c);
    if (c->parting_count == 0) {
        if (greatest) {
            fprintf(out, "the same within %g %%; the greatest difference is %.3g %%, at step %" PRIu64 " in %s",
                    100 * c->options.tolerance, 100 * greatest->greatest, greatest->greatest_step,
                    greatest->series->name);
            print_op(c, greatest, out);
        } else {
            fputs("the same in every value", out);
        }
        fputc('\n', out);
        return;
    }
    const keel_compared *first = &c->list[c->partings[0]];
    fprintf(out, "they part at step %" PRIu64 ", first in ", first->parting.step);
    print_parting(c, first, out);
    if (first->parting.before)
        fprintf(out, "\nits common record before that is of step %" PRIu64 "\n", first->parting.before);
    else
        fputs("\nno common record of it before that\n", out);
}

static void print_others(const keel_comparison *c, FILE *out) {
    if (c->parting_count < 2) return;
    fputs("\nthen, by step and in the order of data flow\n", out);
    for (size_t i = 1; i < c->parting_count && i <= PARTINGS_SHOWN; i++) {
        const keel_compared *at = &c->list[c->partings[i]];
        fprintf(out, "  step %6" PRIu64 "  ", at->parting.step);
        print_parting(c, at, out);
        fputc('\n', out);
    }
    if (c->parting_count > PARTINGS_SHOWN + 1)
        fprintf(out, "  and %zu more series\n", c->parting_count - PARTINGS_SHOWN - 1);
}

static void print_tables(const keel_comparison *c, FILE *out) {
    for (size_t t = 0; t < c->table_count; t++) {
        const keel_compared_values *table = &c->tables[t];
        const keel_compared *at = &c->list[table->index];
        fprintf(out, "\n%s", at->series->name);
        print_op(c, at, out);
        fprintf(out, "\n  %8s %14s %14s %10s\n", "step", "A", "B", "B/A");
        for (size_t i = 0; i < table->count; i++) {
            char a[32], b[32], ratio[32];
            fprintf(out, "%c %8" PRIu64 " %14s %14s %10s\n", table->steps[i] == at->parting.step ? '>' : ' ',
                    table->steps[i], value_text(a, "%.6g", table->a[i]), value_text(b, "%.6g", table->b[i]),
                    ratio_text(ratio, table->a[i], table->b[i]));
        }
    }
}

static void print_group(const keel_comparison *c, size_t g, FILE *out) {
    const keel_compared_group *group = &c->groups[g];
    const keel_compared_values *values = &c->group_values[g];
    char label[KEEL_MODULE_NAME_BYTES + 16], text[32];
    if (group->layer >= 0)
        snprintf(label, sizeof label, "layer %" PRId32, group->layer);
    else
        snprintf(label, sizeof label, "%s", group->module);
    fprintf(out, "  %-*s", LABEL, label);
    for (size_t i = 0; i < values->count; i++)
        fprintf(out, "%*s", COLUMN, ratio_text(text, values->a[i], values->b[i]));
    if (group->parting.step)
        fprintf(out, "  %8" PRIu64 "\n", group->parting.step);
    else
        fputs("         -\n", out);
}

// Of many layers the first and the last.
static void print_quantity(const keel_comparison *c, size_t begin, size_t end, FILE *out) {
    const keel_compared_values *values = &c->group_values[begin];
    fprintf(out, "\n%s: norm of a layer's tensors together, B/A at step\n  %-*s",
            keel_quantity_name(c->groups[begin].quantity), LABEL, "");
    for (size_t i = 0; i < values->count; i++) fprintf(out, "%*" PRIu64, COLUMN, values->steps[i]);
    fputs("  parts at\n", out);
    for (size_t g = begin; g < end; g++) {
        if (end - begin > LAYERS_SHOWN && g == begin + LAYERS_SHOWN / 2) {
            fprintf(out, "  ... %zu more\n", end - begin - LAYERS_SHOWN);
            g = end - LAYERS_SHOWN / 2;
        }
        print_group(c, g, out);
    }
}

// Quantities of which no layer parts are only named.
static void print_layers(const keel_comparison *c, FILE *out) {
    const char *same[KEEL_QUANTITY_COUNT];
    size_t same_count = 0;
    for (size_t begin = 0, end; begin < c->group_count; begin = end) {
        bool parted = false;
        for (end = begin; end < c->group_count && c->groups[end].quantity == c->groups[begin].quantity; end++)
            parted |= c->groups[end].parting.step > 0;
        if (c->group_values[begin].count == 0) continue; // flags alone
        if (parted)
            print_quantity(c, begin, end, out);
        else
            same[same_count++] = keel_quantity_name(c->groups[begin].quantity);
    }
    for (size_t i = 0; i < same_count; i++) fprintf(out, "%s%s", i ? ", " : "\nno layer parts in ", same[i]);
    if (same_count) fputc('\n', out);
}

static bool is_only_in(const keel_compared *at, keel_run_side side) {
    return at->series->in[side] && !at->series->in[1 - side];
}

static bool is_left_out(const keel_compared *at) {
    return at->series->in[KEEL_RUN_A] && at->series->in[KEEL_RUN_B] && !at->judged;
}

// LEFT_OUT: those of the machine; else those of SIDE alone.
static void print_names(const keel_comparison *c, const char *title, bool left_out, keel_run_side side, FILE *out) {
    size_t count = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (left_out ? !is_left_out(&c->list[i]) : !is_only_in(&c->list[i], side)) continue;
        if (count == 0) fprintf(out, "%s", title);
        if (count < NAMES_SHOWN) fprintf(out, "%s%s", count ? ", " : "", c->list[i].series->name);
        count++;
    }
    if (count > NAMES_SHOWN) fprintf(out, " and %zu more", count - NAMES_SHOWN);
    if (count) fputc('\n', out);
}

keel_status keel_compare_text(const keel_comparison *c, const char *a, const char *b, FILE *out) {
    fprintf(out, "A  %s\nB  %s\n", a, b);
    print_steps(c, out);
    print_first(c, out);
    print_others(c, out);
    print_tables(c, out);
    print_layers(c, out);
    fputc('\n', out);
    print_names(c, "only in A   ", false, KEEL_RUN_A, out);
    print_names(c, "only in B   ", false, KEEL_RUN_B, out);
    print_names(c, "not judged  ", true, KEEL_RUN_A, out);
    return keel_report_written(out);
}
