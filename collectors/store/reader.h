// Reads a run: a directory of segments, or one .h5 file; closed, live or left by a killed job.
#ifndef KEEL_COLLECTORS_STORE_READER_H
#define KEEL_COLLECTORS_STORE_READER_H

#include "collectors/incident.h"
#include "collectors/row.h"

typedef struct keel_store_reader keel_store_reader;

// A directory without a store, a truncated or foreign file: KEEL_ERR_FORMAT, KEEL_ERR_NOT_FOUND or KEEL_ERR_IO with the
// path. A segment that is missing among the others is said through keel_log, as a warning. A reader stops at the length
// of /steps. A process cannot read a segment that it is writing itself.
keel_status keel_store_open(const char *path, keel_store_reader **reader);
void keel_store_close(keel_store_reader *reader); // NULL is fine
// The run's directory, also where one of its segments was opened; malloc'ed, the caller's. NULL: no memory.
char *keel_store_folder(const keel_store_reader *reader);

uint32_t keel_store_segments(const keel_store_reader *reader);
// Tables of segment S (site and scalar ids may differ between segments). Valid until close. op_mask is NULL: what a
// site does not collect shows in its values.
const keel_run_info *keel_store_info(const keel_store_reader *reader, uint32_t segment);
const char *keel_store_segment_path(const keel_store_reader *reader, uint32_t segment);
uint64_t keel_store_segment_rows(const keel_store_reader *reader, uint32_t segment);

// What keel_store_next reads of each row: ops with OPS[op], of sites and with MICRO of micro-batches and of single
// ranks too; the others are NULL in its rows. All from the beginning; a cursor starts again.
void keel_store_want(keel_store_reader *reader, const bool ops[KEEL_OP_COUNT], bool micro);

// Rows in the order in which they were written, all segments. A cursor reads blocks of rows, of at most 160 MiB.
typedef struct keel_store_position {
    uint32_t segment;
    uint64_t row;    // in its segment
    bool superseded; // a row written later has this step or an earlier one: the run was rolled back before it
    // First row of a segment that another process began than the one before it, or of a step that is not after the one
    // before it: the run was resumed here. Never the first row of all.
    bool fork;
} keel_store_position;
// *row is NULL at the end (of what is there now: a live run may have more later; call keel_store_refresh). Valid until
// the next call.
keel_status keel_store_next(keel_store_reader *reader, const keel_row **row, keel_store_position *position);
keel_status keel_store_rewind(keel_store_reader *reader);
// Sees what a live writer added, new segments included. The cursor stays where it is.
keel_status keel_store_refresh(keel_store_reader *reader);

// Total rows now, superseded ones included.
uint64_t keel_store_rows(const keel_store_reader *reader);

// How the last segment stands.
typedef enum keel_store_state {
    KEEL_STORE_CLOSED, // its job ended
    KEEL_STORE_LIVE,   // being written
    KEEL_STORE_KILLED, // left by a job that did not end
} keel_store_state;
keel_store_state keel_store_state_of(const keel_store_reader *reader);

// The incidents that were recorded live, by id: of each the highest revision, a later segment before an earlier one.
// malloc'ed, owned by the caller.
keel_status keel_store_incidents(keel_store_reader *reader, keel_incident **incidents, size_t *count);

// One whole series without reading the rest: a scalar (SITE_KEY NULL), or op NAME of the site "NAME:QUANTITY".
// Superseded rows, and those where it was not set or not collected, are left out. KEEL_ERR_NOT_FOUND if no segment has
// it. malloc'ed, owned by the caller.
keel_status keel_store_series(keel_store_reader *reader, const char *name, const char *site_key, uint64_t **steps,
                              double **values, size_t *count);

#endif
