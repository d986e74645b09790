#include "collectors/store/rollbacks.h"

#include <stdlib.h>

static keel_status add_one(keel_rollbacks *r, uint64_t row, uint64_t step) {
    if ((r->count & (r->count - 1)) == 0) { // full at every power of two
        keel_rollback *more = realloc(r->list, (r->count ? 2 * r->count : 1) * sizeof *more);
        if (!more) return keel_fail(KEEL_ERR_MEMORY, "no memory for %zu rollbacks of a run", r->count + 1);
        r->list = more;
    }
    r->list[r->count++] = (keel_rollback){.row = row, .step = step};
    return KEEL_OK;
}

keel_status keel_rollbacks_add(keel_rollbacks *r, const uint64_t *steps, size_t count, size_t stride) {
    for (size_t i = 0; i < count; i++) {
        const uint64_t step = *(const uint64_t *)(const void *)((const char *)steps + i * stride);
        if (r->rows > 0 && step <= r->last_step) {
            const keel_status status = add_one(r, r->rows, step);
            if (status) return status;
        }
        r->last_step = step;
        r->rows++;
    }
    return KEEL_OK;
}

keel_status keel_rollbacks_add_rising(keel_rollbacks *r, uint64_t first, uint64_t last, uint64_t count) {
    if (count == 0) return KEEL_OK;
    const keel_status status = keel_rollbacks_add(r, &first, 1, sizeof first);
    if (status) return status;
    r->rows += count - 1;
    r->last_step = last;
    return KEEL_OK;
}

void keel_rollbacks_settle(keel_rollbacks *r) {
    uint64_t least = UINT64_MAX;
    for (size_t i = r->count; i-- > 0;) {
        if (r->list[i].step < least) least = r->list[i].step;
        r->list[i].least = least;
    }
}

// The first rollback after ROW, or count.
static size_t find_after(const keel_rollbacks *r, uint64_t row) {
    size_t low = 0, high = r->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (r->list[middle].row > row)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool keel_rollbacks_supersede(const keel_rollbacks *r, uint64_t row, uint64_t step) {
    const size_t next = find_after(r, row);
    return next < r->count && step >= r->list[next].least;
}

bool keel_rollbacks_at(const keel_rollbacks *r, uint64_t row) {
    const size_t next = find_after(r, row);
    return next > 0 && r->list[next - 1].row == row;
}

void keel_rollbacks_free(keel_rollbacks *r) {
    free(r->list);
    *r = (keel_rollbacks){0};
}
