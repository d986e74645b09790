// A tap: the one place where the trainer lets a tensor be seen and, in experiments, disturbed. Every layer output, gradient, parameter, optimizer
// state and collective passes one.
#ifndef KEEL_TRAIN_MODEL_TAP_H
#define KEEL_TRAIN_MODEL_TAP_H

#include <math.h>

#include "configs/train_config.h"
#include "probe/keel.h"

typedef struct keel_tap {
    keel_site *site;
    bool armed;      // a fault is due at this tap in this step
    size_t index;    // element it hits
} keel_tap;

typedef struct keel_taps keel_taps; // all taps of a rank, and the configured faults

// FAULTS is borrowed. PROBE may be one that nobody listens to.
keel_status keel_taps_open(keel_probe *probe, uint32_t rank, const keel_fault_config *faults, size_t count, keel_taps **taps);
void keel_taps_close(keel_taps *taps);
keel_probe *keel_taps_probe(keel_taps *taps);
// Registers the site and gives its tap, owned by TAPS.
keel_status keel_taps_add(keel_taps *taps, const keel_site_info *info, keel_tap **tap);
// After all taps are known: KEEL_ERR_CONFIG naming a fault whose site does not exist, with the nearest name.
keel_status keel_taps_check(const keel_taps *taps);
// Arms the faults of STEP. True if any fault of any kind (on any rank) is due, so that the step is flagged.
bool keel_taps_arm(keel_taps *taps, uint64_t step);

// DATA [n] float32: a fault writes here before anybody sees it.
static inline void keel_tap_at(keel_tap *tap, float *data, size_t n) {
    if (tap->armed && tap->index < n) data[tap->index] = NAN, tap->armed = false;
    keel_observe(tap->site, data, n);
}

#endif
