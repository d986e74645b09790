// The same rules after the fact: over a store, or over any other source of rows (the importers in tools/import).
#ifndef KEEL_ANALYZERS_OFFLINE_H
#define KEEL_ANALYZERS_OFFLINE_H

#include "analyzers/online.h"
#include "analyzers/trace.h"

// A source of rows that is not a store: a log of another trainer. One run per source.
typedef struct keel_row_source {
    void *context;
    const keel_run_info *info;
    // *row NULL at the end.
    keel_status (*next)(void *context, const keel_row **row);
    void (*rewind)(void *context); // the next row is the first one again
} keel_row_source;

// What a log holds that its reader left out.
typedef struct keel_left_out {
    uint64_t lines, rows, values; // that cannot be read: whole lines, records, values of records
    uint64_t misplaced;           // records that were torn or are not where they belong
    uint64_t first_line;          // of those that cannot be read; 0: there are none, or the format has no lines
} keel_left_out;

typedef struct keel_result {
    char *source;                   // as given
    size_t run, runs;               // where the source holds several: which of them this is, from 1, and of how many
    uint64_t records;               // rows judged
    keel_left_out left_out;         // of the source, all its runs together; zeros of a store
    uint64_t dropped_steps;         // steps that were not recorded, beside them
    uint64_t first_step, last_step; // the least and the last; 0 where there are none
    const keel_incident *incidents; // owned by the analysis
    size_t incident_count;
    const keel_trace *trace;
    const keel_run_info *info;   // of the last segment; borrowed from the store or the source of rows
    keel_analysis *analysis;     // owned
    struct keel_offline *keeper; // owned: what the pointers above point into
} keel_result;

// CONFIG NULL: the run's own stored monitor settings, each segment's for its rows, where it has them; else the
// defaults.
//
// Where a later segment takes the run up again at an earlier step, the rules go on from the state before that step, as
// a resumed run does from its checkpoint; what they found in the part that was rolled back stays, marked as discarded.
keel_status keel_offline_store(const char *path, const keel_monitor_config *config, keel_result **result);
// The same, telling LISTENER as it goes.
typedef struct keel_offline_listener {
    void *context;
    void (*begin)(void *context); // before the first row; again where the store must be read a second time
    // After each row: the incidents that are new or changed, as a live judge would publish them now.
    void (*row)(void *context, const keel_row *row, const keel_incident *const *changed, size_t count);
} keel_offline_listener;
keel_status keel_offline_follow(const char *path, const keel_monitor_config *config,
                                const keel_offline_listener *listener, keel_result **result);
// ROWS must outlive the result.
keel_status keel_offline_rows(const char *source, const keel_row_source *rows, const keel_monitor_config *config,
                              keel_result **result);
void keel_result_free(keel_result *result); // NULL is fine

#endif
