#include "analyzers/trace.h"

#include <math.h>
#include <string.h>

void keel_trace_init(keel_trace *trace) {
    memset(trace, 0, sizeof *trace);
    trace->stride = 1;
}

int keel_trace_find(const keel_trace *trace, const char *name) {
    for (uint32_t i = 0; i < trace->series_count; i++)
        if (strncmp(trace->name[i], name, KEEL_TRACE_NAME_BYTES - 1) == 0) return (int)i;
    return -1;
}

static void add_series(keel_trace *trace, const keel_run_info *info, const char *name) {
    int32_t id = keel_run_scalar(info, name);
    if (id < 0) return;
    int at = keel_trace_find(trace, name);
    if (at < 0) {
        if (trace->series_count == KEEL_TRACE_SERIES) return;
        at = (int)trace->series_count++;
        size_t n = strnlen(name, KEEL_TRACE_NAME_BYTES - 1);
        memcpy(trace->name[at], name, n);
        trace->name[at][n] = 0;
    }
    trace->id[at] = id;
}

void keel_trace_start(keel_trace *trace, const keel_run_info *info) {
    static const char *const first[] = {"loss", "grad_norm", "lr", "loss_scale"};
    for (uint32_t i = 0; i < KEEL_TRACE_SERIES; i++) trace->id[i] = -1;
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) add_series(trace, info, first[i]);
    for (uint32_t i = 0; i < info->scalar_count; i++) add_series(trace, info, info->scalar_names[i]);
}

static void merge_pairs(keel_trace *t) {
    for (uint32_t i = 0; i < KEEL_TRACE_BUCKETS / 2; i++) {
        t->first_step[i] = t->first_step[2 * i];
        t->last_step[i] = t->last_step[2 * i + 1];
        for (uint32_t s = 0; s < t->series_count; s++) {
            const keel_trace_value a = t->values[s][2 * i], b = t->values[s][2 * i + 1];
            keel_trace_value both = {.sum = a.sum + b.sum, .count = a.count + b.count, .bad = a.bad + b.bad};
            both.min = a.count == 0 ? b.min : b.count == 0 ? a.min : fmin(a.min, b.min);
            both.max = a.count == 0 ? b.max : b.count == 0 ? a.max : fmax(a.max, b.max);
            t->values[s][i] = both;
        }
    }
    t->count = KEEL_TRACE_BUCKETS / 2;
    t->stride *= 2;
    t->filled = (uint32_t)t->stride;
}

void keel_trace_add(keel_trace *t, const keel_row *row) {
    if (t->count == 0 || t->filled == t->stride) {
        if (t->count == KEEL_TRACE_BUCKETS) merge_pairs(t);
        for (uint32_t s = 0; s < KEEL_TRACE_SERIES; s++) t->values[s][t->count] = (keel_trace_value){0};
        t->first_step[t->count++] = row->step.step;
        t->filled = 0;
    }
    uint32_t at = t->count - 1;
    t->filled++;
    t->last_step[at] = row->step.step;
    for (uint32_t s = 0; s < t->series_count; s++) {
        if (t->id[s] < 0 || !row->scalar_set[t->id[s]]) continue;
        double x = row->scalars[t->id[s]];
        keel_trace_value *v = &t->values[s][at];
        if (!isfinite(x)) {
            v->bad++;
            continue;
        }
        if (v->count == 0 || x < v->min) v->min = x;
        if (v->count == 0 || x > v->max) v->max = x;
        v->sum += x;
        v->count++;
    }
}
