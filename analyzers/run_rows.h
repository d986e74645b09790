// The rows of a run in the order of its steps, each step once: of one that was made again after a rollback, the later
// row. Of a store or of any other source alike.
#ifndef KEEL_ANALYZERS_RUN_ROWS_H
#define KEEL_ANALYZERS_RUN_ROWS_H

#include "analyzers/offline.h"
#include "collectors/store/reader.h"

typedef struct keel_run_rows keel_run_rows;

// READER is borrowed, and so is SOURCE, which must have a rewind; both must outlive the rows. OPS: as
// keel_store_want.
keel_status keel_run_rows_of_store(keel_store_reader *reader, const bool ops[KEEL_OP_COUNT], keel_run_rows **rows);
keel_status keel_run_rows_of_source(const keel_row_source *source, keel_run_rows **rows);
void keel_run_rows_close(keel_run_rows *rows); // NULL is fine

uint32_t keel_run_rows_segments(const keel_run_rows *rows);
// Valid as long as the reader or the source.
const keel_run_info *keel_run_rows_info(const keel_run_rows *rows, uint32_t segment);

// *row NULL at the end; valid until the next call. *SEGMENT: whose tables index it.
keel_status keel_run_rows_next(keel_run_rows *rows, const keel_row **row, uint32_t *segment);
keel_status keel_run_rows_rewind(keel_run_rows *rows);

#endif
