// The laboratory: small real trainings, each with one fault, and healthy ones; what was found of them.
#ifndef KEEL_TOOLS_LAB_LAB_H
#define KEEL_TOOLS_LAB_LAB_H

#include "tools/lab/lab_judge.h"

typedef struct keel_lab_options {
    const char *folder;  // of cases
    const char *trainer; // keel-train
    const char *output;  // where the runs stay; NULL: a temporary folder
    uint64_t seed;       // all else derives from it and from names and numbers
    uint64_t runs;       // of each fault
    uint64_t healthy;    // least number of healthy steps
    const char **faults; // names; none: all
    size_t fault_count;
    void *context;
    void (*progress)(void *context, const char *line); // as each run ends
} keel_lab_options;

typedef struct keel_lab_tally {
    char *name, *about; // owned
    bool sudden, has_site, has_rank;
    uint64_t runs, found, site_right, rank_right, cause_first, early;
    char found_by[128]; // the rules whose alerts found it: "loss_spike, tensor_jump"
    double *latencies;  // [found], owned, sorted
} keel_lab_tally;

typedef struct keel_lab_report {
    keel_lab_tally *faults; // owned
    size_t fault_count;
    uint64_t healthy_runs, healthy_steps, criticals, warnings;
} keel_lab_report;

// Runs it all, as many trainings at a time as there are cores for. KEEL_ERR_IO where SIGINT or SIGTERM came:
// children are ended and the temporary folder is gone. The first training that fails ends it as well.
keel_status keel_lab(const keel_lab_options *options, keel_lab_report *report);
void keel_lab_report_free(keel_lab_report *report);
int keel_lab_stop_signal(void); // that came; 0: none

double keel_lab_median(const double *sorted, size_t count); // NaN of nothing
// The greatest rate, per step, that COUNT alarms in STEPS steps leave possible with 95 percent (Poisson, one-sided):
// 3 / STEPS where there was none.
double keel_lab_bound(uint64_t count, uint64_t steps);

#endif
