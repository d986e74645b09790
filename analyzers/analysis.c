#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "analyzers/group.h"
#include "analyzers/online.h"
#include "analyzers/rules.h"

#define STATE_MAGIC UINT64_C(0x3276656c6b656c61) // the second version of the saved state

// What the analysis itself remembers of the rows. Plain memory.
typedef struct progress {
    uint64_t records, first_step, last_step;
    uint64_t last_hash; // of the last row's scalars
    uint64_t dropped_steps;
    keel_health health;
    keel_run_facts facts;
} progress;

struct keel_analysis {
    keel_rules *rules;
    keel_group *group;
    const keel_run_info *info;
    progress at;
    keel_findings findings;
};

keel_status keel_analysis_open(const keel_monitor_config *config, keel_analysis **out) {
    keel_analysis *analysis = calloc(1, sizeof *analysis);
    if (!analysis) return keel_fail(KEEL_ERR_MEMORY, "no memory for the analysis");
    keel_status status = keel_rules_open(config, &analysis->rules);
    if (!status) status = keel_group_open(&analysis->group);
    if (status) {
        keel_analysis_close(analysis);
        return status;
    }
    keel_run_facts_init(&analysis->at.facts);
    *out = analysis;
    return KEEL_OK;
}

void keel_analysis_close(keel_analysis *analysis) {
    if (!analysis) return;
    keel_rules_close(analysis->rules);
    keel_group_close(analysis->group);
    free(analysis);
}

keel_status keel_analysis_configure(keel_analysis *analysis, const keel_monitor_config *config) {
    return keel_rules_configure(analysis->rules, config);
}

keel_status keel_analysis_start(keel_analysis *analysis, const keel_run_info *info) {
    analysis->info = info;
    return keel_rules_start(analysis->rules, info);
}

static uint64_t hash_scalars(const keel_analysis *a, const keel_row *row) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (uint32_t i = 0; i < a->info->scalar_count; i++) {
        uint64_t bits;
        memcpy(&bits, &row->scalars[i], sizeof bits);
        if (!row->scalar_set[i]) bits = UINT64_MAX;
        hash = (hash ^ bits ^ (hash >> 29)) * UINT64_C(1099511628211);
    }
    return hash;
}

// A row that only says that a step was lost.
static bool is_without_values(const keel_analysis *a, const keel_row *row) {
    if (!(row->step.flags & KEEL_STEP_DROPPED)) return false;
    for (uint32_t i = 0; i < a->info->scalar_count; i++)
        if (row->scalar_set[i]) return false;
    return true;
}

static keel_status group_row(keel_analysis *a) {
    const keel_run_view run = {.info = a->info,
                               .index = keel_rules_index(a->rules),
                               .settings = keel_rules_settings(a->rules),
                               .facts = &a->at.facts};
    return keel_group_row(a->group, &run, &a->findings, a->at.records);
}

static void count_open(keel_analysis *a) {
    size_t changed;
    keel_group_changed(a->group, &changed);
    if (changed == 0) return;
    a->at.health.open_warnings = keel_group_open_count(a->group, KEEL_WARNING);
    a->at.health.open_criticals = keel_group_open_count(a->group, KEEL_CRITICAL);
}

// What findings between two rows make.
static keel_status group_between(keel_analysis *a) {
    keel_status status = group_row(a);
    count_open(a);
    return status;
}

keel_status keel_analysis_watch(keel_analysis *a, double seconds, const keel_host_event *waited_for) {
    keel_rules_watch(a->rules, seconds, waited_for, &a->findings);
    return group_between(a);
}

keel_status keel_analysis_event(keel_analysis *a, const keel_host_event *event) {
    keel_rules_event(a->rules, event, &a->findings);
    return group_between(a);
}

double keel_analysis_param(const keel_analysis *a, const char *rule, const char *key) {
    return keel_rules_param(a->rules, rule, key);
}

keel_status keel_analysis_adopt(keel_analysis *a, const keel_incident *incident) {
    return keel_group_adopt(a->group, incident);
}

keel_status keel_analysis_row(keel_analysis *a, const keel_row *row) {
    progress *at = &a->at;
    uint64_t step = row->step.step, hash = hash_scalars(a, row);
    bool repeated = at->records > 0 && step == at->last_step && hash == at->last_hash && a->info->site_count == 0;
    a->findings.count = 0;
    at->dropped_steps += row->dropped_frames;
    if (is_without_values(a, row)) {
        at->dropped_steps++;
        at->last_step = at->health.judged_step = step;
        return group_row(a);
    }
    if (!repeated) {
        bool resumed = (row->step.flags & KEEL_STEP_RESUMED) || (at->records > 0 && step < at->last_step);
        keel_run_facts_add(&at->facts, a->info, row);
        keel_rules_row(a->rules, row, at->records, resumed, &a->findings);
    }
    keel_status status = group_row(a);
    count_open(a);
    bool quiet = at->health.open_warnings + at->health.open_criticals == 0;
    at->health.quiet_steps = quiet ? at->health.quiet_steps + 1 : 0;
    at->health.judged_step = step;
    if (at->records == 0 || step < at->first_step) at->first_step = step;
    at->last_step = step;
    at->last_hash = hash;
    at->records++;
    return status;
}

