// What a rank's fellows on its host saw of its end: RUN/hosts/HOST.jsonl, a line each, written at once by whoever still
// can. The store does not hold these, since the rank that writes it may be the one.
#ifndef KEEL_COLLECTORS_WATCH_HOST_EVENT_H
#define KEEL_COLLECTORS_WATCH_HOST_EVENT_H

#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

typedef enum keel_host_event_kind {
    KEEL_HOST_GONE,   // its process has ended, its run has not
    KEEL_HOST_SILENT, // no sign of life
} keel_host_event_kind;

typedef struct keel_host_event {
    keel_host_event_kind kind;
    int32_t rank;     // -1: silent are all, and who is waited for is not known
    uint64_t step;    // in which, or after which, it was seen last; 0: before the first
    double time_unix; // when it was noticed
    double seconds;   // without a sign of life; 0 where it is gone
    int32_t pid;
    char host[64];
    char how[64]; // "killed, or crashed", "exited with status 1", "stopped by a signal"
} keel_host_event;

// Fills host and time.
void keel_host_event_here(keel_host_event *event);
// Adds a line to DIRECTORY/hosts/HOST.jsonl (folder and file are made), and waits for the disk.
keel_status keel_host_event_write(const char *directory, const keel_host_event *event);
// All that DIRECTORY holds, in the order of time; malloc'ed, the caller's. None: KEEL_OK, NULL and 0. A line that
// cannot be read is told by keel_log, with its place, and left out: the last one of a host that died may be torn.
keel_status keel_host_events_read(const char *directory, keel_host_event **events, size_t *count);

#endif
