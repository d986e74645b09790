// Normally distributed initial values that depend on a seed and a stream alone.
#ifndef KEEL_TRAIN_MODEL_RANDOM_H
#define KEEL_TRAIN_MODEL_RANDOM_H

#include <stddef.h>
#include <stdint.h>

// DATA [n] from normal(0, deviation), by Box and Muller (1958).
void keel_random_normal(uint64_t seed, uint64_t stream, double deviation, float *data, size_t n);

#endif
