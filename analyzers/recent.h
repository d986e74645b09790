// The last values of a series, kept as they came, for rules that ask what was normal only at rare moments: a resume, an
// epoch.
#ifndef KEEL_ANALYZERS_RECENT_H
#define KEEL_ANALYZERS_RECENT_H

#include <stdbool.h>
#include <stdint.h>

enum { KEEL_RECENT = 64 };

typedef struct keel_recent {
    double values[KEEL_RECENT];
    uint64_t count; // all values added so far
} keel_recent;

// What was normal when it was taken: plain memory too.
typedef struct keel_reference {
    double expected; // median of the last half
    double sigma;    // 1.4826 MAD of all, at least the floor
    bool known;      // false: fewer than KEEL_RECENT / 2 values
} keel_reference;

void keel_recent_add(keel_recent *recent, double value); // finite
keel_reference keel_recent_take(const keel_recent *recent, double floor_relative, double floor_absolute);
double keel_reference_score(const keel_reference *reference, double value); // z; 0 where nothing is known

#endif
