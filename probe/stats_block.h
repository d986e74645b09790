// Private to the vector kernels: what their primitives give for a block.
#ifndef KEEL_PROBE_STATS_BLOCK_H
#define KEEL_PROBE_STATS_BLOCK_H

#include "probe/stats_kernel.h"

// What a pass of sums counts besides. The least magnitude of a block tells whether it holds anything to count; where
// the block before did, counting in the same pass spares a second one. Counting costs, so each step takes only what the
// one before it may lack.
typedef enum tally {
    TALLY_NONE,
    TALLY_SUBNORMAL, // below the normals of fp16, where asked, and of the dtype where that is f16: common among
                     // ordinary values
    TALLY_ALL,       // zeros, near zeros and what fp16 flushes as well
} tally;

// Which pass of sums.
typedef struct sum_kind {
    keel_dtype dtype;
    tally tally;
    bool half, checksum;
} sum_kind;

// Counts of magnitudes below a limit.
typedef struct small_counts {
    uint64_t zeros, near_zeros, below_normal, below_flush, below_normal16;
    uint64_t least; // non-zero magnitude, as bits; above infinity of nothing
} small_counts;

typedef struct block_sums {
    double count; // finite values
    double sum, sum_sq;
    double min, max;
    uint64_t least;      // magnitude as bits, zeros included
    small_counts counts; // what the tally asked for
    uint64_t checksum;   // where asked
} block_sums;

static inline uint64_t bits_of(bool wide, double x) {
    return wide ? keel_bits_f64(x) : keel_bits_f32((float)x);
}

static inline double value_of(bool wide, uint64_t bits) {
    return wide ? keel_double_of(bits) : (double)keel_float_of((uint32_t)bits);
}

#endif
