// An importer: one format of logs, one file from_NAME.c, one line in the table of importers.c. from_template.c is a
// commented example.
//
// An importer turns lines (or bytes) into records and hands them to keel_import_emit; what belongs together, what is a
// new run and what was repeated or torn is decided behind it (import_assembly.h). A format is recognised by being read:
// every importer gets the head of the log, and the one that finds the most records in it, times its weight, is taken.
#ifndef KEEL_TOOLS_IMPORT_IMPORTER_H
#define KEEL_TOOLS_IMPORT_IMPORTER_H

#include "tools/import/import_lines.h"
#include "tools/import/import_names.h"
#include "tools/import/import_pattern.h"
#include "tools/import/import_record.h"

typedef struct keel_import_context keel_import_context; // of one importer at work on one log

typedef struct keel_importer {
    const char *name; // for --format and reports: "nanogpt"
    const char *doc;  // what it reads, in a line
    // How much a record says for this format: 4 where nothing else looks like it, 1 for a format that also reads
    // others' logs, 0 for one that is taken only where no other finds anything.
    uint32_t weight;
    bool sole;  // one writer: no rank repeats what another has written
    bool whole; // a record shows its own end, so that the last line may lack its line end (else the last word of such a
                // line is left out)
    bool columns; // values have names that a user can give (keel_import_options.columns)

    // STATE_BYTES of zeros are made for each log; open and close may be NULL.
    size_t state_bytes;
    keel_status (*open)(keel_import_context *context, void *state);
    void (*close)(void *state);
    // One of the two: lines of text, or bytes as they come. What is no record is passed over.
    keel_status (*line)(keel_import_context *context, void *state, const keel_import_line *line);
    keel_status (*bytes)(keel_import_context *context, void *state, const uint8_t *bytes, size_t size);
    // The log is over. NULL: nothing to do.
    keel_status (*finish)(keel_import_context *context, void *state);
} keel_importer;

// The path, for texts of errors.
const char *keel_import_path(const keel_import_context *context);
// Where patterns put what they found.
keel_import_match *keel_import_matcher(keel_import_context *context);
// The names of the format, for those with columns: to be made in open; freed with the context.
keel_status keel_import_use_names(keel_import_context *context, const keel_import_name *table, size_t count);
keel_import_names *keel_import_context_names(const keel_import_context *context);
// True while a format is being recognised: records are counted only, and need be neither in order nor complete.
bool keel_import_is_counting(const keel_import_context *context);
// A record. Its rank is filled in from the line's prefix where it has none; so what the matcher holds is then
// another's.
keel_status keel_import_emit(keel_import_context *context, const keel_import_record *record);
// An update that was skipped for an overflow; see keel_import_assembly_overflow.
keel_status keel_import_emit_overflow(keel_import_context *context, double scale, int32_t rank);

// Counts what belongs to the format and cannot be read: COUNT whole lines, records, or values of a record that is
// emitted all the same. Of the first the line is kept (0: at hand) and the text, which says what is wrong with it.
typedef enum keel_import_unit { KEEL_IMPORT_LINES, KEEL_IMPORT_ROWS, KEEL_IMPORT_VALUES } keel_import_unit;
void keel_import_leave_out(keel_import_context *context, keel_import_unit unit, uint64_t count, uint64_t line,
                           const char *format, ...) KEEL_PRINTF(5, 6);
// Emits the record of a draft, and counts its values that cannot be read. A record whose step cannot be read, in a log
// that has steps, is left out. LINE as above.
keel_status keel_import_emit_draft(keel_import_context *context, const keel_import_draft *draft, uint64_t line);
// The same of a draft that is no record: counted, if only because nothing of it can be read.
void keel_import_leave_draft(keel_import_context *context, const keel_import_draft *draft, uint64_t line);

// The value of group GROUP of the latest find, if it took part, as scalar FIELD of RECORD.
void keel_import_take(keel_import_context *context, keel_import_record *record, keel_import_field field,
                      uint32_t group);

// Every place of LINE where PATTERN matches gives a record: its first group is the step (empty: not told), the
// following COUNT ones are the scalars FIELDS, set where they took part.
keel_status keel_import_each(keel_import_context *context, const keel_import_line *line, keel_import_pattern *pattern,
                             const keel_import_field *fields, uint32_t count);

extern const keel_importer keel_importer_template;

// All that can be recognised, in the order in which ties are broken.
extern const keel_importer *const keel_importers[];
extern const size_t keel_importer_count;
const keel_importer *keel_importer_find(const char *name); // NULL if there is none

#endif
