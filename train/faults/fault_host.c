#include "train/faults/fault_host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void keel_fault_sleep(double seconds) {
    struct timespec left = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) && errno == EINTR) continue;
}

keel_status keel_fault_leak(void **leaked, size_t bytes) {
    const size_t size = bytes > sizeof *leaked ? bytes : sizeof *leaked;
    void *block = malloc(size);
    if (!block) return keel_fail(KEEL_ERR_MEMORY, "fault memory_leak: no memory for %zu bytes more", bytes);
    memset(block, 1, size);
    memcpy(block, leaked, sizeof *leaked);
    *leaked = block;
    return KEEL_OK;
}

void keel_fault_free_leaked(void *leaked) {
    while (leaked) {
        void *next;
        memcpy(&next, leaked, sizeof next);
        free(leaked);
        leaked = next;
    }
}
