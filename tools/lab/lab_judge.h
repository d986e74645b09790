// What was found in a run, when, where, and what it was taken for.
#ifndef KEEL_TOOLS_LAB_LAB_JUDGE_H
#define KEEL_TOOLS_LAB_LAB_JUDGE_H

#include "collectors/incident.h"
#include "tools/lab/lab_case.h"

typedef struct keel_lab_outcome {
    uint64_t steps;               // judged
    uint64_t warnings, criticals; // incidents of that severity
    uint64_t early;               // of these, alerted before the onset of a fault
    // The first alert, from the onset on, of a rule that finds the fault.
    bool found;
    uint64_t alert_step;    // after whose row it went out
    keel_incident incident; // in its last form
    bool site_right, rank_right;
    bool cause_first; // of the alerts from the onset on, the first whose cause is not unknown names the right one
    char other[512];  // for a run that was missed, and a healthy one: what was alerted instead; "" for nothing
} keel_lab_outcome;

// Judges the store of PATH by its own settings. An alert goes out when an incident is a warning or worse. KEEL_ERR_IO
// if the store lacks steps that were made, since the run would not show what it was asked.
keel_status keel_lab_judge(const char *path, const keel_lab_case *lab_case, keel_lab_outcome *outcome);

#endif
