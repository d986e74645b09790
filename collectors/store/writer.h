// Writes a run directory: RUN/keel-0000.h5 and on, schema 1 (docs/store.md), in SWMR mode. One thread uses a writer.
#ifndef KEEL_COLLECTORS_STORE_WRITER_H
#define KEEL_COLLECTORS_STORE_WRITER_H

#include "collectors/row.h"
#include "collectors/sink.h"

typedef struct keel_store_options {
    uint64_t segment_bytes; // a segment is closed, and later repacked, at about this size
} keel_store_options;

// A sink that stores rows and incidents under DIRECTORY (made if need be). An existing run there is continued with a new segment.
// The segment is created in start, complete with all its datasets, before SWMR begins.
keel_status keel_store_sink_open(const char *directory, const keel_store_options *options, keel_sink *sink);

#endif
