#include "analyzers/rules.h"

#include <stdlib.h>
#include <string.h>

#include "analyzers/clipped_text.h"
#include "analyzers/detect/detectors.h"
#include "analyzers/group.h"

const keel_detector *const keel_rule_table[] = {
    &keel_detect_dead_rank,
    &keel_detect_hang,
    &keel_detect_nonfinite,
    &keel_detect_replica_divergence,
    &keel_detect_rank_outlier,
    &keel_detect_resume_discontinuity,
    &keel_detect_data_order,
    &keel_detect_loss_divergence,
    &keel_detect_loss_spike,
    &keel_detect_loss_scale_collapse,
    &keel_detect_fp16_overflow,
    &keel_detect_fp16_underflow,
    &keel_detect_stale_second_moment,
    &keel_detect_fake_float32,
    &keel_detect_dead_unit,
    &keel_detect_initialisation,
    &keel_detect_attention_logit_growth,
    &keel_detect_vanishing_gradient,
    &keel_detect_router_collapse,
    &keel_detect_drop_rate,
    &keel_detect_update_ratio,
    &keel_detect_grad_norm_spike,
    &keel_detect_tensor_jump,
    &keel_detect_tensor_trend,
    &keel_detect_lr_jump,
    &keel_detect_straggler,
    &keel_detect_memory_growth,
    &keel_detect_clip_ineffective,
    &keel_detect_clip_constant,
    &keel_detect_precision_policy,
    &keel_detect_plateau,
};
enum { RULES = sizeof keel_rule_table / sizeof *keel_rule_table, MAX_PARAMS = 16 };
const uint32_t keel_rule_count = RULES;

typedef struct rule_settings {
    bool enabled[RULES];
    double params[RULES][MAX_PARAMS];
} rule_settings;

struct keel_rules {
    rule_settings set;
    unsigned char *head[RULES];
    unsigned char *parts[RULES]; // [site_count] of site_bytes
    const keel_run_info *info;   // borrowed; NULL before start
    keel_site_index index;
    keel_run_settings settings;
    uint64_t *site_keys; // [site_count]: what parts are kept under when the tables change
    uint32_t site_count;
};

void keel_findings_add(keel_findings *findings, const keel_finding *finding) {
    if (findings->count == KEEL_FINDINGS_MAX) return;
    keel_finding_entry *entry = &findings->entries[findings->count++];
    entry->rule = findings->rule;
    entry->finding = *finding;
    entry->clause[0] = 0;
    if (finding->clause) keel_text_append(entry->clause, sizeof entry->clause, "%s", finding->clause);
    entry->finding.clause = entry->clause;
}

// ---- parameters ----

static keel_status set_param(rule_settings *set, const keel_rule_param *p) {
    const char *names[RULES > MAX_PARAMS ? RULES : MAX_PARAMS + 1];
    uint32_t r = 0;
    for (; r < RULES && strcmp(keel_rule_table[r]->rule, p->rule) != 0; r++) names[r] = keel_rule_table[r]->rule;
    if (r == RULES)
        return keel_yaml_fail(p->node, "unknown rule '%.60s'; nearest known: %s", p->rule,
                              keel_yaml_nearest(p->rule, names, RULES));
    const keel_detector *d = keel_rule_table[r];
    if (strcmp(p->key, "enabled") == 0) {
        if (p->value != 0 && p->value != 1) return keel_yaml_fail(p->node, "expected true or false");
        set->enabled[r] = p->value != 0;
        return KEEL_OK;
    }
    uint32_t k = 0;
    for (; k < d->param_count && strcmp(d->params[k].key, p->key) != 0; k++) names[k] = d->params[k].key;
    if (k == d->param_count) {
        names[k] = "enabled";
        return keel_yaml_fail(p->node, "unknown key of rule %s; nearest known: %s", d->rule,
                              keel_yaml_nearest(p->key, names, d->param_count + 1));
    }
    if (!(p->value >= d->params[k].min && p->value <= d->params[k].max))
        return keel_yaml_fail(p->node, "%g is not between %g and %g", p->value, d->params[k].min, d->params[k].max);
    set->params[r][k] = p->value;
    return KEEL_OK;
}

