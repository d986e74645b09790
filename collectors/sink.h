// Where rows go: store, export, online analysis. Sinks run on the writer thread of rank 0, one after another, never on
// the training thread.
#ifndef KEEL_COLLECTORS_SINK_H
#define KEEL_COLLECTORS_SINK_H

#include "collectors/incident.h"
#include "collectors/row.h"
#include "probe/keel.h"

typedef struct keel_sink {
    void *context;
    const char *name;
    // The run's tables are known; INFO lives until close. A sink that cannot start fails here and the run goes on
    // without it, said aloud.
    keel_status (*start)(void *context, const keel_run_info *info);
    // One step. A failure is logged once by the monitor, and the sink is asked again at the next step.
    keel_status (*row)(void *context, const keel_row *row);
    // An incident is new or changed. NULL: not interested.
    keel_status (*incident)(void *context, const keel_incident *incident);
    // Everything handed over is where it will be found. NULL: nothing to do.
    keel_status (*flush)(void *context);
    void (*close)(void *context); // frees the context
    // Some times a second while no row comes. NULL: nothing to do.
    void (*idle)(void *context);
} keel_sink;

#endif
