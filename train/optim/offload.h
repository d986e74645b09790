// Optimizer states that need not all be in memory: those beyond a limit lie in a mapped file. The update goes through
// them in windows, in order; a thread of its own reads the next window meanwhile, writes the last one back and gives
// its memory up.
//
//     keel_offload_begin(offload);
//     for each window: keel_offload_take(offload, window); ... its elements ...; keel_offload_give(offload, window);
//     keel_offload_end(offload);
#ifndef KEEL_TRAIN_OPTIM_OFFLOAD_H
#define KEEL_TRAIN_OPTIM_OFFLOAD_H

#include "configs/train_config.h"

enum { KEEL_OFFLOAD_STATES = 2 };

typedef struct keel_offload keel_offload;

// States of NUMEL floats, all zero. The file is made in the folder, nameless at once, so that it goes with the process
// however that ends, and its space is reserved. KEEL_ERR_CONFIG for a limit that is too small, or a folder that lies in
// memory or has no room. *OFFLOAD is NULL where the states fit within the limit.
keel_status keel_offload_open(const keel_offload_config *config, size_t numel, keel_offload **offload);
void keel_offload_close(keel_offload *offload); // NULL is fine

float *keel_offload_state(keel_offload *offload, size_t state); // [NUMEL], page-aligned

size_t keel_offload_windows(const keel_offload *offload);
size_t keel_offload_window_of(const keel_offload *offload, size_t element);

void keel_offload_begin(keel_offload *offload);
// Waits for the window. Elements of the following one may be touched too, up to a page. As keel_offload_check.
keel_status keel_offload_take(keel_offload *offload, size_t window);
void keel_offload_give(keel_offload *offload, size_t window);
void keel_offload_end(keel_offload *offload); // also of an update that fails
// KEEL_ERR_IO from the first write that failed on: what the states were is lost.
keel_status keel_offload_check(keel_offload *offload);

// For who touches states outside an update, after every keel_offload_portion of each: what is in the file leaves
// memory.
void keel_offload_rest(keel_offload *offload);
// Elements of each state; it depends on the limit alone.
size_t keel_offload_portion(const keel_offload_config *config);

size_t keel_offload_memory(const keel_offload *offload); // the most bytes of states in memory
size_t keel_offload_disk(const keel_offload *offload);   // bytes of the file, all read and written in an update
double keel_offload_waited(const keel_offload *offload); // seconds that updates have waited for their states

#endif
