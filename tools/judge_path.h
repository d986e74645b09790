// Judges what a path holds: a run directory, an .h5 file, or a log of another trainer with one or several runs.
#ifndef KEEL_TOOLS_JUDGE_PATH_H
#define KEEL_TOOLS_JUDGE_PATH_H

#include "analyzers/report/report.h"
#include "tools/import/import.h"

typedef struct keel_judged {
    const char *path;      // as given
    keel_import *import;   // NULL for a store
    keel_result **results; // one per run, in the order of the file
    size_t count;
} keel_judged;

typedef struct keel_judge_options {
    const keel_monitor_config *config; // NULL: the run's own, else the defaults
    const keel_import_options *import; // NULL: defaults
    size_t run;                        // from 1; 0: all
} keel_judge_options;

// "-" is standard input. The text of a failure begins with the path.
keel_status keel_judge_path(const char *path, const keel_judge_options *options, keel_judged *judged);
void keel_judged_free(keel_judged *judged);
// The run to speak of first.
const keel_result *keel_judged_worst(const keel_judged *judged);
// The greatest severity of its incidents; -1 where there are none.
int keel_judged_severity(const keel_judged *judged);

#endif
