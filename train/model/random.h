// Normally distributed initial values that depend on a seed, a stream and their place in it alone.
#ifndef KEEL_TRAIN_MODEL_RANDOM_H
#define KEEL_TRAIN_MODEL_RANDOM_H

#include <stddef.h>
#include <stdint.h>

// The stream of PLACE among those of SEED.
uint64_t keel_random_stream(uint64_t seed, uint64_t place);
// DATA [n] = values FIRST, FIRST + 1, ... of STREAM, from normal(0, deviation), by Box and Muller (1958).
void keel_random_normal(uint64_t stream, size_t first, double deviation, float *data, size_t n);

#endif
