// What could not be written yet, in bounded memory: the newest rows and incidents.
#ifndef KEEL_COLLECTORS_STORE_BACKLOG_H
#define KEEL_COLLECTORS_STORE_BACKLOG_H

#include <stdbool.h>
#include <stdint.h>

#include "collectors/incident.h"
#include "collectors/row.h"

enum { KEEL_BACKLOG_INCIDENTS = 256 };

typedef struct keel_backlog {
    const keel_run_info *info; // borrowed
    keel_row_buffer **rows;    // a ring; memory is taken when it is first needed and given back when it is empty
    uint32_t capacity, first, count;
    keel_incident *incidents; // oldest first; one of each id
    uint32_t incident_count;
    uint64_t lost_rows, lost_incidents; // ever
    uint64_t unclaimed;                 // lost with no row behind them: the next one counts them
} keel_backlog;

// Up to 16 MiB of rows, at least 4, at most 1024.
void keel_backlog_init(keel_backlog *backlog, const keel_run_info *info);
void keel_backlog_free(keel_backlog *backlog);

bool keel_backlog_empty(const keel_backlog *backlog);
// Never fail: what does not fit, or finds no memory, pushes out the oldest and is counted: a lost row in lost_rows and
// in the dropped_frames of the row after it.
void keel_backlog_push_row(keel_backlog *backlog, const keel_row *row);
void keel_backlog_push_incident(keel_backlog *backlog, const keel_incident *incident);

// The oldest, or NULL. Valid until the next call.
const keel_row *keel_backlog_row(const keel_backlog *backlog);
const keel_incident *keel_backlog_incident(const keel_backlog *backlog);
void keel_backlog_pop_row(keel_backlog *backlog);
void keel_backlog_pop_incident(keel_backlog *backlog);

#endif
