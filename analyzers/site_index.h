// The sites of a run, sorted for rules that look at some of them: per quantity, in the order of the data flow. Made
// anew for each segment of a run.
#ifndef KEEL_ANALYZERS_SITE_INDEX_H
#define KEEL_ANALYZERS_SITE_INDEX_H

#include "collectors/row.h"

// Sites that rules know by the end of their names: values of one module that are no tensors of their own.
typedef enum keel_named_site {
    KEEL_NAMED_MAX_LOGIT,   // .max_logit: greatest q.k / sqrt(d) of a layer
    KEEL_NAMED_EXPERT_LOAD, // .expert_load: tokens that each expert got; an element per expert
    KEEL_NAMED_DROP_RATE,   // .drop_rate: dropped assignments / routed assignments of a layer; one element
    KEEL_NAMED_COUNT
} keel_named_site;

typedef struct keel_site_index {
    uint32_t site_count;
    uint32_t layers; // 1 + the greatest layer of a site; 0: none has one
    uint32_t count[KEEL_QUANTITY_COUNT];
    const uint32_t *sites[KEEL_QUANTITY_COUNT]; // [count]: ids in the order of the data flow
    uint32_t named_count[KEEL_NAMED_COUNT];
    const uint32_t *named[KEEL_NAMED_COUNT]; // [named_count]: ids in the order of the data flow
    const uint32_t *flow;                    // [site_count]: a site's place among all
    const int32_t *weight;                   // [site_count]: the weight of the same name, or -1
    uint32_t *memory;                        // what the others point into; owned
} keel_site_index;

// Ids change with the segments of a run: that of the site which had ID when its keel_site_hash was HASH, as INFO has
// it; -1: it is not there any more.
int64_t keel_site_now(const keel_run_info *info, int64_t id, uint64_t hash);

keel_status keel_site_index_open(const keel_run_info *info, keel_site_index *index);
void keel_site_index_close(keel_site_index *index); // all zeros are fine

#endif
