// A track: the robust centre and spread of a series in 16 bytes, for rules that follow thousands of them.
//
// Centre and spread are the running median, and the running median of the distance to it, by stochastic approximation
// (Robbins and Monro 1951; the idea for streams: Ma, Muthukrishnan and Sandler, "Frugal streaming", 2013): each value
// moves the centre by a share of the spread towards it, and the spread by a share of itself. A value is scored before
// it joins; what lies KEEL_TRACK_OUTLIER or more from the centre does not join, until that has gone on for
// KEEL_TRACK_ACCEPT records: then it is the new level. Within the first KEEL_TRACK_WARMUP values it joins, and counts
// as outside all the same: a level that was left then is no news later. Values are logarithms or the like: the spread
// has a floor.
#ifndef KEEL_ANALYZERS_TRACK_H
#define KEEL_ANALYZERS_TRACK_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "analyzers/series.h"

typedef struct keel_track {
    float centre, spread;
    float level;     // mean of the values outside
    uint16_t joined; // values so far, saturating
    uint8_t outside; // records outside; falls by two with each one inside
    uint8_t recent;  // the rule's own: which of the last records it thought odd, the latest in bit 0
} keel_track;
_Static_assert(sizeof(keel_track) == 16, "four tracks to a cache line");

enum { KEEL_TRACK_WARMUP = 64, KEEL_TRACK_ACCEPT = 64 };
#define KEEL_TRACK_OUTLIER 6.0f

typedef struct keel_track_score {
    bool ready;
    float distance; // value - centre
    float z;        // in sigmas of 1.4826 spread, at least FLOOR
} keel_track_score;

static inline keel_track_score keel_track_look(const keel_track *t, float value, float floor) {
    float sigma = (float)KEEL_SIGMA_OF_MAD * t->spread, distance = value - t->centre;
    if (sigma < floor) sigma = floor;
    return (keel_track_score){.ready = t->joined >= KEEL_TRACK_WARMUP, .distance = distance, .z = distance / sigma};
}

static inline void keel_track_accept(keel_track *t) {
    t->centre = t->level;
    t->outside = 0;
    t->recent = 0;
}

static inline void keel_track_join(keel_track *t, float distance) {
    if (t->joined == 0) {
        t->centre += distance;
        t->spread = 0.1f;
        t->joined = 1;
        return;
    }
    float step = t->joined < 32 ? 0.25f : 0.0625f;
    float move = step * t->spread, size = fabsf(distance);
    t->centre += size < move ? distance : copysignf(move, distance);
    t->spread *= size > t->spread ? 1 + step : 1 - step;
    if (t->spread < 1e-4f) t->spread = 1e-4f;
    if (t->joined < UINT16_MAX) t->joined++;
}

// SCORE: of this value, just taken.
static inline void keel_track_add(keel_track *t, float value, const keel_track_score *score) {
    const bool outside = t->joined && fabsf(score->z) >= KEEL_TRACK_OUTLIER;
    if (!outside && t->outside) t->outside = t->outside > 2 ? t->outside - 2 : 0;
    if (!outside || !score->ready) keel_track_join(t, score->distance);
    if (!outside) return;
    t->outside++;
    t->level = t->outside == 1 ? value : t->level + (value - t->level) / t->outside;
    if (t->outside >= KEEL_TRACK_ACCEPT) keel_track_accept(t);
}

#endif
