// Objects of numbers, as JSON or as Python prints them, anywhere in a text.
#ifndef KEEL_TOOLS_IMPORT_IMPORT_JSON_H
#define KEEL_TOOLS_IMPORT_IMPORT_JSON_H

#include "tools/import/importer.h"

// Reads the object that begins at TEXT[0] == '{' into DRAFT (which is begun anew), and says in *USED where it ends.
// Nested objects give keys like "train/loss". NaN and Infinity, which JSON does not have but trainers write, are
// numbers here. False: no whole object.
bool keel_import_json_object(keel_import_match *match, keel_import_names *names, keel_import_draft *draft,
                             const char *text, size_t size, size_t *used);

// The first object in a line that reads and gives a record; what stands before it (a time, a rank, the torn start of
// another) is skipped.
typedef enum keel_import_json_found {
    KEEL_IMPORT_JSON_RECORD,
    KEEL_IMPORT_JSON_OBJECT,  // whole, but no record; what it says is in DRAFT
    KEEL_IMPORT_JSON_NOTHING, // no whole object
} keel_import_json_found;
keel_import_json_found keel_import_json_find(keel_import_match *match, keel_import_names *names,
                                             keel_import_draft *draft, const char *text, size_t size);

// Cuts the objects that are elements of an array out of a document that comes in pieces, so that it is never in memory
// as a whole, and what is there of a document that is still being written is read.
typedef struct keel_import_json_stream keel_import_json_stream;
// KEY: only the array of that name in the outermost object; NULL: the array that is the document.
keel_status keel_import_json_stream_open(const char *key, keel_import_json_stream **stream);
void keel_import_json_stream_close(keel_import_json_stream *stream); // NULL is fine
// Hands on the record that each object is, if it is one.
keel_status keel_import_json_stream_feed(keel_import_json_stream *stream, const char *bytes, size_t size,
                                         keel_import_context *context);

// Hands on the first record of a line. STEPPED: one without a step is not meant.
keel_status keel_import_json_line(keel_import_context *context, const keel_import_line *line, bool stepped);

#endif
