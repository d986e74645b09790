// The same rules after the fact: over a store, or over any other source of rows (the importers in tools/import).
#ifndef KEEL_ANALYZERS_OFFLINE_H
#define KEEL_ANALYZERS_OFFLINE_H

#include "analyzers/online.h"

// A source of rows that is not a store: a log of another trainer. One run per source.
typedef struct keel_row_source {
    void *context;
    const keel_run_info *info;
    // *row NULL at the end.
    keel_status (*next)(void *context, const keel_row **row);
} keel_row_source;

// A small history of each scalar for the report's plots: bounded, whatever the length of the run.
typedef struct keel_trace keel_trace;

typedef struct keel_result {
    const char *source;       // as given
    uint64_t records;         // rows judged
    uint64_t first_step, last_step;
    const keel_incident *incidents; // owned by the analysis
    size_t incident_count;
    const keel_trace *trace;
    const keel_run_info *info; // NULL: unknown
    keel_analysis *analysis;   // owned
} keel_result;

// CONFIG NULL: the run's own stored monitor settings where it has them, else the defaults.
keel_status keel_offline_store(const char *path, const keel_monitor_config *config, keel_result **result);
keel_status keel_offline_rows(const char *source, const keel_row_source *rows, const keel_monitor_config *config, keel_result **result);
void keel_result_free(keel_result *result);

#endif
