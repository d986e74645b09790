// Frames go round: training thread -> merge -> recorder -> training thread, each over a ring with one writer and one
// reader, so that nobody waits for a lock. A slot is one frame on its way.
#ifndef KEEL_COLLECTORS_FRAME_POOL_H
#define KEEL_COLLECTORS_FRAME_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/frame.h"

typedef struct keel_slot {
    keel_frame *frame;
    uint64_t *values; // of single ranks (rank_series.h)
    uint64_t
        sequence; // of the step end in this process, from 1; the same on every rank, also where step numbers repeat
    bool record;  // false: only to be cleared
} keel_slot;

typedef struct keel_ring {
    keel_slot **slots;
    uint32_t capacity; // at least the number of slots that exist: a put never fails
    _Atomic uint32_t puts, takes;
} keel_ring;

static inline void keel_ring_put(keel_ring *ring, keel_slot *slot) {
    const uint32_t puts = atomic_load_explicit(&ring->puts, memory_order_relaxed);
    ring->slots[puts % ring->capacity] = slot;
    atomic_store_explicit(&ring->puts, puts + 1, memory_order_release);
}

// The oldest slot, left where it is; NULL if there is none.
static inline keel_slot *keel_ring_peek(keel_ring *ring) {
    const uint32_t takes = atomic_load_explicit(&ring->takes, memory_order_relaxed);
    if (takes == atomic_load_explicit(&ring->puts, memory_order_acquire)) return NULL;
    return ring->slots[takes % ring->capacity];
}

static inline keel_slot *keel_ring_take(keel_ring *ring) {
    keel_slot *slot = keel_ring_peek(ring);
    if (slot) atomic_fetch_add_explicit(&ring->takes, 1, memory_order_release);
    return slot;
}

typedef struct keel_frame_shape {
    uint32_t scalars, sites, micros, micro_sites;
    keel_scalar_merge *merges; // [scalars]: how each merges over ranks
} keel_frame_shape;

typedef struct keel_frame_pool {
    size_t frame_bytes, bytes; // of a frame as it is observed; of all
    keel_frame_shape shape, whole_shape;
    // One frame more, for what is merged of ranks with other tables: slots change theirs for it. NULL where the frames
    // of the whole run are shaped like this rank's.
    keel_frame *spare;
    uint32_t count;
    uint64_t *no_values; // such a rank's values
    keel_frame *empty; // one frame more, cleared: for a rank that has nothing to give to a merge; NULL where not wanted
    keel_ring free, ended, recorded; // to the training thread, from it, to the recorder
    void *memory;
    uint64_t *values;
    keel_slot *slots;
} keel_frame_pool;

// COUNT frames, with VALUES values of single ranks each, cleared and in the free ring, and the EMPTY one where wanted.
// Shapes are copied. WHOLE: that of the whole run, at least as large; NULL: the same, or none of this rank's business.
keel_status keel_frame_pool_open(keel_frame_pool *pool, const keel_frame_shape *shape, const keel_frame_shape *whole,
                                 uint32_t count, size_t values, bool empty);
// The spare frame, cleared in the shape of the whole run; NULL where there is none.
keel_frame *keel_frame_pool_whole(keel_frame_pool *pool);
// The spare frame becomes SLOT's, and SLOT's the spare one.
void keel_frame_pool_take_whole(keel_frame_pool *pool, keel_slot *slot);
// SLOT's frame as it is before a step.
void keel_frame_pool_clear(const keel_frame_pool *pool, keel_slot *slot);
void keel_frame_pool_close(keel_frame_pool *pool); // of one that was never opened: nothing
// Lets go of the pool, whose frames an unfinished operation may still write to: they stay until the process ends.
void keel_frame_pool_abandon(keel_frame_pool *pool);

#endif
