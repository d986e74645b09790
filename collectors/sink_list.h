// The sinks of a monitor: what they are told, in order, and what is said when one fails. A sink that fails never stops
// the run.
#ifndef KEEL_COLLECTORS_SINK_LIST_H
#define KEEL_COLLECTORS_SINK_LIST_H

#include "collectors/sink.h"

enum { KEEL_SINKS_MAX = 16, KEEL_SINK_ERROR_BYTES = 256 };

typedef struct keel_sink_entry {
    keel_sink sink;
    bool judge;
    bool started;
    uint64_t failures; // calls that failed; the first is logged
} keel_sink_entry;

typedef struct keel_sink_list {
    keel_sink_entry entries[KEEL_SINKS_MAX];
    uint32_t count;
} keel_sink_list;

// Takes the sink over, also on failure, when it is closed at once.
keel_status keel_sink_list_add(keel_sink_list *list, const keel_sink *sink, bool judge);
// A sink that cannot start is said and left out from then on.
void keel_sink_list_start(keel_sink_list *list, const keel_run_info *info);
void keel_sink_list_row(keel_sink_list *list, const keel_row *row);
void keel_sink_list_incident(keel_sink_list *list, const keel_incident *incident);
// All of them; the status of the first that failed, with its text in ERROR.
keel_status keel_sink_list_flush(keel_sink_list *list, char error[KEEL_SINK_ERROR_BYTES]);
void keel_sink_list_idle(keel_sink_list *list);
// The judge first, so that the others hear what it may say while it closes; then the others are flushed and closed in
// order. KEEL_ERR_IO if any call to any sink failed, with the first such sink named.
keel_status keel_sink_list_close(keel_sink_list *list);

#endif
