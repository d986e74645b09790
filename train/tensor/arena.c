#include "train/tensor/arena.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE = 64, PAGE = 4096, STEP = 17 * LINE };

float *keel_arena_take(keel_arena *arena, size_t count) {
    size_t bytes = (count * sizeof(float) + LINE - 1) / LINE * LINE;
    // A small piece is in cache anyway.
    if (bytes > 4 * PAGE) {
        size_t distance = arena->pieces++ * STEP % PAGE;
        arena->used += (distance + PAGE - arena->used % PAGE) % PAGE;
    }
    size_t begin = arena->used;
    arena->used += bytes;
    return arena->base ? (float *)(void *)(arena->base + begin) : NULL;
}

keel_status keel_arena_allocate(keel_arena *arena) {
    size_t size = arena->used ? arena->used : LINE;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return keel_fail(KEEL_ERR_MEMORY, "cannot allocate %zu bytes: %s", size, strerror(errno));
    // Advice only: without huge pages it is slower, not wrong.
    (void)madvise(memory, size, MADV_HUGEPAGE);
    *arena = (keel_arena){.base = memory, .pieces = arena->first, .first = arena->first, .size = size};
    return KEEL_OK;
}

void keel_arena_free(keel_arena *arena) {
    if (arena->base) munmap(arena->base, arena->size);
    *arena = (keel_arena){0};
}
