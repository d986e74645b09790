#include "collectors/frame_pool.h"

#include <stdlib.h>

enum { FRAME_ALIGNMENT = 64 };

static bool open_ring(keel_ring *ring, uint32_t capacity) {
    ring->slots = calloc(capacity, sizeof *ring->slots);
    ring->capacity = capacity;
    return ring->slots;
}

static keel_frame *lay_out(void *memory, const keel_frame_shape *shape, const keel_scalar_merge *merges) {
    keel_frame *frame = keel_frame_init(memory, shape->scalars, shape->sites, shape->micros, shape->micro_sites);
    keel_scalar_value *scalars = keel_frame_scalars(frame);
    for (uint32_t i = 0; i < shape->scalars; i++) scalars[i].merge = (uint32_t)merges[i];
    return frame;
}

keel_status keel_frame_pool_open(keel_frame_pool *pool, const keel_frame_shape *shape, const keel_scalar_merge *merges,
                                 uint32_t count, bool empty) {
    *pool = (keel_frame_pool){.count = count};
    pool->frame_bytes = keel_frame_bytes(shape->scalars, shape->sites, shape->micros, shape->micro_sites);
    const size_t stride = (pool->frame_bytes + FRAME_ALIGNMENT - 1) / FRAME_ALIGNMENT * FRAME_ALIGNMENT;
    const uint32_t frames = empty ? count + 1 : count;
    pool->bytes = stride * frames;
    pool->memory = aligned_alloc(FRAME_ALIGNMENT, pool->bytes);
    pool->slots = calloc(count, sizeof *pool->slots);
    if (!pool->memory || !pool->slots || !open_ring(&pool->free, count) || !open_ring(&pool->ended, count) ||
        !open_ring(&pool->recorded, count)) {
        keel_frame_pool_close(pool);
        return keel_fail(KEEL_ERR_MEMORY, "no memory for %u frames of %zu bytes", frames, pool->frame_bytes);
    }
    char *at = pool->memory;
    for (uint32_t i = 0; i < count; i++, at += stride) {
        pool->slots[i].frame = lay_out(at, shape, merges);
        keel_ring_put(&pool->free, &pool->slots[i]);
    }
    if (empty) pool->empty = lay_out(at, shape, merges);
    return KEEL_OK;
}

void keel_frame_pool_close(keel_frame_pool *pool) {
    free(pool->memory);
    free(pool->slots);
    free(pool->free.slots);
    free(pool->ended.slots);
    free(pool->recorded.slots);
    *pool = (keel_frame_pool){0};
}

// Where leak checkers can see them.
static struct abandoned {
    keel_frame_pool pool;
    struct abandoned *next;
} * abandoned_pools;

void keel_frame_pool_abandon(keel_frame_pool *pool) {
    struct abandoned *kept = malloc(sizeof *kept);
    if (kept) {
        *kept = (struct abandoned){*pool, abandoned_pools};
        abandoned_pools = kept;
    }
    *pool = (keel_frame_pool){0};
}
