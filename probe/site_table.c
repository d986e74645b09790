#include "probe/site_table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_SITES = 128, FIRST_SLOTS = 256 };

void keel_site_table_free(keel_site_table *table) {
    for (uint32_t i = 0; i < table->chunk_count; i++) free(table->chunks[i]);
    free(table->chunks);
    free(table->slots);
    *table = (keel_site_table){0};
}

keel_site_entry *keel_site_table_at(const keel_site_table *table, uint32_t id) {
    return &table->chunks[id / CHUNK_SITES][id % CHUNK_SITES];
}

// The slot that holds INFO's name and quantity, or the free one where it belongs.
static uint32_t *slot_of(const keel_site_table *table, const keel_site_info *info) {
    const uint32_t mask = table->slot_count - 1;
    uint32_t i = (uint32_t)keel_site_hash(info) & mask;
    while (table->slots[i]) {
        const keel_site_info *other = &keel_site_table_at(table, table->slots[i] - 1)->info;
        if (other->quantity == info->quantity && strcmp(other->name, info->name) == 0) break;
        i = (i + 1) & mask;
    }
    return &table->slots[i];
}

static keel_status grow_slots(keel_site_table *table) {
    const uint32_t count = table->slot_count ? 2 * table->slot_count : FIRST_SLOTS;
    uint32_t *slots = calloc(count, sizeof *slots);
    if (!slots) return keel_fail(KEEL_ERR_MEMORY, "site table: no memory for %" PRIu32 " slots", count);
    free(table->slots);
    table->slots = slots;
    table->slot_count = count;
    for (uint32_t id = 0; id < table->count; id++) *slot_of(table, &keel_site_table_at(table, id)->info) = id + 1;
    return KEEL_OK;
}

static keel_status grow_chunks(keel_site_table *table) {
    keel_site_entry **chunks = realloc(table->chunks, (table->chunk_count + 1) * sizeof *chunks);
    if (!chunks) return keel_fail(KEEL_ERR_MEMORY, "site table: no memory for %" PRIu32 " sites", table->count + 1);
    table->chunks = chunks;
    keel_site_entry *chunk = calloc(CHUNK_SITES, sizeof *chunk);
    if (!chunk) return keel_fail(KEEL_ERR_MEMORY, "site table: no memory for %" PRIu32 " sites", table->count + 1);
    table->chunks[table->chunk_count++] = chunk;
    return KEEL_OK;
}

// A shape tells how many elements there are; without one only the caller can.
static keel_status complete_numel(keel_site_info *info) {
    if (info->ndim == 0) return KEEL_OK;
    uint64_t numel = 1;
    for (uint32_t d = 0; d < info->ndim; d++)
        if (__builtin_mul_overflow(numel, info->shape[d], &numel))
            return keel_fail(KEEL_ERR_USAGE, "site %s: its shape has more than 2^64 elements", info->name);
    if (info->numel != 0 && info->numel != numel)
        return keel_fail(KEEL_ERR_USAGE, "site %s: numel is %" PRIu64 ", and its shape has %" PRIu64 " elements",
                         info->name, info->numel, numel);
    info->numel = numel;
    return KEEL_OK;
}

static keel_status check(const keel_site_info *info) {
    if (!memchr(info->name, 0, sizeof info->name) || !memchr(info->module, 0, sizeof info->module))
        return keel_fail(KEEL_ERR_USAGE, "site: a name or module that does not end within its field");
    if (!info->name[0]) return keel_fail(KEEL_ERR_USAGE, "site: empty name");
    if ((unsigned)info->quantity >= KEEL_QUANTITY_COUNT || (unsigned)info->dtype >= KEEL_DTYPE_COUNT ||
        (unsigned)info->layout >= KEEL_LAYOUT_COUNT || (unsigned)info->phase >= KEEL_PHASE_COUNT)
        return keel_fail(KEEL_ERR_USAGE,
                         "site %s: quantity %d, dtype %d, layout %d or phase %d is none of the known ones", info->name,
                         (int)info->quantity, (int)info->dtype, (int)info->layout, (int)info->phase);
    if (info->ndim > KEEL_MAX_DIMS)
        return keel_fail(KEEL_ERR_USAGE, "site %s: %" PRIu32 " dimensions, at most %d", info->name, info->ndim,
                         KEEL_MAX_DIMS);
    const bool alone = info->layout != KEEL_LAYOUT_REPLICA && info->replica_count == 0;
    if (!alone && info->replica_index >= info->replica_count)
        return keel_fail(KEEL_ERR_USAGE, "site %s: replica %" PRIu32 " of %" PRIu32, info->name, info->replica_index,
                         info->replica_count);
    if (info->layout == KEEL_LAYOUT_WHOLE && info->replica_count > 1)
        return keel_fail(KEEL_ERR_USAGE, "site %s: held by one rank, and yet %" PRIu32 " copies", info->name,
                         info->replica_count);
    return KEEL_OK;
}

keel_status keel_site_table_add(keel_site_table *table, const keel_site_info *info, keel_site_entry **entry) {
    keel_status status = check(info);
    if (status) return status;
    keel_site_info complete = *info;
    if ((status = complete_numel(&complete))) return status;
    if (2 * (table->count + 1) > table->slot_count && (status = grow_slots(table))) return status;
    if (table->count == table->chunk_count * CHUNK_SITES && (status = grow_chunks(table))) return status;

    uint32_t *slot = slot_of(table, info);
    if (*slot)
        return keel_fail(KEEL_ERR_USAGE, "site %s (%s) is registered twice", info->name,
                         keel_quantity_name(info->quantity));
    keel_site_entry *added = keel_site_table_at(table, table->count);
    added->id = table->count;
    added->info = complete;
    added->info.id = added->id;
    if (info->replica_count == 0) {
        added->info.replica_index = 0;
        added->info.replica_count = 1;
    }
    *slot = ++table->count;
    *entry = added;
    return KEEL_OK;
}
