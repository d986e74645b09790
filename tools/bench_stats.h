// How fast keel_stats is taken, beside a pure read of the same memory in the same run.
#ifndef KEEL_TOOLS_BENCH_STATS_H
#define KEEL_TOOLS_BENCH_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "probe/dtype.h"
#include "probe/status.h"

typedef struct keel_bench_stats_result {
    double read_gbps;  // 1e9 bytes a second, median
    double stats_gbps; // the same of keel_stats_observe
    double ratio;      // median over pairs, measured one after the other, of stats to read
} keel_bench_stats_result;

// Normal values of standard deviation 0.02 in BYTES of memory, on the calling thread; FIELDS: KEEL_FIELDS_*. Read and
// observation alternate, so that a busy neighbour or a change of clock meets both. KEEL_ERR_USAGE if BYTES holds no
// element.
keel_status keel_bench_stats(size_t bytes, keel_dtype dtype, uint32_t fields, keel_bench_stats_result *out);

#endif
