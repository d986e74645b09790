// Observation by parameter, within passes whose blocks are shared out over threads.
#ifndef KEEL_TRAIN_OPTIM_WATCH_H
#define KEEL_TRAIN_OPTIM_WATCH_H

#include "train/model/tap.h"

enum { KEEL_WATCH_TAPS = 5 };

// What a thread has seen of the parameter at hand. A parameter that lies in several threads' shares waits for the end
// of the pass, where the records are added in the threads' order.
typedef struct keel_watch {
    // Threads write to their own all the time: they must not share a line, nor the neighbour that is fetched with it.
    _Alignas(128) keel_block now[KEEL_WATCH_TAPS];
    keel_block waiting[2][KEEL_WATCH_TAPS]; // of the first and the last parameter of the share
    keel_tap *const *taps[2];               // of WAITING; NULL: none wait
} keel_watch;

// A parameter begins, that COUNT taps see.
void keel_watch_begin(keel_watch *watch, keel_tap *const *taps, size_t count);
// It is over in this share. BEFORE, AFTER: other shares of the pass hold parts of it.
void keel_watch_end(keel_watch *watch, keel_tap *const *taps, size_t count, bool before, bool after);
// The pass is over. WATCHES [threads].
void keel_watch_settle(keel_watch *watches, int threads, size_t count);

#endif