keel_status keel_rules_configure(keel_rules *rules, const keel_monitor_config *config) {
    rule_settings set;
    for (uint32_t r = 0; r < RULES; r++) {
        const keel_detector *d = keel_rule_table[r];
        set.enabled[r] = true;
        for (uint32_t k = 0; k < d->param_count; k++) set.params[r][k] = d->params[k].value;
    }
    for (size_t i = 0; config && i < config->param_count; i++) {
        const keel_status status = set_param(&set, &config->params[i]);
        if (status) return status;
    }
    rules->set = set;
    return KEEL_OK;
}

static void init_part(const keel_detector *d, unsigned char *part) {
    memset(part, 0, d->site_bytes);
    if (d->init_site) d->init_site(part);
}

keel_status keel_rules_open(const keel_monitor_config *config, keel_rules **out) {
    keel_rules *rules = calloc(1, sizeof *rules);
    if (!rules) return keel_fail(KEEL_ERR_MEMORY, "no memory for the rules");
    keel_status status = KEEL_OK;
    for (uint32_t r = 0; r < RULES; r++) {
        const keel_detector *d = keel_rule_table[r];
        rules->head[r] = calloc(1, d->state_bytes);
        if (!rules->head[r]) {
            status = keel_fail(KEEL_ERR_MEMORY, "no memory for rule %s", d->rule);
            goto fail;
        }
        if (d->init) d->init(rules->head[r]);
    }
    if ((status = keel_rules_configure(rules, config))) goto fail;
    *out = rules;
    return KEEL_OK;
fail:
    keel_rules_close(rules);
    return status;
}

void keel_rules_close(keel_rules *rules) {
    if (!rules) return;
    for (uint32_t r = 0; r < RULES; r++) {
        free(rules->head[r]);
        free(rules->parts[r]);
    }
    free(rules->site_keys);
    keel_site_index_close(&rules->index);
    free(rules);
}

// ---- tables ----

typedef struct keyed_site {
    uint64_t key;
    uint32_t site;
} keyed_site;

static int compare_keys(const void *a, const void *b) {
    uint64_t x = ((const keyed_site *)a)->key, y = ((const keyed_site *)b)->key;
    return (x > y) - (x < y);
}

// New parts for COUNT sites; what OLD_PARTS knew of a site is kept. They are left to the caller.
static keel_status move_parts(const keel_detector *d, const uint64_t *keys, uint32_t count, const keyed_site *old,
                              uint32_t old_count, const unsigned char *old_parts, unsigned char **out) {
    unsigned char *parts = malloc((size_t)count * d->site_bytes + 1);
    if (!parts) return keel_fail(KEEL_ERR_MEMORY, "no memory for rule %s at %u sites", d->rule, count);
    for (uint32_t i = 0; i < count; i++) {
        unsigned char *part = parts + (size_t)i * d->site_bytes;
        keyed_site wanted = {.key = keys[i]};
        const keyed_site *found = old && old_parts ? bsearch(&wanted, old, old_count, sizeof *old, compare_keys) : NULL;
        if (found)
            memcpy(part, old_parts + (size_t)found->site * d->site_bytes, d->site_bytes);
        else
            init_part(d, part);
    }
    *out = parts;
    return KEEL_OK;
}

static keel_status sort_keys(const uint64_t *keys, uint32_t count, keyed_site **out) {
    keyed_site *sorted = malloc(((size_t)count + 1) * sizeof *sorted);
    if (!sorted) return keel_fail(KEEL_ERR_MEMORY, "no memory for %u sites", count);
    for (uint32_t i = 0; i < count; i++) sorted[i] = (keyed_site){keys[i], i};
    qsort(sorted, count, sizeof *sorted, compare_keys);
    *out = sorted;
    return KEEL_OK;
}

