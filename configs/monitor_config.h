// The monitor's YAML: what to observe, when, where to keep it, which rules judge it, whom to tell.
// docs/monitor.md describes every key; configs/monitor.yaml and monitor-full.yaml are the shipped presets.
#ifndef KEEL_CONFIGS_MONITOR_CONFIG_H
#define KEEL_CONFIGS_MONITOR_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "configs/yaml.h"

KEEL_C_BEGIN

// One entry of monitor.select; of all entries that match a site, the last one decides.
typedef struct keel_select_config {
    char **quantities; // names as in probe/site.h; empty: all
    size_t quantity_count;
    char *sites; // PCRE2 regular expression searched in the site's name; NULL: all
    char **ops;  // names as in probe/stats_ops.def, or precision (the three not_*), rank (norm_low..log_norm_std), all;
                 // empty list: flags only
    size_t op_count;
    int64_t start, every, count; // schedule; every 0: non-finite flags alone
    double eps;                  // near_zero
    bool per_micro_batch;
    bool all_ranks; // every rank's own values are kept as well
    int64_t *ranks; // or those of these, ascending
    size_t rank_count;
    bool enabled;               // false: these sites are not looked at at all
    const keel_yaml_node *node; // the entry, for error messages ("quantities", "sites", "ops", "ranks" are its
                                // children); NULL: a built-in default
} keel_select_config;

// rules.NAME: every parameter of a rule is a number or a switch; the rule's own file knows its keys, defaults and
// ranges.
typedef struct keel_rule_param {
    char *rule, *key;
    double value;               // true 1, false 0
    const keel_yaml_node *node; // for error messages
} keel_rule_param;

typedef struct keel_monitor_config {
    keel_yaml *doc; // owned: the document the config was read from; NULL after keel_monitor_config_section
    bool enabled;
    char *output; // run directory; NULL: the caller's choice
    keel_select_config *select;
    size_t select_count;
    int64_t queue_depth;          // merged frames that may wait for the writer thread; 8
    int64_t segment_bytes;        // a store segment is closed at this size; 1 GiB
    double merge_timeout_seconds; // a merge that outlives it is abandoned; 300
    double hang_timeout_seconds;  // a job in which a rank is silent for so long is ended; 1800; 0: never
    keel_rule_param *params;      // rules.*
    size_t param_count;
    bool alert_log;   // alerts to the log
    char **exec_argv; // alerts.exec.command, NULL-terminated; NULL: none
    double exec_timeout_seconds;
    int alert_min_severity; // 1 warning, 2 critical; as in an incident, where 0 is info, which is never sent
    bool stop_on_critical;  // the trainer stops at the next step border with a checkpoint refused; false
} keel_monitor_config;

// Reads top-level key `monitor` of the file, in which the trainer's sections may stand too; PATH NULL: the defaults.
// OVERRIDES are "monitor.key=value" assignments, all others are an error.
KEEL_API keel_status keel_monitor_config_load(const char *path, const char *const *overrides, size_t count,
                                              keel_monitor_config **config);
// The same from a document that has `monitor` at its top, which is taken over (also on failure).
KEEL_API keel_status keel_monitor_config_read(keel_yaml *doc, keel_monitor_config **config);
// The same from the value of key `monitor` (NULL: the defaults) of a document that stays the caller's and must outlive
// the config.
KEEL_API keel_status keel_monitor_config_section(const keel_yaml_node *monitor, keel_monitor_config **config);
// The defaults, as with an empty file: what configs/monitor.yaml says.
KEEL_API keel_status keel_monitor_config_default(keel_monitor_config **config);
KEEL_API void keel_monitor_config_free(keel_monitor_config *config);

KEEL_C_END

#endif
