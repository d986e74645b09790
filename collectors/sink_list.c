#include "collectors/sink_list.h"

#include <inttypes.h>
#include <stdio.h>

keel_status keel_sink_list_add(keel_sink_list *list, const keel_sink *sink, bool judge) {
    if (list->count == KEEL_SINKS_MAX) {
        sink->close(sink->context);
        return keel_fail(KEEL_ERR_LIMIT, "sink %s: a monitor has at most %d", sink->name, KEEL_SINKS_MAX);
    }
    list->entries[list->count++] = (keel_sink_entry){.sink = *sink, .judge = judge};
    return KEEL_OK;
}

static keel_status note(keel_sink_entry *entry, keel_status status, const char *what) {
    if (status && !entry->failures++)
        keel_log(KEEL_LOG_ERROR, "%s cannot take %s, training goes on: %s", entry->sink.name, what, keel_error());
    return status;
}

void keel_sink_list_start(keel_sink_list *list, const keel_run_info *info) {
    for (uint32_t i = 0; i < list->count; i++) {
        keel_sink_entry *entry = &list->entries[i];
        const keel_status status = entry->sink.start(entry->sink.context, info);
        entry->started = !status;
        if (!status) continue;
        entry->failures++;
        keel_log(KEEL_LOG_ERROR, "%s cannot start, the run goes on without it: %s", entry->sink.name, keel_error());
    }
}

void keel_sink_list_row(keel_sink_list *list, const keel_row *row) {
    for (uint32_t i = 0; i < list->count; i++) {
        keel_sink_entry *entry = &list->entries[i];
        if (entry->started) (void)note(entry, entry->sink.row(entry->sink.context, row), "a step");
    }
}

void keel_sink_list_incident(keel_sink_list *list, const keel_incident *incident) {
    for (uint32_t i = 0; i < list->count; i++) {
        keel_sink_entry *entry = &list->entries[i];
        if (entry->started && entry->sink.incident)
            (void)note(entry, entry->sink.incident(entry->sink.context, incident), "an incident");
    }
}

static keel_status flush(keel_sink_entry *entry) {
    if (!entry->started || !entry->sink.flush) return KEEL_OK;
    return note(entry, entry->sink.flush(entry->sink.context), "a flush");
}

keel_status keel_sink_list_flush(keel_sink_list *list, char error[KEEL_SINK_ERROR_BYTES]) {
    keel_status first = KEEL_OK;
    for (uint32_t i = 0; i < list->count; i++) {
        const keel_status status = flush(&list->entries[i]);
        if (!status || first) continue;
        first = status;
        snprintf(error, KEEL_SINK_ERROR_BYTES, "%s", keel_error());
    }
    return first;
}

void keel_sink_list_idle(keel_sink_list *list) {
    for (uint32_t i = 0; i < list->count; i++) {
        keel_sink_entry *entry = &list->entries[i];
        if (entry->started && entry->sink.idle) entry->sink.idle(entry->sink.context);
    }
}

static void close_entry(keel_sink_entry *entry) {
    entry->started = false; // it hears nothing of what it may say itself while it closes
    entry->sink.close(entry->sink.context);
}

keel_status keel_sink_list_close(keel_sink_list *list) {
    const keel_sink_entry *failed = NULL;
    for (uint32_t i = 0; i < list->count; i++)
        if (list->entries[i].judge) close_entry(&list->entries[i]);
    for (uint32_t i = 0; i < list->count; i++) {
        keel_sink_entry *entry = &list->entries[i];
        if (!entry->judge) {
            (void)flush(entry);
            close_entry(entry);
        }
        if (entry->failures && !failed) failed = entry;
    }
    list->count = 0;
    return failed ? keel_fail(KEEL_ERR_IO, "%s failed %" PRIu64 " times; the first is in the log", failed->sink.name,
                              failed->failures)
                  : KEEL_OK;
}
