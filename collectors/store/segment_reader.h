// One segment while it is read. Everything that comes from the file is checked before it is used: it may be damaged, or
// made to do harm.
#ifndef KEEL_COLLECTORS_STORE_SEGMENT_READER_H
#define KEEL_COLLECTORS_STORE_SEGMENT_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectors/incident.h"
#include "collectors/row.h"
#include "collectors/store/schema.h"

typedef struct keel_segment_reader keel_segment_reader;

keel_status keel_segment_reader_open(const char *path, keel_segment_reader **reader);
void keel_segment_reader_close(keel_segment_reader *reader);

const char *keel_segment_reader_path(const keel_segment_reader *reader);
const keel_run_info *keel_segment_reader_info(const keel_segment_reader *reader);
uint64_t keel_segment_reader_rows(const keel_segment_reader *reader);
bool keel_segment_reader_open_mark(const keel_segment_reader *reader); // living or killed writer
bool keel_segment_reader_resumed(const keel_segment_reader *reader);   // begun by another process than the one before
bool keel_segment_reader_has_micro(const keel_segment_reader *reader, keel_op op);

// The writer has put another copy in its place (segment_writer.h): this one will see no more.
bool keel_segment_reader_replaced(const keel_segment_reader *reader);
// Sees the rows that were added since.
keel_status keel_segment_reader_refresh(keel_segment_reader *reader);

// True if its steps are known to rise all the way, from FIRST to LAST, without reading them.
bool keel_segment_reader_rising(const keel_segment_reader *reader, uint64_t *first, uint64_t *last);

// Rows FIRST .. FIRST + COUNT, all within rows().
keel_status keel_segment_reader_steps(keel_segment_reader *reader, uint64_t first, size_t count,
                                      keel_step_record *steps);
keel_status keel_segment_reader_scalars(keel_segment_reader *reader, uint64_t first, size_t count, double *values);
// Eight bytes each: double, or uint64_t of count ops. [count][site_count], [count][micro_count][micro_site_count],
// [count][rank_series_count].
keel_status keel_segment_reader_op(keel_segment_reader *reader, keel_op_group group, keel_op op, uint64_t first,
                                   size_t count, void *values);
// One column of the same: of scalar INDEX where OP is KEEL_OP_COUNT, else of OP at site INDEX.
keel_status keel_segment_reader_column(keel_segment_reader *reader, keel_op op, uint32_t index, uint64_t first,
                                       size_t count, void *values);

// All revisions, in the order in which they were written; malloc'ed, owned by the caller.
keel_status keel_segment_reader_incidents(keel_segment_reader *reader, keel_incident **incidents, size_t *count);

#endif
