#include "collectors/rank_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

keel_status keel_rank_table_alloc(keel_rank_table *table) {
    const size_t sites = (size_t)table->site_count + 1, scalars = (size_t)table->scalar_count + 1;
    table->sites = calloc(sites, sizeof *table->sites);
    table->plans = calloc(sites, sizeof *table->plans);
    table->op_masks = calloc(sites, sizeof *table->op_masks);
    table->rank_entries = calloc(sites, sizeof *table->rank_entries);
    table->scalars = calloc(scalars, sizeof *table->scalars);
    if (table->sites && table->plans && table->op_masks && table->rank_entries && table->scalars) return KEEL_OK;
    const keel_status status = keel_fail(KEEL_ERR_MEMORY, "no memory for a table of %u sites", table->site_count);
    keel_rank_table_close(table);
    return status;
}

keel_status keel_rank_table_open(const keel_probe *probe, const keel_site_plan *plans, keel_rank_table *table) {
    keel_rank_table t = {.micro_count = keel_probe_micro_count(probe),
                         .site_count = keel_probe_site_count(probe),
                         .scalar_count = keel_probe_scalar_count(probe)};
    const keel_status status = keel_rank_table_alloc(&t);
    if (status) return status;
    for (uint32_t s = 0; s < t.site_count; s++) {
        t.sites[s] = *keel_probe_site_info(probe, s);
        t.plans[s] = plans[s];
    }
    for (uint32_t i = 0; i < t.scalar_count; i++) {
        snprintf(t.scalars[i].name, sizeof t.scalars[i].name, "%s", keel_probe_scalar_name(probe, i));
        t.scalars[i].merge = keel_probe_scalar_merge(probe, i);
    }
    *table = t;
    return KEEL_OK;
}

void keel_rank_table_close(keel_rank_table *table) {
    free(table->sites);
    free(table->plans);
    free(table->op_masks);
    free(table->rank_entries);
    free(table->scalars);
    *table = (keel_rank_table){0};
}

void keel_rank_table_describe_site(const keel_rank_table *table, uint32_t id, char text[KEEL_TABLE_TEXT_BYTES]) {
    const keel_site_info *site = &table->sites[id];
    const keel_site_plan *plan = &table->plans[id];
    char shape[96] = "";
    for (uint32_t d = 0, used = 0; d < site->ndim && used < sizeof shape; d++)
        used += (uint32_t)snprintf(shape + used, sizeof shape - used, "%s%" PRIu64, d ? "x" : "", site->shape[d]);
    snprintf(text, KEEL_TABLE_TEXT_BYTES,
             "site %s (%s, %s [%s], %s of %u, %s, place %u, module %s, layer %d, stage %d, fields %#x, every %" PRIu64
             " from %" PRIu64 " count %" PRIu64 ", eps %g%s)",
             site->name, keel_quantity_name(site->quantity), keel_dtype_name(site->dtype), shape,
             keel_layout_name(site->layout), site->replica_count, keel_phase_name(site->phase), site->order,
             site->module, site->layer, site->stage, plan->fields, plan->schedule.every, plan->schedule.start,
             plan->schedule.count, plan->eps, plan->per_micro ? ", per micro-batch" : "");
}

void keel_rank_table_describe_scalar(const keel_rank_table *table, uint32_t id, char text[KEEL_TABLE_TEXT_BYTES]) {
    snprintf(text, KEEL_TABLE_TEXT_BYTES, "scalar %s (merge %d)", table->scalars[id].name,
             (int)table->scalars[id].merge);
}

// FNV-1a, 64 bits.
static uint64_t hash_text(uint64_t hash, const char *text) {
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return (hash ^ '\n') * UINT64_C(0x100000001b3);
}

uint64_t keel_rank_table_hash(const keel_rank_table *table) {
    char text[KEEL_TABLE_TEXT_BYTES];
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    snprintf(text, sizeof text, "%u %u %u %" PRIx64, table->micro_count, table->site_count, table->scalar_count,
             table->ranks_hash);
    hash = hash_text(hash, text);
    for (uint32_t s = 0; s < table->site_count; s++) {
        keel_rank_table_describe_site(table, s, text);
        hash = hash_text(hash, text);
        snprintf(text, sizeof text, "%" PRIx64 " %u", table->op_masks[s], table->rank_entries[s]);
        hash = hash_text(hash, text);
    }
    for (uint32_t i = 0; i < table->scalar_count; i++) {
        keel_rank_table_describe_scalar(table, i, text);
        hash = hash_text(hash, text);
    }
    return hash;
}

uint32_t keel_rank_table_micro_sites(const keel_rank_table *table) {
    uint32_t count = 0;
    for (uint32_t s = 0; s < table->site_count; s++) count += keel_plan_is_per_micro(&table->plans[s]);
    return count;
}

size_t keel_rank_table_bytes(const keel_rank_table *table) {
    return table->site_count *
               (sizeof *table->sites + sizeof *table->plans + sizeof *table->op_masks + sizeof *table->rank_entries) +
           table->scalar_count * sizeof *table->scalars;
}
