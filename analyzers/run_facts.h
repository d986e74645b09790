// What the diagnosis knows of a run beside its findings: what is usual, and how it began. Plain memory, kept with the
// state of the analysis.
#ifndef KEEL_ANALYZERS_RUN_FACTS_H
#define KEEL_ANALYZERS_RUN_FACTS_H

#include "analyzers/run_settings.h"
#include "analyzers/series.h"
#include "analyzers/site_index.h"

typedef struct keel_run_facts {
    double first_loss;     // of step 1; NaN: not seen
    double lr, lr_peak;    // the latest, and the greatest so far; 0: none
    uint64_t records;      // rows so far
    keel_window grad_norm; // of applied updates: its median is what is usual
    double grad_norm_store[KEEL_WINDOW_STORE(KEEL_SERIES_WARMUP)];
} keel_run_facts;

void keel_run_facts_init(keel_run_facts *facts);
void keel_run_facts_add(keel_run_facts *facts, const keel_run_info *info, const keel_row *row);

// A run as the diagnosis sees it.
typedef struct keel_run_view {
    const keel_run_info *info;
    const keel_site_index *index;
    const keel_run_settings *settings;
    const keel_run_facts *facts;
} keel_run_view;

#endif
