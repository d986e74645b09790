// Random numbers as pure functions of what they belong to: there is nothing to save in a checkpoint but the seed.
#ifndef KEEL_TRAIN_MIX_H
#define KEEL_TRAIN_MIX_H

#include <stdint.h>

// A well mixed 64-bit value of the two: the finalizer of SplitMix64 (Steele, Lea and Flood 2014), applied to each in
// turn.
static inline uint64_t keel_mix(uint64_t a, uint64_t b) {
    uint64_t z = a;
    for (int i = 0; i < 2; i++) {
        z += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        z ^= z >> 31;
        if (i == 0) z ^= b;
    }
    return z;
}

#endif
