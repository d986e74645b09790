// A detector: one rule, one file in analyzers/detect/, one vtable in the table of analyzers/rules.c. It reads rows only; it keeps its own
// state; it emits findings, which incident.c groups. detect/template.c is a commented example that is compiled and tested.
#ifndef KEEL_ANALYZERS_DETECTOR_H
#define KEEL_ANALYZERS_DETECTOR_H

#include "collectors/incident.h"
#include "collectors/row.h"

// What a detector says of one row. Findings of one trouble are grouped into incidents by step, series and data flow.
typedef struct keel_finding {
    const char *rule;
    keel_severity severity;
    const char *series;   // scalar or op name
    int64_t site;         // site id; -1: a scalar
    int64_t rank;         // -1: unknown
    uint64_t first_step;  // when this trouble began, as far as the detector knows
    uint64_t peak_step;
    uint64_t step;        // present step
    double value, expected, score; // at the peak
    bool closed;          // the trouble is over as of this step
    uint32_t key;         // the detector's own number of the trouble: findings with one (rule, series, site, key) continue one another
    const char *message;  // a plain sentence; NULL: made from the other fields
} keel_finding;

typedef struct keel_findings keel_findings; // collects the findings of a row
void keel_findings_add(keel_findings *findings, const keel_finding *finding);

// Parameters of a rule, by name: number with default and range. A rule's keys in the monitor's YAML.
typedef struct keel_param_info {
    const char *key;
    double value, min, max; // default and range
    const char *doc;
} keel_param_info;

typedef struct keel_detector {
    const char *rule;             // "loss_spike"
    const char *doc;              // one line
    const keel_param_info *params;
    size_t param_count;
    // PARAMS: values in the order of the table. INFO: tables of the run; on a new segment of the same run init is not called again but
    // remap is, when tables changed.
    keel_status (*init)(const keel_run_info *info, const double *params, void **state);
    // One step, scored before it joins any history.
    void (*update)(void *state, const keel_run_info *info, const keel_row *row, keel_findings *findings);
    // State to and from bytes that a checkpoint holds: exactly the same state comes back. save: *bytes malloc'ed.
    keel_status (*save)(const void *state, void **bytes, size_t *size);
    keel_status (*load)(void *state, const void *bytes, size_t size);
    void (*free)(void *state);
} keel_detector;

#endif
