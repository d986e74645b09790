// Findings that belong together become one incident, over series and steps.
//
// A finding continues the incident that holds its (rule, series, key). A new one joins an incident that is still going
// on or whose last finding is at most its rule's reach ago; else it starts an incident. An incident is over when all
// its troubles are, and is opened again by a finding that continues one of them. Memory grows with the number of
// incidents only.
#ifndef KEEL_ANALYZERS_GROUP_H
#define KEEL_ANALYZERS_GROUP_H

#include "analyzers/detector.h"
#include "analyzers/run_facts.h"
#include "analyzers/state_bytes.h"

// One trouble of an incident: all findings of a rule on a series in it.
typedef struct keel_trouble {
    uint32_t rule; // index in the table of rules
    uint32_t key;
    uint32_t closed;
    uint32_t bursts;   // how many keys it has taken up
    uint32_t peak_key; // of the burst whose finding is the worst so far: what the peak is of
    keel_severity severity, peak_severity;
    int32_t rank; // of the latest finding that names one; -1: none does
    int32_t flow; // place of its site in the order of the data flow; -1: it has none
    uint64_t first_step, peak_step, last_step;
    uint64_t first_record, last_record;
    uint64_t skipped; // as in the latest finding
    double value, expected, score;
    char series[KEEL_RULE_BYTES];
    char site[KEEL_INCIDENT_SITE_BYTES]; // "NAME:QUANTITY" of the first finding's; "": a scalar. Ids change with
                                         // segments
    char clause[KEEL_CLAUSE_BYTES];
} keel_trouble;

// What an incident says beyond its stored form.
typedef struct keel_incident_extra {
    uint64_t skipped;   // updates skipped by what leads it, where that kept it out of the parameters; else 0
    uint32_t discarded; // 1: of a part of the run that was rolled back
    uint32_t evidence_count;
    char evidence[KEEL_EVIDENCE_MAX][KEEL_EVIDENCE_BYTES];
} keel_incident_extra;

typedef struct keel_finding_entry {
    uint32_t rule;
    keel_finding finding;
    char clause[KEEL_CLAUSE_BYTES];
} keel_finding_entry;

enum { KEEL_FINDINGS_MAX = 256 }; // of one row; more are dropped: by then the first ones tell

struct keel_findings {
    uint32_t rule; // of the detector that is at work
    uint32_t count;
    keel_finding_entry entries[KEEL_FINDINGS_MAX];
};

typedef struct keel_group keel_group;

keel_status keel_group_open(keel_group **group);
void keel_group_close(keel_group *group);
// Takes the findings of row RECORD.
keel_status keel_group_row(keel_group *group, const keel_run_view *run, const keel_findings *findings, uint64_t record);
// New or changed since the row began: by severity, members, place, extent of the peak, or being over. Valid until the
// next call.
const keel_incident *const *keel_group_changed(const keel_group *group, size_t *count);
const keel_incident *keel_group_incidents(const keel_group *group, size_t *count);
const keel_incident_extra *keel_group_extra(const keel_group *group, size_t index);
uint32_t keel_group_open_count(const keel_group *group, keel_severity severity); // incidents that go on now
void keel_group_set_last_id(keel_group *group, uint32_t last);
uint32_t keel_group_last_id(const keel_group *group);

// Takes an incident that was found elsewhere as it is; under another id, where its own is taken.
keel_status keel_group_adopt(keel_group *group, const keel_incident *incident);

void keel_group_save(const keel_group *group, keel_state_writer *writer);
keel_status keel_group_load(keel_group *group, keel_state_reader *reader);
// The incidents of OTHER that GROUP does not have, or has in an earlier form, are kept beside GROUP's, marked as
// discarded.
keel_status keel_group_keep_discarded(keel_group *group, const keel_group *other);

#endif
