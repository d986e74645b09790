// Reads a run: a directory of segments, or one .h5 file; closed, live or left by a killed job.
#ifndef KEEL_COLLECTORS_STORE_READER_H
#define KEEL_COLLECTORS_STORE_READER_H

#include "collectors/incident.h"
#include "collectors/row.h"

typedef struct keel_store_reader keel_store_reader;

// A directory without a store, a truncated or foreign file: KEEL_ERR_FORMAT or KEEL_ERR_IO with the path. A reader stops at the length of /steps.
keel_status keel_store_open(const char *path, keel_store_reader **reader);
void keel_store_close(keel_store_reader *reader);

uint32_t keel_store_segments(const keel_store_reader *reader);
// Tables of segment S (site and scalar ids may differ between segments). Valid until close.
const keel_run_info *keel_store_info(const keel_store_reader *reader, uint32_t segment);

// Rows in the order in which they were written, all segments. A cursor reads blocks of rows.
typedef struct keel_store_position {
    uint32_t segment;
    uint64_t row;        // in its segment
    bool superseded;     // a later segment holds this step again: the run was rolled back before it
    bool fork;           // first row of a segment that starts at or before the last step of the one before it, or right after it: the run was resumed here
} keel_store_position;
// *row is NULL at the end (of what is there now: a live run may have more later; call keel_store_refresh). Valid until the next call.
keel_status keel_store_next(keel_store_reader *reader, const keel_row **row, keel_store_position *position);
keel_status keel_store_rewind(keel_store_reader *reader);
// Sees what a live writer added, new segments included.
keel_status keel_store_refresh(keel_store_reader *reader);

// Total rows now, superseded ones included.
uint64_t keel_store_rows(const keel_store_reader *reader);

// The incidents that were recorded live: highest revision of each, by (segment, id). malloc'ed, owned by the caller.
keel_status keel_store_incidents(keel_store_reader *reader, keel_incident **incidents, size_t *count);

// One whole series without reading the rest: a scalar (SITE_KEY NULL), or op OP of the site "NAME:QUANTITY". Superseded rows are left out. malloc'ed.
keel_status keel_store_series(keel_store_reader *reader, const char *name, const char *site_key, uint64_t **steps, double **values, size_t *count);

#endif
