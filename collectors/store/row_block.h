// A block of rows as they come from a segment, and a row that looks into it.
#ifndef KEEL_COLLECTORS_STORE_ROW_BLOCK_H
#define KEEL_COLLECTORS_STORE_ROW_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectors/row.h"
#include "collectors/store/segment_reader.h"

typedef struct keel_row_block keel_row_block;

// For the rows of SEGMENT, with OPS of them, MICRO: of micro-batches and of single ranks too. Borrows the segment.
keel_status keel_row_block_open(keel_segment_reader *segment, const bool ops[KEEL_OP_COUNT], bool micro,
                                keel_row_block **block);
void keel_row_block_close(keel_row_block *block); // NULL is fine

// Row ROW of the segment, below its rows(). Reads the block that begins with it unless it is there. Valid until the
// next call.
keel_status keel_row_block_row(keel_row_block *block, uint64_t row, const keel_row **out);

#endif