keel_status keel_rules_start(keel_rules *rules, const keel_run_info *info) {
    keyed_site *old = NULL;
    keel_status status = KEEL_OK;
    uint64_t *keys = malloc(((size_t)info->site_count + 1) * sizeof *keys);
    if (!keys) return keel_fail(KEEL_ERR_MEMORY, "no memory for %u sites", info->site_count);
    for (uint32_t i = 0; i < info->site_count; i++) keys[i] = keel_site_hash(&info->sites[i]);
    if ((status = sort_keys(rules->site_keys, rules->site_count, &old))) goto end;
    keel_site_index_close(&rules->index);
    if ((status = keel_site_index_open(info, &rules->index))) goto end;
    keel_run_settings_read(info, &rules->settings);
    for (uint32_t r = 0; r < RULES; r++) {
        const keel_detector *d = keel_rule_table[r];
        if (d->site_bytes) {
            unsigned char *parts;
            status = move_parts(d, keys, info->site_count, old, rules->site_count, rules->parts[r], &parts);
            if (status) goto end;
            free(rules->parts[r]);
            rules->parts[r] = parts;
        }
        if (d->start) d->start(rules->head[r], info);
    }
    free(rules->site_keys);
    rules->site_keys = keys;
    keys = NULL;
    rules->site_count = info->site_count;
    rules->info = info;
end:
    free(keys);
    free(old);
    return status;
}

const keel_site_index *keel_rules_index(const keel_rules *rules) {
    return &rules->index;
}

const keel_run_settings *keel_rules_settings(const keel_rules *rules) {
    return &rules->settings;
}

void keel_rules_ops(bool ops[KEEL_OP_COUNT]) {
    for (int op = 0; op < KEEL_OP_COUNT; op++) {
        ops[op] = false;
        for (uint32_t r = 0; r < RULES; r++) ops[op] |= (keel_rule_table[r]->ops >> op & 1) != 0;
    }
}

void keel_rules_row(keel_rules *rules, const keel_row *row, uint64_t record, bool resumed, keel_findings *findings) {
    findings->count = 0;
    for (uint32_t r = 0; r < RULES; r++) {
        if (!rules->set.enabled[r]) continue;
        findings->rule = r;
        const keel_detector_input input = {.info = rules->info,
                                           .index = &rules->index,
                                           .settings = &rules->settings,
                                           .row = row,
                                           .params = rules->set.params[r],
                                           .record = record,
                                           .resumed = resumed,
                                           .sites = rules->parts[r]};
        keel_rule_table[r]->update(rules->head[r], &input, findings);
    }
}

static keel_detector_input without_row(const keel_rules *rules, uint32_t r) {
    return (keel_detector_input){.info = rules->info,
                                 .index = &rules->index,
                                 .settings = &rules->settings,
                                 .params = rules->set.params[r],
                                 .sites = rules->parts[r]};
}

void keel_rules_watch(keel_rules *rules, double seconds, const keel_host_event *waited_for, keel_findings *findings) {
    findings->count = 0;
    for (uint32_t r = 0; r < RULES; r++) {
        if (!rules->set.enabled[r] || !keel_rule_table[r]->watch) continue;
        findings->rule = r;
        const keel_detector_input input = without_row(rules, r);
        keel_rule_table[r]->watch(rules->head[r], &input, seconds, waited_for, findings);
    }
}

void keel_rules_event(keel_rules *rules, const keel_host_event *event, keel_findings *findings) {
    findings->count = 0;
    for (uint32_t r = 0; r < RULES; r++) {
        if (!rules->set.enabled[r] || !keel_rule_table[r]->event) continue;
        findings->rule = r;
        const keel_detector_input input = without_row(rules, r);
        keel_rule_table[r]->event(rules->head[r], &input, event, findings);
    }
}

double keel_rules_param(const keel_rules *rules, const char *rule, const char *key) {
    for (uint32_t r = 0; r < RULES; r++)
        for (uint32_t k = 0; k < keel_rule_table[r]->param_count; k++)
            if (strcmp(keel_rule_table[r]->rule, rule) == 0 && strcmp(keel_rule_table[r]->params[k].key, key) == 0)
                return rules->set.enabled[r] ? rules->set.params[r][k] : 0;
    return 0;
}

// ---- state ----

