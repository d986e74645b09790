// When a site's statistics are taken: start, every, count.
#ifndef KEEL_PROBE_SCHEDULE_H
#define KEEL_PROBE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "probe/status.h"

KEEL_C_BEGIN

typedef struct keel_schedule {
    uint64_t start; // first step, from 1
    uint64_t every; // every how many steps; 0: never
    uint64_t count; // how many times in all; 0: no end
} keel_schedule;

// True if STEP (from 1) is due. A function of the step alone, so that all ranks and a resumed run agree.
KEEL_API bool keel_schedule_due(const keel_schedule *schedule, uint64_t step);

KEEL_C_END

#endif
