// A small history of each scalar for plots, of fixed size whatever the length of the run: buckets of equally many
// records, which are merged in pairs when there are too many.
#ifndef KEEL_ANALYZERS_TRACE_H
#define KEEL_ANALYZERS_TRACE_H

#include "collectors/row.h"

enum { KEEL_TRACE_BUCKETS = 256, KEEL_TRACE_SERIES = 8, KEEL_TRACE_NAME_BYTES = 32 };

typedef struct keel_trace_value {
    double min, max, sum; // of the finite values
    uint32_t count;       // finite values
    uint32_t bad;         // NaN and infinities
} keel_trace_value;

// Plain memory.
typedef struct keel_trace {
    uint64_t stride; // records in a bucket
    uint32_t count;  // buckets in use; the last may be incomplete
    uint32_t filled; // records in the last one
    uint64_t first_step[KEEL_TRACE_BUCKETS], last_step[KEEL_TRACE_BUCKETS];
    uint32_t series_count;
    int32_t id[KEEL_TRACE_SERIES]; // of the scalar in the present tables; -1: absent
    char name[KEEL_TRACE_SERIES][KEEL_TRACE_NAME_BYTES];
    keel_trace_value values[KEEL_TRACE_SERIES][KEEL_TRACE_BUCKETS];
} keel_trace;

void keel_trace_init(keel_trace *trace);
// Tables of the run, or of its next segment: loss, grad_norm, lr and loss_scale come first, then the others as they
// stand.
void keel_trace_start(keel_trace *trace, const keel_run_info *info);
void keel_trace_add(keel_trace *trace, const keel_row *row);
// Index of a series by name, or -1.
int keel_trace_find(const keel_trace *trace, const char *name);

#endif
