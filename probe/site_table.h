// Private to the probe: the table of registered sites. A site keeps its address while the table grows.
#ifndef KEEL_PROBE_SITE_TABLE_H
#define KEEL_PROBE_SITE_TABLE_H

#include "probe/keel.h"

// What an observation needs, together and in front: one cache line.
typedef struct keel_site_entry {
    keel_site head;
    uint32_t id;
    keel_probe *probe;
    int32_t micro_index; // -1: no records per micro-batch
    keel_dtype dtype;
    keel_stats_params params; // fields: those of a scheduled step, 0 where the site is not enabled
    uint32_t schedule;        // index among the probe's distinct schedules
    keel_site_info info;
} keel_site_entry;

typedef struct keel_site_table {
    keel_site_entry **chunks;
    uint32_t chunk_count;
    uint32_t count;
    uint32_t *slots; // open addressing by hash of name and quantity: id + 1, 0 where free
    uint32_t slot_count;
} keel_site_table;

void keel_site_table_free(keel_site_table *table);

// Adds a checked copy of INFO, completed by its numel, with the next id. *ENTRY is cleared but for its id and info, and
// lives as long as the table.
keel_status keel_site_table_add(keel_site_table *table, const keel_site_info *info, keel_site_entry **entry);

keel_site_entry *keel_site_table_at(const keel_site_table *table, uint32_t id);

#endif
