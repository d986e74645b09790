// One importer at work on one log: its state, its names, the runs it makes.
#ifndef KEEL_TOOLS_IMPORT_IMPORT_CONTEXT_H
#define KEEL_TOOLS_IMPORT_IMPORT_CONTEXT_H

#include "analyzers/offline.h"
#include "tools/import/import_assembly.h"
#include "tools/import/importer.h"

// COLUMNS may be NULL; PATH, COLUMNS and MATCH are borrowed. COUNT_ONLY: to recognise the format.
keel_status keel_import_context_open(const keel_importer *importer, const char *path, const char *columns,
                                     keel_import_match *match, bool count_only, keel_import_context **context);
void keel_import_context_close(keel_import_context *context); // NULL is fine

// A line, to an importer of lines; or bytes, to one of bytes.
keel_status keel_import_context_line(keel_import_context *context, const keel_import_line *line);
keel_status keel_import_context_bytes(keel_import_context *context, const uint8_t *bytes, size_t size);
keel_status keel_import_context_finish(keel_import_context *context);

const keel_importer *keel_import_context_importer(const keel_import_context *context);
keel_left_out keel_import_context_left_out(const keel_import_context *context);
// One warning if there is anything of it.
void keel_import_context_tell_left_out(const keel_import_context *context);
keel_import_assembly *keel_import_context_assembly(keel_import_context *context);

#endif
