#include "train/model/random.h"

#include <math.h>

#include "train/mix.h"

// In (0, 1].
static double uniform(uint64_t stream, uint64_t index) {
    return ((double)(keel_mix(stream, index) >> 11) + 1) * 0x1p-53;
}

uint64_t keel_random_stream(uint64_t seed, uint64_t place) {
    return keel_mix(seed, place);
}

void keel_random_normal(uint64_t stream, size_t first, double deviation, float *data, size_t n) {
    const double turn = 6.283185307179586;
    const size_t end = first + n;
#pragma omp parallel for schedule(static)
    for (size_t i = first / 2; i < (end + 1) / 2; i++) {
        double radius = deviation * sqrt(-2 * log(uniform(stream, 2 * i)));
        double angle = turn * uniform(stream, 2 * i + 1);
        if (2 * i >= first) data[2 * i - first] = (float)(radius * cos(angle));
        if (2 * i + 1 < end) data[2 * i + 1 - first] = (float)(radius * sin(angle));
    }
}
