#define PCRE2_CODE_UNIT_WIDTH 8
#include "collectors/select.h"

#include <pcre2.h>
#include <string.h>

#include "collectors/quantity/quantity.h"

// What there is only of tensors that several ranks hold. The rank that differs is told where it is seen that one does.
static const uint64_t replica_ops =
    UINT64_C(1) << KEEL_OP_replica_residual | UINT64_C(1) << KEEL_OP_replica_rank | UINT64_C(1) << KEEL_OP_replica_peer;

// One entry, made ready: its names resolved, its expression compiled.
typedef struct entry {
    const keel_select_config *config;
    bool quantities[KEEL_QUANTITY_COUNT];
    pcre2_code *sites; // NULL: all
    pcre2_match_data *match;
    uint64_t matched, replicas, per_micro; // sites found, and what they are
} entry;

// The node of item I of LIST, which may be one scalar for a list of one.
static const keel_yaml_node *item_node(const keel_yaml_node *entry_node, const char *key, size_t i) {
    const keel_yaml_node *list = keel_yaml_get(entry_node, key);
    return keel_yaml_kind_of(list) == KEEL_YAML_LIST ? keel_yaml_item(list, i) : list;
}

static keel_status resolve_quantities(entry *e) {
    const keel_select_config *config = e->config;
    const char *known[KEEL_QUANTITY_COUNT];
    for (int q = 0; q < KEEL_QUANTITY_COUNT; q++) {
        known[q] = keel_quantity_name((keel_quantity)q);
        e->quantities[q] = config->quantity_count == 0;
    }
    for (size_t i = 0; i < config->quantity_count; i++) {
        const char *name = config->quantities[i];
        const keel_quantity q = keel_quantity_find(name);
        if (q == KEEL_QUANTITY_COUNT)
            return keel_yaml_fail(item_node(config->node, "quantities", i),
                                  "unknown quantity '%.60s'; nearest known: %s", name,
                                  keel_yaml_nearest(name, known, KEEL_QUANTITY_COUNT));
        e->quantities[q] = true;
    }
    return KEEL_OK;
}

static keel_status check_ops(const keel_select_config *config) {
    size_t count;
    const char *const *known = keel_ops_known(&count);
    for (size_t i = 0; i < config->op_count; i++)
        if (!keel_ops_named(config->ops[i], KEEL_WEIGHT))
            return keel_yaml_fail(item_node(config->node, "ops", i), "unknown op '%.60s'; nearest known: %s",
                                  config->ops[i], keel_yaml_nearest(config->ops[i], known, count));
    return KEEL_OK;
}

static keel_status compile_sites(entry *e) {
    if (!e->config->sites) return KEEL_OK;
    int code;
    PCRE2_SIZE offset;
    e->sites = pcre2_compile((PCRE2_SPTR)e->config->sites, PCRE2_ZERO_TERMINATED, 0, &code, &offset, NULL);
    if (!e->sites) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(code, text, sizeof text);
        return keel_yaml_fail(keel_yaml_get(e->config->node, "sites"),
                              "'%.60s' is no regular expression: %s at offset %zu", e->config->sites,
                              (const char *)text, offset);
    }
    e->match = pcre2_match_data_create_from_pattern(e->sites, NULL);
    return e->match ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for a regular expression");
}

static keel_status matches(const entry *e, const keel_site_info *site, bool *found) {
    *found = e->quantities[site->quantity];
    if (!*found || !e->sites) return KEEL_OK;
    const int result = pcre2_match(e->sites, (PCRE2_SPTR)site->name, strlen(site->name), 0, 0, e->match, NULL);
    *found = result >= 0;
    if (result >= 0 || result == PCRE2_ERROR_NOMATCH) return KEEL_OK;
    PCRE2_UCHAR text[128];
    pcre2_get_error_message(result, text, sizeof text);
    return keel_yaml_fail(keel_yaml_get(e->config->node, "sites"), "'%.60s' fails on site %s: %s", e->config->sites,
                          site->name, (const char *)text);
}

static void count_site(entry *e, const keel_site_info *site) {
    e->matched++;
    e->replicas += site->layout == KEEL_LAYOUT_REPLICA || site->replica_count > 1;
    e->per_micro += keel_quantity_get(site->quantity)->per_micro;
}

static void plan_site(const entry *e, const keel_site_info *site, keel_site_plan *plan, uint64_t *op_mask) {
    const keel_select_config *config = e->config;
    const bool replica = site->replica_count > 1, micro = keel_quantity_get(site->quantity)->per_micro;
    if (!config->enabled) {
        *plan = (keel_site_plan){0};
        *op_mask = 0;
        return;
    }
    uint64_t ops = keel_ops_flags();
    for (size_t i = 0; i < config->op_count; i++) ops |= keel_ops_named(config->ops[i], site->quantity);
    if (!replica)
        ops &= ~replica_ops;
    else if (ops & replica_ops)
        ops |= replica_ops;
    *op_mask = ops;
    *plan = (keel_site_plan){
        .fields = keel_ops_fields(ops),
        .schedule = {.start = (uint64_t)config->start,
                     .every = (uint64_t)config->every,
                     .count = (uint64_t)config->count},
        .eps = config->eps,
        .per_micro = config->per_micro_batch && micro,
    };
}

