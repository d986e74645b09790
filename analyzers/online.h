// The analysis of a run: every enabled rule, over rows in order; findings grouped into incidents. The same object
// judges live (as a keel_judge of the monitor, on its writer thread) and later (offline.h feeds it stored rows): byte
// for byte the same incidents.
#ifndef KEEL_ANALYZERS_ONLINE_H
#define KEEL_ANALYZERS_ONLINE_H

#include "analyzers/group.h"
#include "collectors/monitor.h"
#include "configs/monitor_config.h"

typedef struct keel_analysis keel_analysis;

// CONFIG: rules and their parameters are read from it; unknown rules or keys are KEEL_ERR_CONFIG with the place. NULL:
// all defaults. Not kept.
keel_status keel_analysis_open(const keel_monitor_config *config, keel_analysis **analysis);
void keel_analysis_close(keel_analysis *analysis);
// The same over an analysis that goes on: what it has seen stays. It is as before on failure.
keel_status keel_analysis_configure(keel_analysis *analysis, const keel_monitor_config *config);
// Tables of the run, or of its next segment. INFO is kept until the next start.
keel_status keel_analysis_start(keel_analysis *analysis, const keel_run_info *info);
// Judges a row; incidents that are new or changed are then listed (valid until the next call). A row that says the same
// of the same step as the one before it (a line that every rank printed) is passed over.
keel_status keel_analysis_row(keel_analysis *analysis, const keel_row *row);
const keel_incident *const *keel_analysis_changed(const keel_analysis *analysis, size_t *count);
// No row came, and a step goes on for SECONDS already: what has changed is listed as by a row. WAITED_FOR: by what a
// rank's fellows know; NULL: nothing.
keel_status keel_analysis_watch(keel_analysis *analysis, double seconds, const keel_host_event *waited_for);
// What a rank's fellows saw of its end, between two rows; what has changed is listed as by a row.
keel_status keel_analysis_event(keel_analysis *analysis, const keel_host_event *event);
// A parameter of a rule as configured; 0 where the rule is not enabled.
double keel_analysis_param(const keel_analysis *analysis, const char *rule, const char *key);
// An incident that was found live and that rows do not show: a hang that the run did not outlive.
keel_status keel_analysis_adopt(keel_analysis *analysis, const keel_incident *incident);
// All incidents so far, in the order in which they began to be seen. Owned by the analysis.
const keel_incident *keel_analysis_incidents(const keel_analysis *analysis, size_t *count);
// What the incident of this index says beyond that.
const keel_incident_extra *keel_analysis_extra(const keel_analysis *analysis, size_t index);
keel_health keel_analysis_health(const keel_analysis *analysis);
uint64_t keel_analysis_records(const keel_analysis *analysis);    // rows judged
uint64_t keel_analysis_first_step(const keel_analysis *analysis); // the least; 0: none
uint64_t keel_analysis_last_step(const keel_analysis *analysis);  // of the last row
// Steps that were not recorded: lost before a row, or a row without values (flagged KEEL_STEP_DROPPED, no scalar set),
// which is not judged and does not count as a record.
uint64_t keel_analysis_dropped_steps(const keel_analysis *analysis);

// BYTES is malloc'ed, the caller's. The state that goes on exactly as this one would.
keel_status keel_analysis_save(const keel_analysis *analysis, void **bytes, size_t *size);
// After start. KEEL_ERR_FORMAT for what another version saved, is damaged or has not seen STEP last; the analysis is
// then as before. Ids of incidents go on after the greatest that either side has given.
keel_status keel_analysis_load(keel_analysis *analysis, uint64_t step, const void *bytes, size_t size);
// The same, but what was found since that state was saved is kept, marked as discarded: the run was rolled back to it.
keel_status keel_analysis_rewind(keel_analysis *analysis, const void *bytes, size_t size);
// Incident ids of this analysis begin after LAST (a run that continues has ids already).
void keel_analysis_set_last_id(keel_analysis *analysis, uint32_t last);

// A judge for the monitor: emits changed incidents through keel_monitor_emit. Takes ANALYSIS over.
keel_status keel_online_judge(keel_analysis *analysis, keel_monitor *monitor, keel_judge *judge);

#endif
