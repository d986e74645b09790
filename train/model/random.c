#include "train/model/random.h"

#include <math.h>

#include "train/mix.h"

// In (0, 1].
static double uniform(uint64_t stream, uint64_t index) {
    return ((double)(keel_mix(stream, index) >> 11) + 1) * 0x1p-53;
}

void keel_random_normal(uint64_t seed, uint64_t stream, double deviation, float *data, size_t n) {
    const uint64_t own = keel_mix(seed, stream);
    const double turn = 6.283185307179586;
    size_t pairs = (n + 1) / 2;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < pairs; i++) {
        double radius = deviation * sqrt(-2 * log(uniform(own, 2 * i)));
        double angle = turn * uniform(own, 2 * i + 1);
        data[2 * i] = (float)(radius * cos(angle));
        if (2 * i + 1 < n) data[2 * i + 1] = (float)(radius * sin(angle));
    }
}
