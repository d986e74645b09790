// A detector: one rule, one file in analyzers/detect/, one row in the table of analyzers/rules.c. It reads rows only,
// keeps its state in plain memory, and emits findings, which group.c makes into incidents. detect/template.c is a
// commented example that is compiled and tested.
#ifndef KEEL_ANALYZERS_DETECTOR_H
#define KEEL_ANALYZERS_DETECTOR_H

#include "analyzers/run_settings.h"
#include "analyzers/site_index.h"
#include "collectors/incident.h"
#include "collectors/row.h"
#include "collectors/watch/host_event.h"

enum { KEEL_EVIDENCE_BYTES = 192, KEEL_EVIDENCE_MAX = 8, KEEL_CLAUSE_BYTES = 240 };

// What a detector says of one row: a new trouble, or what became of one that it reported before. A trouble is repeated
// with each row as long as it lasts; findings of one (rule, series, key) continue one another.
typedef struct keel_finding {
    const char *series; // scalar or op name; valid during the row
    keel_severity severity;
    uint32_t key;        // the detector's own number of the trouble
    bool closed;         // it is over as of this step
    bool at_once;        // it begins and is over with this finding; closed too
    int64_t site;        // site id; -1: a scalar
    int64_t rank;        // -1: unknown
    uint64_t skipped;    // updates skipped in it, where that kept it out of the parameters; else 0
    uint64_t first_step; // when it began, as far as the detector knows
    uint64_t peak_step, last_step;
    double value, expected, score; // at the peak
    const char *clause; // what happened, as part of a sentence: "loss jumped from 3.1 to 7.4 at step 919"; copied
    const char (*evidence)[KEEL_EVIDENCE_BYTES]; // lines that show it, in the order of the data flow; NULL: none; valid
                                                 // until the next row
    uint32_t evidence_count;                     // at most KEEL_EVIDENCE_MAX
} keel_finding;

typedef struct keel_findings keel_findings; // collects the findings of a row
void keel_findings_add(keel_findings *findings, const keel_finding *finding);

// A parameter of a rule: a key of rules.NAME in the monitor's YAML.
typedef struct keel_param_info {
    const char *key;
    double value, min, max; // default and range
    const char *doc;
} keel_param_info;

// What a detector sees of one row.
typedef struct keel_detector_input {
    const keel_run_info *info;
    const keel_site_index *index;
    const keel_run_settings *settings;
    const keel_row *row;
    const double *params; // in the order of the detector's table
    uint64_t record;      // rows before this one
    bool resumed;         // the run was resumed before this row: by its flag, or since its step goes back
    void *sites;          // [info->site_count] parts of the state, where site_bytes is not 0
} keel_detector_input;

// How a rule's findings take part in incidents.
typedef enum keel_link {
    KEEL_LINK_EVENT,   // joins what happens at the same time
    KEEL_LINK_CONTEXT, // the same, and names the incident when nothing began before it, if it is more than a note
    KEEL_LINK_ALONE,   // a state of the run, such as a plateau
} keel_link;

typedef struct keel_detector {
    const char *rule; // "loss_spike"
    const char *doc;  // one line
    const keel_param_info *params;
    uint32_t param_count;
    keel_link link;
    bool from_outside; // begins by itself: joins no incident that began before its reach
    uint32_t reach;    // records after its last finding in which others may still join it
    uint64_t ops;      // bit keel_op: the ops of sites that it reads; of a store only what rules read is fetched
    // The state is plain memory without pointers, zeroed before init: a head, and a part per site. The framework saves
    // and restores it by its bytes, and moves the parts when a new segment of the run numbers its sites anew.
    size_t state_bytes, site_bytes;
    // NULL: zeros are fine.
    void (*init)(void *state);
    void (*init_site)(void *part);
    // Tables of the run, or of its next segment, or after a state was loaded: look up ids here.
    void (*start)(void *state, const keel_run_info *info);
    // One row: score before anything joins a history. Must not fail, allocate or block.
    void (*update)(void *state, const keel_detector_input *input, keel_findings *findings);
    // Live only: some times a second while a step goes on for SECONDS already; WAITED_FOR: NULL where that is not
    // known. INPUT has no row. NULL: not interested.
    void (*watch)(void *state, const keel_detector_input *input, double seconds, const keel_host_event *waited_for,
                  keel_findings *findings);
    // What a rank's fellows saw of its end, between two rows. INPUT has no row. NULL: not interested.
    void (*event)(void *state, const keel_detector_input *input, const keel_host_event *event, keel_findings *findings);
} keel_detector;

// The scalar with index ID (-1: the run has none) where the row sets it.
static inline bool keel_row_scalar(const keel_row *row, int32_t id, double *value) {
    if (id < 0 || !row->scalar_set[id]) return false;
    *value = row->scalars[id];
    return true;
}

#endif
