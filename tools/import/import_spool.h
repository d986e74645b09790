// Rows of a log that was read, in the order in which they came: packed, in memory up to a bound, beyond it in a
// temporary file without a name. So memory does not grow with the length of the log, and a log is parsed once.
#ifndef KEEL_TOOLS_IMPORT_IMPORT_SPOOL_H
#define KEEL_TOOLS_IMPORT_IMPORT_SPOOL_H

#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

typedef struct keel_import_spool {
    uint8_t *buffer; // what is not in the file
    size_t used;
    uint64_t written; // bytes in the file
    int file;         // -1: none yet
} keel_import_spool;

void keel_import_spool_init(keel_import_spool *spool);
void keel_import_spool_free(keel_import_spool *spool);
// KEEL_ERR_IO where the temporary file ($TMPDIR, else /tmp) cannot be made or written.
keel_status keel_import_spool_write(keel_import_spool *spool, const void *bytes, size_t size);
uint64_t keel_import_spool_size(const keel_import_spool *spool);

// A position with a buffer of its own; several may read one spool, which must not grow any more.
typedef struct keel_import_cursor {
    const keel_import_spool *spool;
    uint64_t at; // of the buffer's first byte
    uint8_t *buffer;
    size_t filled, next;
} keel_import_cursor;

void keel_import_cursor_init(keel_import_cursor *cursor, const keel_import_spool *spool);
void keel_import_cursor_free(keel_import_cursor *cursor);
void keel_import_cursor_seek(keel_import_cursor *cursor, uint64_t offset);
// The SIZE bytes (at most 4 KiB) at the cursor must exist.
keel_status keel_import_cursor_read(keel_import_cursor *cursor, void *bytes, size_t size);

#endif
