#include "analyzers/state_bytes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void keel_state_write(keel_state_writer *w, const void *data, size_t size) {
    if (w->status || size == 0) return;
    if (w->size + size > w->capacity) {
        size_t capacity = w->capacity ? w->capacity : 4096;
        while (capacity < w->size + size) capacity *= 2;
        unsigned char *grown = realloc(w->bytes, capacity);
        if (!grown) {
            w->status = keel_fail(KEEL_ERR_MEMORY, "no memory for %zu bytes of detector state", capacity);
            return;
        }
        w->bytes = grown;
        w->capacity = capacity;
    }
    memcpy(w->bytes + w->size, data, size);
    w->size += size;
}

void keel_state_write_u64(keel_state_writer *w, uint64_t value) {
    keel_state_write(w, &value, sizeof value);
}

keel_status keel_state_read(keel_state_reader *r, void *data, size_t size) {
    if (size > r->left) return keel_fail(KEEL_ERR_FORMAT, "detector state ends %zu bytes too early", size - r->left);
    if (size == 0) return KEEL_OK;
    memcpy(data, r->bytes, size);
    r->bytes += size;
    r->left -= size;
    return KEEL_OK;
}

keel_status keel_state_read_u64(keel_state_reader *r, uint64_t *value) {
    return keel_state_read(r, value, sizeof *value);
}

keel_status keel_state_expect(keel_state_reader *r, uint64_t expected, const char *what) {
    uint64_t value = 0;
    keel_status status = keel_state_read_u64(r, &value);
    if (status) return status;
    if (value == expected) return KEEL_OK;
    return keel_fail(KEEL_ERR_FORMAT, "detector state: %s is %" PRIu64 ", expected %" PRIu64, what, value, expected);
}
