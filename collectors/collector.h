// A collector: a source of scalars that the program itself does not know of, such as the memory of its process. One
// file in collectors/quantity/, one line in the table of collector.c; quantity/collector_template.c is a commented
// example that is compiled and tested.
#ifndef KEEL_COLLECTORS_COLLECTOR_H
#define KEEL_COLLECTORS_COLLECTOR_H

#include "probe/keel.h"

typedef struct keel_collector {
    const char *name;
    // Registers scalars with PROBE, which is not started yet. *STATE is handed to the other two; set on success only.
    keel_status (*start)(keel_probe *probe, void **state);
    // A step is over: sets scalars of this rank's FRAME by keel_frame_set_scalar. On the training thread: a few
    // microseconds, no allocation, no lock. What cannot be had this time is left unset.
    void (*sample)(void *state, keel_frame *frame, uint32_t rank, const keel_step *step);
    void (*stop)(void *state); // frees STATE
} keel_collector;

// The table: every collector of the monitor, ended by NULL.
extern const keel_collector *const keel_collectors[];

extern const keel_collector keel_collector_system;
extern const keel_collector keel_collector_template; // not in the table

// Sets scalar ID of the frame to what RANK measured, unless the program has set it itself.
void keel_frame_set_scalar(keel_frame *frame, uint32_t id, uint32_t rank, double value);

#endif
