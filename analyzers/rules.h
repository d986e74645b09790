// The table of rules, and the set of them that judges one run: parameters, states, and the way of a row through them.
#ifndef KEEL_ANALYZERS_RULES_H
#define KEEL_ANALYZERS_RULES_H

#include <stdio.h>

#include "analyzers/detector.h"
#include "analyzers/state_bytes.h"
#include "configs/monitor_config.h"

// All rules, in the order in which they judge. Where several take part in an incident of one severity, the earliest
// names it.
extern const keel_detector *const keel_rule_table[];
extern const uint32_t keel_rule_count;

typedef struct keel_rules keel_rules;

// CONFIG NULL: defaults. A rule or key that does not exist, and a value out of range, are KEEL_ERR_CONFIG with the
// place.
keel_status keel_rules_open(const keel_monitor_config *config, keel_rules **rules);
// The same for rules that go on: their states stay. They are as before on failure.
keel_status keel_rules_configure(keel_rules *rules, const keel_monitor_config *config);
void keel_rules_close(keel_rules *rules);
// Tables of the run, or of its next segment: what is known of a site is kept under its name and quantity.
keel_status keel_rules_start(keel_rules *rules, const keel_run_info *info);
// Of the tables given to start, and valid until its next call.
const keel_site_index *keel_rules_index(const keel_rules *rules);
const keel_run_settings *keel_rules_settings(const keel_rules *rules);
// Sets OPS[op] for every op of a site that some rule reads, clears the others.
void keel_rules_ops(bool ops[KEEL_OP_COUNT]);
// FINDINGS is emptied first.
void keel_rules_row(keel_rules *rules, const keel_row *row, uint64_t record, bool resumed, keel_findings *findings);
// No row came, and a step goes on for SECONDS already.
void keel_rules_watch(keel_rules *rules, double seconds, const keel_host_event *waited_for, keel_findings *findings);
void keel_rules_event(keel_rules *rules, const keel_host_event *event, keel_findings *findings);
// The present value of a parameter that there is; 0 where the rule is not enabled.
double keel_rules_param(const keel_rules *rules, const char *rule, const char *key);
void keel_rules_save(const keel_rules *rules, keel_state_writer *writer);
keel_status keel_rules_skip(keel_state_reader *reader);                    // past a state that load would take
keel_status keel_rules_load(keel_rules *rules, keel_state_reader *reader); // after start

// One line per rule and parameter, for people: "loss_spike.z  8  [3, 1000]  ...".
void keel_rules_describe(FILE *out);

#endif