// A place in the file, as the loader's errors have it, for what is not one.
static void warn_at(const keel_yaml_node *node, const char *text) {
    keel_yaml_fail(node, "%s", text);
    keel_log(KEEL_LOG_WARNING, "%s", keel_error());
}

static void warn_of(const entry *e) {
    const keel_yaml_node *node = e->config->node;
    if (!node) return; // the defaults ask of a program what it may not have
    if (!e->matched) {
        warn_at(node, "this selection matches no site");
        return;
    }
    if (e->config->per_micro_batch && !e->per_micro)
        warn_at(keel_yaml_get(node, "per_micro_batch"), "none of the selected sites is observed per micro-batch");
    for (size_t i = 0; i < e->config->op_count; i++)
        if (keel_op_find(e->config->ops[i]) < KEEL_OP_COUNT && replica_ops >> keel_op_find(e->config->ops[i]) & 1 &&
            !e->replicas)
            warn_at(item_node(node, "ops", i), "none of the selected sites is a replica of another rank's");
}

static keel_status prepare(const keel_select_config *config, entry *e) {
    *e = (entry){.config = config};
    keel_status status = resolve_quantities(e);
    if (!status) status = check_ops(config);
    return status ? status : compile_sites(e);
}

static void release(entry *e) {
    pcre2_match_data_free(e->match);
    pcre2_code_free(e->sites);
}

keel_status keel_select_check(const keel_monitor_config *config) {
    keel_status status = KEEL_OK;
    for (size_t i = 0; !status && i < config->select_count; i++) {
        entry e;
        status = prepare(&config->select[i], &e);
        release(&e);
    }
    return status;
}

keel_status keel_select(const keel_monitor_config *config, const keel_probe *probe, keel_site_plan *plans,
                        uint64_t *op_masks, uint32_t *rank_entries) {
    const uint32_t sites = keel_probe_site_count(probe);
    for (uint32_t s = 0; s < sites; s++) {
        plans[s] = (keel_site_plan){.fields = KEEL_FIELDS_FLAGS};
        op_masks[s] = keel_ops_flags();
        rank_entries[s] = 0;
    }
    keel_status status = KEEL_OK;
    for (size_t i = 0; !status && i < config->select_count; i++) {
        entry e;
        status = prepare(&config->select[i], &e);
        for (uint32_t s = 0; !status && s < sites; s++) {
            const keel_site_info *site = keel_probe_site_info(probe, s);
            bool found = false;
            status = matches(&e, site, &found);
            if (status || !found) continue;
            plan_site(&e, site, &plans[s], &op_masks[s]);
            rank_entries[s] = e.config->all_ranks || e.config->rank_count ? (uint32_t)i + 1 : 0;
        }
        release(&e);
    }
    return status;
}

bool keel_select_names_rank(const keel_monitor_config *config, uint32_t number, uint32_t rank) {
    if (number == 0) return false;
    const keel_select_config *select = &config->select[number - 1];
    for (size_t i = 0; i < select->rank_count; i++)
        if (select->ranks[i] == rank) return true;
    return select->all_ranks;
}

keel_status keel_select_check_ranks(const keel_monitor_config *config, uint32_t ranks) {
    for (size_t i = 0; i < config->select_count; i++) {
        const keel_select_config *select = &config->select[i];
        if (select->rank_count == 0 || select->ranks[select->rank_count - 1] < ranks) continue;
        return keel_yaml_fail(keel_yaml_get(select->node, "ranks"), "no rank %lld among %u",
                              (long long)select->ranks[select->rank_count - 1], ranks);
    }
    return KEEL_OK;
}

uint64_t keel_select_ranks_hash(const keel_monitor_config *config) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325); // FNV-1a
    for (size_t i = 0; i < config->select_count; i++) {
        const keel_select_config *select = &config->select[i];
        hash = (hash ^ (select->all_ranks ? 1 : 2)) * UINT64_C(0x100000001b3);
        for (size_t k = 0; k < select->rank_count; k++)
            hash = (hash ^ (uint64_t)(select->ranks[k] + 3)) * UINT64_C(0x100000001b3);
    }
    return hash;
}

keel_status keel_select_warn(const keel_monitor_config *config, const keel_site_info *sites, uint32_t count) {
    keel_status status = KEEL_OK;
    for (size_t i = 0; !status && i < config->select_count; i++) {
        entry e;
        status = prepare(&config->select[i], &e);
        for (uint32_t s = 0; !status && s < count; s++) {
            bool found = false;
            status = matches(&e, &sites[s], &found);
            if (!status && found) count_site(&e, &sites[s]);
        }
        if (!status) warn_of(&e);
        release(&e);
    }
    return status;
}
