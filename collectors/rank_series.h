// Values of single ranks, where a selection asks for them: which, and the way of a step's from a rank's frame to the
// row.
//
// A rank gives, for each of its sites that are asked for, in their order, the eight bytes of each op. Rank 0 receives
// the ranks' values one after another, by rank; each is a part of its array.
#ifndef KEEL_COLLECTORS_RANK_SERIES_H
#define KEEL_COLLECTORS_RANK_SERIES_H

#include "collectors/merge.h"
#include "collectors/row.h"
#include "configs/monitor_config.h"

typedef struct keel_rank_series_table {
    // Of this rank: what it gives.
    struct keel_rank_pick {
        uint32_t site;
        uint64_t ops;
    } * picks;
    uint32_t pick_count;
    // Of rank 0: what the run has. Elsewhere one part, this rank's, or none.
    keel_rank_series *series; // [series_count]
    uint64_t *ops;            // [series_count]
    uint32_t series_count;
    keel_rank_part *parts; // [part_count], ranks that give something, ascending
    uint32_t part_count;
    size_t value_count; // of all parts
} keel_rank_series_table;

enum { KEEL_RANK_VALUES_MOST = 1 << 20 }; // of a step

// OWN: of RANK, this one of RANKS; WHOLE: complete on rank 0. KEEL_ERR_LIMIT for more than KEEL_RANK_VALUES_MOST
// values, KEEL_ERR_CONFIG with its place for a rank that there is not.
keel_status keel_rank_series_open(const keel_monitor_config *config, const keel_rank_table *own,
                                  const keel_whole_table *whole, uint32_t rank, uint32_t ranks,
                                  keel_rank_series_table *table);
void keel_rank_series_close(keel_rank_series_table *table); // of zeroed ones: nothing
size_t keel_rank_series_bytes(const keel_rank_series_table *table);

// What this rank gives of FRAME, as it was observed, before it is sealed: to VALUES, at its part. NULL: nothing was.
void keel_rank_series_take(const keel_rank_series_table *table, keel_frame *frame, uint64_t *values);
// Rank 0: the others' parts are not collected.
void keel_rank_series_forget_others(const keel_rank_series_table *table, uint64_t *values);

#endif
