// The recorder: the thread that turns merged frames into rows, hands them to the sinks one after another, and gives the
// frames back cleared. On a rank that records nothing it only clears, which keeps that off the training thread as well.
#ifndef KEEL_COLLECTORS_RECORDER_H
#define KEEL_COLLECTORS_RECORDER_H

#include "collectors/frame_pool.h"
#include "collectors/sink_list.h"

typedef struct keel_recorder keel_recorder;

typedef struct keel_recorder_options {
    keel_frame_pool *pool;     // borrowed, like the others
    const keel_run_info *info; // NULL: only clear
    keel_sink_list *sinks;     // started; closed by the recorder's thread when that ends
    void (*idle)(
        void *context); // called on the recorder's thread, four times a second while nothing comes; NULL: nobody
    void *idle_context;
} keel_recorder_options;

keel_status keel_recorder_open(const keel_recorder_options *options, keel_recorder **recorder);
// SLOT goes to the recorder, and from there back to pool->free. From one thread.
void keel_recorder_put(keel_recorder *recorder, keel_slot *slot);
// Waits until everything put so far is recorded and the sinks are flushed. From one thread, which may be another one
// than that of put.
keel_status keel_recorder_drain(keel_recorder *recorder);
// Records what is left, and a row without values where the last of the ENDED steps, LAST_STEP, was lost; closes the
// sinks, joins the thread. *ROWS: steps recorded. KEEL_ERR_IO: a sink failed.
keel_status keel_recorder_close(keel_recorder *recorder, uint64_t ended, const keel_step *last_step, uint64_t *rows);

#endif
