#include "train/tensor/arena.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE = 64 };

float *keel_arena_take(keel_arena *arena, size_t count) {
    size_t begin = arena->used;
    arena->used += (count * sizeof(float) + LINE - 1) / LINE * LINE;
    return arena->base ? (float *)(void *)(arena->base + begin) : NULL;
}

keel_status keel_arena_allocate(keel_arena *arena) {
    size_t size = arena->used ? arena->used : LINE;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return keel_fail(KEEL_ERR_MEMORY, "cannot allocate %zu bytes: %s", size, strerror(errno));
    // Advice only: without huge pages it is slower, not wrong.
    (void)madvise(memory, size, MADV_HUGEPAGE);
    *arena = (keel_arena){.base = memory, .used = 0, .size = size};
    return KEEL_OK;
}

void keel_arena_free(keel_arena *arena) {
    if (arena->base) munmap(arena->base, arena->size);
    *arena = (keel_arena){0};
}
