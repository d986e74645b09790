#include "probe/stats_kernel.h"

void keel_stats_avx2(keel_stats *stats, const keel_stats_params *params, keel_dtype dtype, const void *data, size_t n) {
    keel_stats_scalar(stats, params, dtype, data, n);
}
