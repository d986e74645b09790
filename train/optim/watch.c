#include "train/optim/watch.h"

#include <string.h>

void keel_watch_begin(keel_watch *watch, keel_tap *const *taps, size_t count) {
    for (size_t q = 0; q < count; q++) keel_block_begin(&watch->now[q], taps[q]->site);
}

void keel_watch_end(keel_watch *watch, keel_tap *const *taps, size_t count, bool before, bool after) {
    if (!before && !after) {
        for (size_t q = 0; q < count; q++) keel_block_end_both(&watch->now[q], keel_tap_other(taps[q]));
        return;
    }
    const size_t slot = before ? 0 : 1;
    memcpy(watch->waiting[slot], watch->now, count * sizeof *watch->now);
    watch->taps[slot] = taps;
}

void keel_watch_settle(keel_watch *watches, int threads, size_t count) {
    for (int t = 0; t < threads; t++)
        for (size_t slot = 0; slot < 2; slot++) {
            keel_watch *w = &watches[t];
            keel_tap *const *taps = w->taps[slot];
            for (size_t q = 0; q < count && taps; q++)
                keel_block_end_both(&w->waiting[slot][q], keel_tap_other(taps[q]));
            w->taps[slot] = NULL;
        }
}
