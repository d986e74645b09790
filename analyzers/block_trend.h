// The slow course of a series: means of blocks of records, and the lowest of the last KEEL_TREND_BLOCKS of them. For
// rules that look for a rise over hundreds of records.
#ifndef KEEL_ANALYZERS_BLOCK_TREND_H
#define KEEL_ANALYZERS_BLOCK_TREND_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

enum { KEEL_TREND_BLOCKS = 32, KEEL_TREND_LEARN = 4 };

typedef struct keel_trend {
    float sum;      // of the present block
    float mean;     // of the last one
    float wander;   // usual change from one to the next
    uint8_t n;      // records in the present block
    uint8_t at;     // where the next mean goes in the ring
    uint8_t filled; // of the ring
    uint8_t high;   // blocks in a row that the rule thought high
    uint32_t blocks;
    float ring[KEEL_TREND_BLOCKS];
} keel_trend;

// Adds X to the present block of LENGTH records. True if it completes one: MEAN is new, and not in the ring yet. What
// lies more than CLIP from the last mean counts as CLIP from it, so that one outlier does not make a block.
static inline bool keel_trend_add(keel_trend *t, float x, uint8_t length, float clip) {
    if (t->blocks) {
        if (x > t->mean + clip) x = t->mean + clip;
        if (x < t->mean - clip) x = t->mean - clip;
    }
    t->sum += x;
    if (++t->n < length) return false;
    float mean = t->sum / (float)length;
    if (t->blocks) t->wander += (fabsf(mean - t->mean) - t->wander) / (t->blocks < 8 ? (float)t->blocks : 8);
    t->mean = mean;
    t->sum = 0;
    t->n = 0;
    t->blocks++;
    return true;
}

// The lowest mean in the ring; INFINITY while there are fewer than KEEL_TREND_LEARN. *AGO, unless
// NULL: how many blocks before the last one it was.
static inline float keel_trend_low(const keel_trend *t, uint32_t *ago) {
    float low = INFINITY;
    uint32_t at = 0;
    if (t->filled < KEEL_TREND_LEARN) return low;
    for (uint32_t i = 1; i <= t->filled; i++) {
        const float mean = t->ring[(t->at + KEEL_TREND_BLOCKS - i) % KEEL_TREND_BLOCKS];
        if (mean >= low) continue;
        low = mean;
        at = i;
    }
    if (ago) *ago = at;
    return low;
}

// The mean joins the ring.
static inline void keel_trend_keep(keel_trend *t) {
    t->ring[t->at] = t->mean;
    t->at = (uint8_t)((t->at + 1) % KEEL_TREND_BLOCKS);
    if (t->filled < KEEL_TREND_BLOCKS) t->filled++;
}

#endif