const keel_incident *const *keel_analysis_changed(const keel_analysis *a, size_t *count) {
    return keel_group_changed(a->group, count);
}

const keel_incident *keel_analysis_incidents(const keel_analysis *a, size_t *count) {
    return keel_group_incidents(a->group, count);
}

const keel_incident_extra *keel_analysis_extra(const keel_analysis *a, size_t index) {
    return keel_group_extra(a->group, index);
}

keel_health keel_analysis_health(const keel_analysis *a) {
    return a->at.health;
}
uint64_t keel_analysis_records(const keel_analysis *a) {
    return a->at.records;
}
uint64_t keel_analysis_first_step(const keel_analysis *a) {
    return a->at.first_step;
}
uint64_t keel_analysis_last_step(const keel_analysis *a) {
    return a->at.last_step;
}
uint64_t keel_analysis_dropped_steps(const keel_analysis *a) {
    return a->at.dropped_steps;
}
void keel_analysis_set_last_id(keel_analysis *a, uint32_t last) {
    keel_group_set_last_id(a->group, last);
}

// The CRC-32 behind the state: detectors take it up by its bytes, which must be those that one of them has saved.
static uint64_t checksum(const void *bytes, size_t size) {
    return crc32_z(0, bytes, size);
}

keel_status keel_analysis_save(const keel_analysis *a, void **bytes, size_t *size) {
    keel_state_writer w = {0};
    keel_state_write_u64(&w, STATE_MAGIC);
    keel_state_write_u64(&w, sizeof a->at);
    keel_state_write(&w, &a->at, sizeof a->at);
    keel_rules_save(a->rules, &w);
    keel_group_save(a->group, &w);
    if (!w.status) keel_state_write_u64(&w, checksum(w.bytes, w.size));
    if (w.status) {
        free(w.bytes);
        return w.status;
    }
    *bytes = w.bytes;
    *size = w.size;
    return KEEL_OK;
}

// Takes the checksum off the end of R, which reads the SIZE of BYTES.
static keel_status check_whole(const void *bytes, size_t size, keel_state_reader *r) {
    uint64_t sum;
    if (r->left < sizeof sum) return keel_fail(KEEL_ERR_FORMAT, "detector state ends too early");
    r->left -= sizeof sum;
    memcpy(&sum, r->bytes + r->left, sizeof sum);
    if (sum == checksum(bytes, size - sizeof sum)) return KEEL_OK;
    return keel_fail(KEEL_ERR_FORMAT, "detector state is damaged: its checksum is not that of its bytes");
}

// The state of BYTES, with a group of its own. STEP: the last that it has seen, where that is known. On failure A is as
// before.
static keel_status read_state(keel_analysis *a, const uint64_t *step, const void *bytes, size_t size,
                              keel_group **group) {
    keel_state_reader r = {.bytes = bytes, .left = size}, rules;
    progress at;
    keel_status status = keel_state_expect(&r, STATE_MAGIC, "its kind");
    if (!status) status = check_whole(bytes, size, &r);
    if (!status) status = keel_state_expect(&r, sizeof at, "the size of its head");
    if (!status) status = keel_state_read(&r, &at, sizeof at);
    if (!status && step && at.last_step != *step)
        status = keel_fail(KEEL_ERR_FORMAT, "detector state is of step %" PRIu64 ", the checkpoint of step %" PRIu64,
                           at.last_step, *step);
    rules = r;
    if (!status) status = keel_rules_skip(&r);
    if (!status) status = keel_group_open(group);
    if (status) return status;
    status = keel_group_load(*group, &r);
    if (!status && r.left) status = keel_fail(KEEL_ERR_FORMAT, "detector state is %zu bytes too long", r.left);
    if (!status) status = keel_rules_load(a->rules, &rules);
    if (status) {
        keel_group_close(*group);
        return status;
    }
    a->at = at;
    return KEEL_OK;
}

keel_status keel_analysis_load(keel_analysis *a, uint64_t step, const void *bytes, size_t size) {
    keel_group *group;
    keel_status status = read_state(a, &step, bytes, size, &group);
    if (status) return status;
    keel_group_set_last_id(group, keel_group_last_id(a->group));
    keel_group_close(a->group);
    a->group = group;
    return KEEL_OK;
}

keel_status keel_analysis_rewind(keel_analysis *a, const void *bytes, size_t size) {
    keel_group *group;
    keel_status status = read_state(a, NULL, bytes, size, &group);
    if (!status && (status = keel_group_keep_discarded(group, a->group))) keel_group_close(group);
    if (status) return status;
    keel_group_close(a->group);
    a->group = group;
    return KEEL_OK;
}
