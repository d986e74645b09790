// Which importer reads a log: all read its head, and the one that finds most in it is taken.
#ifndef KEEL_TOOLS_IMPORT_IMPORT_RECOGNIZE_H
#define KEEL_TOOLS_IMPORT_IMPORT_RECOGNIZE_H

#include "tools/import/import_input.h"
#include "tools/import/importer.h"

// What was read of a log so far; standard input cannot be read twice.
typedef struct keel_import_head {
    char *bytes; // malloc'ed
    size_t size, capacity;
    bool ended; // the log has no more
} keel_import_head;

// Reads another piece. KEEL_ERR_FORMAT: the log is empty, or text that cannot be read as bytes.
keel_status keel_import_head_grow(const char *path, keel_import_head *head, keel_import_input *input);

// Grows HEAD as far as is needed. KEEL_ERR_FORMAT, with what was tried, where nobody finds a record.
keel_status keel_import_recognize(const char *path, const char *columns, keel_import_match *match,
                                  keel_import_input *input, keel_import_head *head, const keel_importer **importer);

#endif
