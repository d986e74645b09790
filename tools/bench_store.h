// What the store costs: bytes on disk and time of the writer thread, for real statistics of random tensors.
#ifndef KEEL_TOOLS_BENCH_STORE_H
#define KEEL_TOOLS_BENCH_STORE_H

#include <stdint.h>

#include "probe/status.h"

typedef struct keel_bench_store_result {
    uint32_t sites, ops, steps;
    double live_bytes_per_value;   // file / (sites x ops x steps), as it is written
    double packed_bytes_per_value; // the same, packed
    double bytes_per_site;         // of a site and step, live
    double us_per_site;            // of a site and step: median time of the writer thread / sites
    double row_ms_median;          // of the writer thread per step, flushed to the operating system
    double row_ms_mean;
    double row_ms_worst;
    double fill_ms_median;  // of the same thread: a row from a merged frame
    double pack_mb_per_s;   // live bytes packed per second, of one thread
    double read_rows_per_s; // all values of a packed row
} keel_bench_store_result;

// The 15 ops that need no more than the base fields, of SITES sites, half of them weights that drift, half gradients.
// In a folder of its own in DIRECTORY, which is removed. KEEL_ERR_USAGE if SITES or STEPS is 0.
keel_status keel_bench_store(uint32_t sites, uint32_t steps, const char *directory, keel_bench_store_result *out);

#endif
