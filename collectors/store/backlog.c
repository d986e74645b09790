#include "collectors/store/backlog.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 16 << 20, LEAST_ROWS = 4, MOST_ROWS = 1024 };

void keel_backlog_init(keel_backlog *backlog, const keel_run_info *info) {
    *backlog = (keel_backlog){.info = info};
    const size_t rows = MOST_BYTES / keel_row_buffer_bytes(info);
    backlog->capacity = (uint32_t)(rows < LEAST_ROWS ? LEAST_ROWS : rows > MOST_ROWS ? MOST_ROWS : rows);
}

static void free_rows(keel_backlog *backlog) {
    for (uint32_t i = 0; backlog->rows && i < backlog->capacity; i++) keel_row_buffer_close(backlog->rows[i]);
    free(backlog->rows);
    backlog->rows = NULL;
    backlog->first = 0;
}

static void free_incidents(keel_backlog *backlog) {
    free(backlog->incidents);
    backlog->incidents = NULL;
}

void keel_backlog_free(keel_backlog *backlog) {
    free_rows(backlog);
    free_incidents(backlog);
}

bool keel_backlog_empty(const keel_backlog *backlog) {
    return backlog->count == 0 && backlog->incident_count == 0;
}

// An unused buffer at the ring's end, or NULL: full, or no memory.
static keel_row_buffer *free_buffer(keel_backlog *backlog) {
    if (!backlog->rows) backlog->rows = calloc(backlog->capacity, sizeof(keel_row_buffer *));
    if (!backlog->rows || backlog->count == backlog->capacity) return NULL;
    keel_row_buffer **slot = &backlog->rows[(backlog->first + backlog->count) % backlog->capacity];
    if (!*slot && keel_row_buffer_open(backlog->info, slot) != KEEL_OK) return NULL;
    return *slot;
}

// A lost row is counted in the one that comes after it.
static void lose(keel_backlog *backlog, const keel_row *row) {
    backlog->lost_rows++;
    const uint64_t lost = row->dropped_frames + 1;
    if (backlog->count > 0)
        keel_row_buffer_row(backlog->rows[backlog->first])->dropped_frames += lost;
    else
        backlog->unclaimed += lost;
}

// The oldest row makes place: its buffer moves to the ring's end.
static keel_row_buffer *oldest_buffer(keel_backlog *backlog) {
    if (backlog->count == 0) return NULL;
    keel_row_buffer *buffer = backlog->rows[backlog->first];
    backlog->rows[backlog->first] = NULL;
    backlog->first = (backlog->first + 1) % backlog->capacity;
    backlog->count--;
    lose(backlog, keel_row_buffer_row(buffer));
    backlog->rows[(backlog->first + backlog->count) % backlog->capacity] = buffer;
    return buffer;
}

void keel_backlog_push_row(keel_backlog *backlog, const keel_row *row) {
    keel_row_buffer *buffer = free_buffer(backlog);
    if (!buffer) buffer = oldest_buffer(backlog);
    if (!buffer) {
        lose(backlog, row);
        return;
    }
    keel_row_buffer_copy(buffer, row);
    keel_row_buffer_row(buffer)->dropped_frames += backlog->unclaimed;
    backlog->unclaimed = 0;
    backlog->count++;
}

void keel_backlog_push_incident(keel_backlog *backlog, const keel_incident *incident) {
    if (!backlog->incidents) backlog->incidents = calloc(KEEL_BACKLOG_INCIDENTS, sizeof *backlog->incidents);
    if (!backlog->incidents) {
        backlog->lost_incidents++;
        return;
    }
    for (uint32_t i = 0; i < backlog->incident_count; i++) {
        if (backlog->incidents[i].id != incident->id) continue;
        backlog->incidents[i] = *incident;
        return;
    }
    if (backlog->incident_count == KEEL_BACKLOG_INCIDENTS) {
        keel_backlog_pop_incident(backlog);
        backlog->lost_incidents++;
    }
    backlog->incidents[backlog->incident_count++] = *incident;
}

const keel_row *keel_backlog_row(const keel_backlog *backlog) {
    return backlog->count > 0 ? keel_row_buffer_row(backlog->rows[backlog->first]) : NULL;
}

const keel_incident *keel_backlog_incident(const keel_backlog *backlog) {
    return backlog->incident_count > 0 ? backlog->incidents : NULL;
}

void keel_backlog_pop_row(keel_backlog *backlog) {
    backlog->first = (backlog->first + 1) % backlog->capacity;
    if (--backlog->count == 0) free_rows(backlog);
}

void keel_backlog_pop_incident(keel_backlog *backlog) {
    backlog->incident_count--;
    memmove(backlog->incidents, backlog->incidents + 1, backlog->incident_count * sizeof *backlog->incidents);
    if (backlog->incident_count == 0) free_incidents(backlog);
}
