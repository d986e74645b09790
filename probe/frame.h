// A frame: everything observed in one step on one rank, preallocated. The unit that is merged over ranks and handed on.
// One contiguous block: header, then scalars, then step records, then micro-batch records; so that a merge over ranks
// is one element.
#ifndef KEEL_PROBE_FRAME_H
#define KEEL_PROBE_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/stats.h"

KEEL_C_BEGIN

// keel_step.flags
enum {
    KEEL_STEP_SKIPPED = 1u << 0,    // the update was not applied: non-finite gradient norm
    KEEL_STEP_OVERFLOW = 1u << 1,   // skipped because of the loss scale
    KEEL_STEP_RESUMED = 1u << 2,    // first step after a resume
    KEEL_STEP_EPOCH = 1u << 3,      // first step of an epoch
    KEEL_STEP_EVALUATION = 1u << 4, // evaluation ran after this step
    KEEL_STEP_CHECKPOINT = 1u << 5, // a checkpoint is due after this step
    KEEL_STEP_FAULT = 1u << 6,      // a configured fault was injected in this step
    KEEL_STEP_DROPPED = 1u << 7,    // a rank could not record the step: values are missing, not healthy
};

// What identifies a step. All ranks give the same, but for seconds (merged by max). A time that is 0 where the step
// ends is measured by the monitor: from keel_step_begin to keel_step_end.
typedef struct keel_step {
    uint64_t step;        // attempts, from 1
    uint64_t update;      // applied updates so far, this one included
    uint64_t samples;     // sequences consumed so far, all ranks
    uint64_t first_batch; // id of the first and the last batch of the step
    uint64_t last_batch;
    double time_unix; // seconds since 1970, at the end of the step
    double seconds;   // duration of the step
    uint32_t flags;   // KEEL_STEP_*
    uint32_t reserved;
} keel_step;

// How a scalar merges over ranks. Ranks that did not set it do not count.
typedef enum keel_scalar_merge {
    KEEL_SCALAR_FIRST, // the value of the lowest rank that set it (all agree, or only one knows)
    KEEL_SCALAR_MAX,   // the greatest and whose: stored as NAME and NAME_rank; NaN counts as greatest
    KEEL_SCALAR_SUM,
    KEEL_SCALAR_MIN, // the least and whose, as for the greatest; NaN is never taken while there is a number
} keel_scalar_merge;

// True if the rank that a value is from is stored beside it, as NAME_rank.
static inline bool keel_scalar_names_rank(uint32_t merge) {
    return merge == KEEL_SCALAR_MAX || merge == KEEL_SCALAR_MIN;
}

enum { KEEL_SCALAR_NAME_BYTES = 32 }; // its end included

typedef struct keel_scalar_value {
    double value;
    uint32_t owner; // rank; KEEL_RANK_NONE where not set this step
    uint32_t merge; // keel_scalar_merge
} keel_scalar_value;

typedef struct keel_frame {
    keel_step step;
    uint32_t scalar_count;
    uint32_t site_count;
    uint32_t micro_count;      // micro-batches recorded per micro site
    uint32_t micro_site_count; // sites with records per micro-batch
    // followed by: keel_scalar_value[scalar_count]; keel_stats[site_count]; keel_stats[micro_count * micro_site_count]
} keel_frame;

// Where in a greater frame that which a frame holds goes, by its own places.
typedef struct keel_frame_map {
    uint32_t site_count;
    uint32_t *scalars;     // [scalar_count]
    uint32_t *sites;       // [site_count]
    uint32_t *micro_sites; // [micro_site_count]
} keel_frame_map;

KEEL_API size_t keel_frame_bytes(uint32_t scalars, uint32_t sites, uint32_t micros, uint32_t micro_sites);
// Lays the frame out in MEMORY (keel_frame_bytes, aligned to 64) and clears it.
KEEL_API keel_frame *keel_frame_init(void *memory, uint32_t scalars, uint32_t sites, uint32_t micros,
                                     uint32_t micro_sites);
// Empties every record and scalar, keeps the scalars' merge kinds.
KEEL_API void keel_frame_clear(keel_frame *frame);
KEEL_API keel_scalar_value *keel_frame_scalars(keel_frame *frame);
KEEL_API keel_stats *keel_frame_stats(keel_frame *frame);
// Record of micro-batch M of the K-th micro site.
KEEL_API keel_stats *keel_frame_micro(keel_frame *frame, uint32_t m, uint32_t k);
// INTO and FROM have the same shape and are frames of the same step of lower and higher ranks. Associative.
KEEL_API void keel_frame_merge(keel_frame *into, const keel_frame *from);
// The same of a frame FROM that holds some of what INTO holds, at other places; as many micro-batches.
KEEL_API void keel_frame_merge_at(keel_frame *into, const keel_frame *from, const keel_frame_map *map);
// Bytes of FRAME, by its own shape.
KEEL_API size_t keel_frame_size(const keel_frame *frame);

KEEL_C_END

#endif
