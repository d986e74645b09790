// What a rank registered with its probe and plans for it: the order in which its frames hold scalars and records.
#ifndef KEEL_COLLECTORS_RANK_TABLE_H
#define KEEL_COLLECTORS_RANK_TABLE_H

#include "probe/keel.h"

typedef struct keel_table_scalar {
    char name[KEEL_SCALAR_NAME_BYTES];
    keel_scalar_merge merge;
} keel_table_scalar;

typedef struct keel_rank_table {
    uint32_t micro_count, site_count, scalar_count;
    keel_site_info *sites;      // [site_count], by id; owned, like the others
    keel_site_plan *plans;      // [site_count]
    uint64_t *op_masks;         // [site_count], bit keel_op: what is kept of each
    uint32_t *rank_entries;     // [site_count]: which selection asks for single ranks' values (select.h); 0: none
    uint64_t ranks_hash;        // of what the selections say of ranks
    keel_table_scalar *scalars; // [scalar_count], by id
} keel_rank_table;

// Arrays of the counts that TABLE holds, cleared.
keel_status keel_rank_table_alloc(keel_rank_table *table);
// What PROBE has registered and PLANS say, nothing kept of it yet.
keel_status keel_rank_table_open(const keel_probe *probe, const keel_site_plan *plans, keel_rank_table *table);
void keel_rank_table_close(keel_rank_table *table); // of zeroed ones: nothing

// Equal for ranks whose frames can be merged place by place. What a rank has for itself, its number as a replica, does
// not enter.
uint64_t keel_rank_table_hash(const keel_rank_table *table);

static inline bool keel_plan_is_per_micro(const keel_site_plan *plan) {
    return plan->fields && plan->per_micro;
}
uint32_t keel_rank_table_micro_sites(const keel_rank_table *table); // sites with records per micro-batch

enum { KEEL_TABLE_TEXT_BYTES = 400 };
// For messages: "site layers.3.weight (weight, float32 [4x8], ...)" and "scalar loss (merge 0)".
void keel_rank_table_describe_site(const keel_rank_table *table, uint32_t id, char text[KEEL_TABLE_TEXT_BYTES]);
void keel_rank_table_describe_scalar(const keel_rank_table *table, uint32_t id, char text[KEEL_TABLE_TEXT_BYTES]);

size_t keel_rank_table_bytes(const keel_rank_table *table); // what it has allocated

#endif
