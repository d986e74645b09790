// Tables in text: a header with names, then rows, separated by comma, tab or semicolon; cells may be empty or quoted.
#ifndef KEEL_TOOLS_IMPORT_IMPORT_TABLE_H
#define KEEL_TOOLS_IMPORT_IMPORT_TABLE_H

#include "tools/import/importer.h"

enum { KEEL_IMPORT_TABLE_CELLS = 4096 };

typedef struct keel_import_table {
    char separator;
    int32_t *keys;            // [columns], of the importer's names
    size_t columns;           // 0: no header yet
    bool has_step;            // one of them is the step: a row without it is no record
    keel_import_slice *cells; // [KEEL_IMPORT_TABLE_CELLS], of the line at hand
    char *unquoted;           // where cells with doubled quotes lie
    size_t unquoted_capacity;
} keel_import_table;

void keel_import_table_free(keel_import_table *table);

// True if a header with these names is one of the format at hand.
typedef bool keel_import_header_check(const keel_import_slice *cells, size_t count);

// Reads a line: a header, if it names a loss (and CHECK agrees; NULL: any), or a row of the header before it, whose
// record is handed on. A row with another number of cells is torn, and passed over; in an open line the last cell is
// left out.
keel_status keel_import_table_line(keel_import_context *context, keel_import_table *table, const keel_import_line *line,
                                   keel_import_header_check *check);

#endif