void keel_rules_save(const keel_rules *rules, keel_state_writer *writer) {
    keel_state_write_u64(writer, RULES);
    keel_state_write_u64(writer, rules->site_count);
    keel_state_write(writer, rules->site_keys, rules->site_count * sizeof *rules->site_keys);
    for (uint32_t r = 0; r < RULES; r++) {
        const keel_detector *d = keel_rule_table[r];
        keel_state_write_u64(writer, d->state_bytes);
        keel_state_write_u64(writer, d->site_bytes);
        keel_state_write(writer, rules->head[r], d->state_bytes);
        if (d->site_bytes) keel_state_write(writer, rules->parts[r], rules->site_count * d->site_bytes);
    }
}

// What BYTES hold, as far as the framework must know it: nothing is copied yet.
typedef struct saved_state {
    uint32_t site_count;
    const unsigned char *keys, *head[RULES], *parts[RULES];
} saved_state;

static keel_status skip(keel_state_reader *reader, uint64_t size, const unsigned char **at) {
    if (size > reader->left) return keel_fail(KEEL_ERR_FORMAT, "detector state ends too early");
    *at = reader->bytes;
    reader->bytes += size;
    reader->left -= size;
    return KEEL_OK;
}

static keel_status parse_state(keel_state_reader *reader, saved_state *saved) {
    uint64_t count = 0;
    keel_status status = keel_state_expect(reader, RULES, "the number of rules");
    if (!status) status = keel_state_read_u64(reader, &count);
    if (!status && count > UINT32_MAX)
        status = keel_fail(KEEL_ERR_FORMAT, "detector state: impossible number of sites");
    if (!status) status = skip(reader, count * sizeof(uint64_t), &saved->keys);
    saved->site_count = (uint32_t)count;
    for (uint32_t r = 0; !status && r < RULES; r++) {
        const keel_detector *d = keel_rule_table[r];
        status = keel_state_expect(reader, d->state_bytes, d->rule);
        if (!status) status = keel_state_expect(reader, d->site_bytes, d->rule);
        if (!status) status = skip(reader, d->state_bytes, &saved->head[r]);
        if (!status) status = skip(reader, count * d->site_bytes, &saved->parts[r]);
    }
    return status;
}

keel_status keel_rules_skip(keel_state_reader *reader) {
    saved_state saved;
    return parse_state(reader, &saved);
}

keel_status keel_rules_load(keel_rules *rules, keel_state_reader *reader) {
    saved_state saved = {0};
    unsigned char *parts[RULES] = {NULL};
    keyed_site *order = NULL;
    uint64_t *keys = NULL;
    keel_status status = parse_state(reader, &saved);
    if (status) return status;
    keys = malloc((saved.site_count + 1) * sizeof *keys);
    if (!keys) return keel_fail(KEEL_ERR_MEMORY, "no memory for the state of the rules");
    memcpy(keys, saved.keys, saved.site_count * sizeof *keys);
    status = sort_keys(keys, saved.site_count, &order);
    for (uint32_t r = 0; !status && r < RULES; r++)
        if (keel_rule_table[r]->site_bytes)
            status = move_parts(keel_rule_table[r], rules->site_keys, rules->site_count, order, saved.site_count,
                                saved.parts[r], &parts[r]);
    for (uint32_t r = 0; !status && r < RULES; r++) { // nothing can fail from here on
        const keel_detector *d = keel_rule_table[r];
        memcpy(rules->head[r], saved.head[r], d->state_bytes);
        unsigned char *old = rules->parts[r];
        rules->parts[r] = parts[r];
        parts[r] = old;
        if (d->start) d->start(rules->head[r], rules->info);
    }
    for (uint32_t r = 0; r < RULES; r++) free(parts[r]);
    free(order);
    free(keys);
    return status;
}

void keel_rules_describe(FILE *out) {
    for (uint32_t r = 0; r < RULES; r++) {
        const keel_detector *d = keel_rule_table[r];
        fprintf(out, "%s: %s\n", d->rule, d->doc);
        for (uint32_t k = 0; k < d->param_count; k++)
            fprintf(out, "    %-22s %-10g [%g, %g]  %s\n", d->params[k].key, d->params[k].value, d->params[k].min,
                    d->params[k].max, d->params[k].doc);
    }
}
