// Private to the kernels and the merge: the sums of a set of finite values, and how two sets become one.
#ifndef KEEL_PROBE_STATS_MOMENTS_H
#define KEEL_PROBE_STATS_MOMENTS_H

#include <math.h>
#include <stdint.h>

#include "probe/stats.h"

enum { KEEL_WIDE_EXPONENT = 700 }; // of values outside the middle range

static inline int32_t keel_moments_exponent(double greatest_magnitude) {
    if (greatest_magnitude >= 0x1p350) return KEEL_WIDE_EXPONENT;
    if (greatest_magnitude < 0x1p-350 && greatest_magnitude > 0) return -KEEL_WIDE_EXPONENT;
    return 0;
}

static inline void keel_moments_rescale(keel_moments *m, int32_t exponent) {
    const int32_t by = m->exponent - exponent;
    m->sum = ldexp(m->sum, by);
    m->sum_sq = ldexp(m->sum_sq, 2 * by);
    m->m2 = ldexp(m->m2, 2 * by);
    m->exponent = exponent;
}

static inline int32_t keel_moments_common_exponent(const keel_moments *a, const keel_moments *b) {
    if (a->sum_sq == 0) return b->exponent; // zeros alone have no magnitude to go by
    if (b->sum_sq == 0) return a->exponent;
    return a->exponent > b->exponent ? a->exponent : b->exponent;
}

// Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for computing sample variances", eq. 2.1.
static inline void keel_moments_merge(keel_moments *into, const keel_moments *from) {
    if (from->count == 0) return;
    if (into->count == 0) {
        *into = *from;
        return;
    }
    keel_moments b = *from;
    if (into->exponent != b.exponent) {
        const int32_t exponent = keel_moments_common_exponent(into, &b);
        keel_moments_rescale(into, exponent);
        keel_moments_rescale(&b, exponent);
    }
    const double count = into->count + b.count;
    const double apart = b.sum * into->count - into->sum * b.count; // difference of the means * both counts
    into->m2 += b.m2 + apart * apart / (into->count * b.count * count);
    into->sum += b.sum;
    into->sum_sq += b.sum_sq;
    into->count = count;
}

static inline double keel_stats_finite_count(const keel_stats *s) {
    return (double)(s->n - s->nans - s->pos_infs - s->neg_infs);
}

static inline keel_moments keel_moments_of(const keel_stats *s) {
    return (keel_moments){
        .count = keel_stats_finite_count(s), .sum = s->sum, .sum_sq = s->sum_sq, .m2 = s->m2, .exponent = s->exponent};
}

#endif
