#include "analyzers/recent.h"

#include <math.h>

#include "analyzers/series.h"

void keel_recent_add(keel_recent *recent, double value) {
    recent->values[recent->count++ % KEEL_RECENT] = value;
}

keel_reference keel_recent_take(const keel_recent *recent, double floor_relative, double floor_absolute) {
    enum { HALF = KEEL_RECENT / 2 };
    if (recent->count < HALF) return (keel_reference){0};
    double values[KEEL_RECENT], store[KEEL_WINDOW_STORE(KEEL_RECENT)];
    uint32_t n = recent->count < KEEL_RECENT ? (uint32_t)recent->count : KEEL_RECENT;
    for (uint32_t i = 0; i < n; i++) values[i] = recent->values[(recent->count - n + i) % KEEL_RECENT];
    keel_window window = {.capacity = KEEL_RECENT};
    keel_window_fill(&window, store, values, n);
    double sigma = KEEL_SIGMA_OF_MAD * window.mad;
    keel_window_fill(&window, store, values + n - HALF, HALF);
    double floor = fmax(floor_relative * fabs(window.median), floor_absolute);
    return (keel_reference){.expected = window.median, .sigma = fmax(sigma, floor), .known = true};
}

double keel_reference_score(const keel_reference *r, double value) {
    if (!r->known || value == r->expected) return 0;
    if (!(r->sigma > 0)) return copysign(KEEL_SCORE_LIMIT, value - r->expected);
    return fmax(-KEEL_SCORE_LIMIT, fmin(KEEL_SCORE_LIMIT, (value - r->expected) / r->sigma));
}
