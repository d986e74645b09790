// One block of memory, planned once. The plan is a function that takes pieces: it runs twice, first to count, then to
// give.
#ifndef KEEL_TRAIN_TENSOR_ARENA_H
#define KEEL_TRAIN_TENSOR_ARENA_H

#include <stddef.h>

#include "probe/status.h"

// Pieces begin at different distances from a page's border, taken in turn: streams that run side by side at the same
// distance share the lines of a cache and wait for each other's stores.
typedef struct keel_arena {
    char *base;    // NULL while counting
    size_t used;   // bytes
    size_t pieces; // taken so far
    size_t first;  // what PIECES begins with: set by one whose pieces run beside another arena's first ones
    size_t size;
} keel_arena;

// COUNT floats on a cache line's border; NULL while counting. The memory holds zeros and lies in huge pages where there
// are any.
float *keel_arena_take(keel_arena *arena, size_t count);
// To be called after the counting run: allocates what it counted and begins anew.
keel_status keel_arena_allocate(keel_arena *arena);
void keel_arena_free(keel_arena *arena);

#endif
