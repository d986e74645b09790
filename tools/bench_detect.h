// What judging costs for each series and step.
#ifndef KEEL_TOOLS_BENCH_DETECT_H
#define KEEL_TOOLS_BENCH_DETECT_H

#include <stdint.h>

#include "probe/status.h"

typedef struct keel_bench_detect_result {
    double ns_per_series_step; // all rules over rows of SERIES sites and the usual scalars
} keel_bench_detect_result;

// SERIES sites, with the quantities that a trainer has in equal parts and every op that some rule reads collected in
// every step, over STEPS steps, on the calling thread, after a warm-up of as many steps as a series needs. Times are of
// its CPU clock. KEEL_ERR_USAGE if either is 0.
keel_status keel_bench_detect(uint32_t series, uint32_t steps, keel_bench_detect_result *out);

#endif
