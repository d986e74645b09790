// The median of measurements.
#ifndef KEEL_TOOLS_BENCH_MEDIAN_H
#define KEEL_TOOLS_BENCH_MEDIAN_H

#include <stddef.h>

// Sorts VALUES [COUNT >= 1].
double keel_median(double *values, size_t count);

#endif
