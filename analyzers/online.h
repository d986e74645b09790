// The analysis of a run: every enabled rule, over rows in order; findings grouped into incidents. The same object judges live (as a keel_judge of the
// monitor, on its writer thread) and later (offline.h feeds it stored rows): byte for byte the same incidents.
#ifndef KEEL_ANALYZERS_ONLINE_H
#define KEEL_ANALYZERS_ONLINE_H

#include "collectors/monitor.h"
#include "configs/monitor_config.h"

typedef struct keel_analysis keel_analysis;

// CONFIG: rules and their parameters are read from it; unknown rules or keys are KEEL_ERR_CONFIG with the place. NULL: all defaults.
keel_status keel_analysis_open(const keel_monitor_config *config, keel_analysis **analysis);
void keel_analysis_close(keel_analysis *analysis);
// Tables of the run, or of its next segment.
keel_status keel_analysis_start(keel_analysis *analysis, const keel_run_info *info);
// Judges a row; incidents that are new or changed are then listed (valid until the next call).
keel_status keel_analysis_row(keel_analysis *analysis, const keel_row *row);
const keel_incident *const *keel_analysis_changed(const keel_analysis *analysis, size_t *count);
// The run is over: incidents that wait for more evidence get their final form.
void keel_analysis_finish(keel_analysis *analysis);
// All incidents so far, by id. Owned by the analysis.
const keel_incident *keel_analysis_incidents(const keel_analysis *analysis, size_t *count);
keel_health keel_analysis_health(const keel_analysis *analysis);
keel_status keel_analysis_save(const keel_analysis *analysis, void **bytes, size_t *size);
keel_status keel_analysis_load(keel_analysis *analysis, const void *bytes, size_t size);
// Incident ids of this analysis begin after LAST (a run that continues has ids already).
void keel_analysis_set_last_id(keel_analysis *analysis, uint32_t last);

// A judge for the monitor: emits changed incidents through keel_monitor_emit. Takes ANALYSIS over.
keel_status keel_online_judge(keel_analysis *analysis, keel_monitor *monitor, keel_judge *judge);

#endif
