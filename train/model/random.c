#include "train/model/random.h"

#include <math.h>

static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

// In (0, 1].
static double uniform(uint64_t state) {
    return ((double)(mix(state) >> 11) + 1) * 0x1p-53;
}

void keel_random_normal(uint64_t seed, uint64_t stream, double deviation, float *data, size_t n) {
    const uint64_t step = UINT64_C(0x9e3779b97f4a7c15);
    const uint64_t start = mix(seed + step) ^ mix(mix(stream + 1) + step);
    const double turn = 6.283185307179586;
    size_t pairs = (n + 1) / 2;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < pairs; i++) {
        double radius = deviation * sqrt(-2 * log(uniform(start + step * (2 * i))));
        double angle = turn * uniform(start + step * (2 * i + 1));
        data[2 * i] = (float)(radius * cos(angle));
        if (2 * i + 1 < n) data[2 * i + 1] = (float)(radius * sin(angle));
    }
}
