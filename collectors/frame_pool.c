#include "collectors/frame_pool.h"

#include <stdlib.h>
#include <string.h>

enum { FRAME_ALIGNMENT = 64 };

static bool open_ring(keel_ring *ring, uint32_t capacity) {
    ring->slots = calloc(capacity, sizeof *ring->slots);
    ring->capacity = capacity;
    return ring->slots;
}

static keel_frame *lay_out(void *memory, const keel_frame_shape *shape) {
    keel_frame *frame = keel_frame_init(memory, shape->scalars, shape->sites, shape->micros, shape->micro_sites);
    keel_scalar_value *scalars = keel_frame_scalars(frame);
    for (uint32_t i = 0; i < shape->scalars; i++) scalars[i].merge = (uint32_t)shape->merges[i];
    return frame;
}

static size_t bytes_of(const keel_frame_shape *shape) {
    return keel_frame_bytes(shape->scalars, shape->sites, shape->micros, shape->micro_sites);
}

static bool copy_shape(const keel_frame_shape *from, keel_frame_shape *to) {
    *to = *from;
    to->merges = calloc((size_t)from->scalars + 1, sizeof *to->merges);
    if (to->merges && from->scalars) memcpy(to->merges, from->merges, from->scalars * sizeof *to->merges);
    return to->merges;
}

keel_status keel_frame_pool_open(keel_frame_pool *pool, const keel_frame_shape *shape, const keel_frame_shape *whole,
                                 uint32_t count, size_t values, bool empty) {
    *pool = (keel_frame_pool){.count = count, .frame_bytes = bytes_of(shape)};
    const size_t largest = whole ? bytes_of(whole) : pool->frame_bytes;
    const size_t stride = (largest + FRAME_ALIGNMENT - 1) / FRAME_ALIGNMENT * FRAME_ALIGNMENT;
    const uint32_t frames = count + empty + (whole != NULL);
    const size_t all_values = values * (count + empty);
    pool->bytes = stride * frames + all_values * sizeof *pool->values;
    pool->memory = aligned_alloc(FRAME_ALIGNMENT, stride * frames);
    pool->values = calloc(all_values + 1, sizeof *pool->values);
    pool->slots = calloc(count, sizeof *pool->slots);
    if (!pool->memory || !pool->values || !pool->slots || !open_ring(&pool->free, count) ||
        !open_ring(&pool->ended, count) || !open_ring(&pool->recorded, count) || !copy_shape(shape, &pool->shape) ||
        (whole && !copy_shape(whole, &pool->whole_shape))) {
        keel_frame_pool_close(pool);
        return keel_fail(KEEL_ERR_MEMORY, "no memory for %u frames of %zu bytes", frames, largest);
    }
    char *at = pool->memory;
    for (uint32_t i = 0; i < count; i++, at += stride) {
        pool->slots[i].frame = lay_out(at, shape);
        pool->slots[i].values = pool->values + i * values;
        keel_ring_put(&pool->free, &pool->slots[i]);
    }
    if (empty) {
        pool->empty = lay_out(at, shape);
        pool->no_values = pool->values + count * values;
        at += stride;
    }
    if (whole) pool->spare = lay_out(at, whole);
    return KEEL_OK;
}

keel_frame *keel_frame_pool_whole(keel_frame_pool *pool) {
    return pool->whole_shape.merges ? lay_out(pool->spare, &pool->whole_shape) : NULL;
}

void keel_frame_pool_take_whole(keel_frame_pool *pool, keel_slot *slot) {
    keel_frame *observed = slot->frame;
    slot->frame = pool->spare;
    pool->spare = observed;
}

void keel_frame_pool_clear(const keel_frame_pool *pool, keel_slot *slot) {
    if (pool->whole_shape.merges)
        lay_out(slot->frame, &pool->shape);
    else
        keel_frame_clear(slot->frame);
}

void keel_frame_pool_close(keel_frame_pool *pool) {
    free(pool->memory);
    free(pool->values);
    free(pool->shape.merges);
    free(pool->whole_shape.merges);
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
