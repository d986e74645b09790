// Where a run went back to an earlier step: what is superseded.
#ifndef KEEL_COLLECTORS_STORE_ROLLBACKS_H
#define KEEL_COLLECTORS_STORE_ROLLBACKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

// A row whose step is not after the step of the row before it.
typedef struct keel_rollback {
    uint64_t row;   // over all segments
    uint64_t step;  // that it holds
    uint64_t least; // the least step of it and of all later rollbacks
} keel_rollback;

typedef struct keel_rollbacks {
    keel_rollback *list; // by row
    size_t count;
    uint64_t rows;      // that were looked at
    uint64_t last_step; // of them
} keel_rollbacks;       // zeroed: none

// The steps of the next COUNT rows; STRIDE: bytes from one to the next.
keel_status keel_rollbacks_add(keel_rollbacks *rollbacks, const uint64_t *steps, size_t count, size_t stride);
// The same for COUNT rows that rise from FIRST to LAST.
keel_status keel_rollbacks_add_rising(keel_rollbacks *rollbacks, uint64_t first, uint64_t last, uint64_t count);
// After rows were added, before the next two.
void keel_rollbacks_settle(keel_rollbacks *rollbacks);
bool keel_rollbacks_supersede(const keel_rollbacks *rollbacks, uint64_t row, uint64_t step);
bool keel_rollbacks_at(const keel_rollbacks *rollbacks, uint64_t row);
void keel_rollbacks_free(keel_rollbacks *rollbacks);

#endif
