// Cuts bytes that come in pieces into lines: ended by LF, CR LF or a lone CR (progress bars), without colour codes and
// byte order mark.
#ifndef KEEL_TOOLS_IMPORT_IMPORT_LINES_H
#define KEEL_TOOLS_IMPORT_IMPORT_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

typedef struct keel_import_line {
    const char *text; // ended by a zero byte, valid during the call
    size_t size;
    uint64_t number; // from 1, counting LF only
    bool open;       // the end of the log, without a line end: more of it may come
} keel_import_line;

// A longer line is no record; it is left out.
enum { KEEL_IMPORT_LINE_BYTES = 1 << 20 };

typedef struct keel_import_lines {
    char *kept; // the begun line, with colour codes
    size_t kept_size, kept_capacity;
    uint64_t number;
    bool too_long;
    uint64_t too_long_count, too_long_first; // lines that were left out; the number of the first
} keel_import_lines;

typedef keel_status keel_import_line_handler(void *context, const keel_import_line *line);

void keel_import_lines_init(keel_import_lines *lines);
void keel_import_lines_free(keel_import_lines *lines);
// BYTES are changed during the call, and as before after it. Empty lines are not handed on.
keel_status keel_import_lines_feed(keel_import_lines *lines, char *bytes, size_t size,
                                   keel_import_line_handler *handler, void *context);
// What is left, as an open line.
keel_status keel_import_lines_end(keel_import_lines *lines, keel_import_line_handler *handler, void *context);

#endif
