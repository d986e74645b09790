// Makes runs of rows from records in the order in which a log gives them: brings together what was printed of one step,
// leaves out lines that every rank repeats or that were torn, tells a restart from a checkpoint (the same run, flagged)
// from a new run.
#ifndef KEEL_TOOLS_IMPORT_IMPORT_ASSEMBLY_H
#define KEEL_TOOLS_IMPORT_IMPORT_ASSEMBLY_H

#include <stddef.h>

#include "tools/import/import_record.h"
#include "tools/import/import_spool.h"

typedef struct keel_import_segment {
    uint64_t offset; // of its first row in the spool
    uint64_t rows;
    uint64_t first_step, last_step;
    uint64_t scalars; // bits of the scalars that some row has
} keel_import_segment;

// A row as it lies in the spool, followed by its values in the order of the bits of SET.
typedef struct keel_import_row {
    uint64_t step;
    uint64_t set;
    uint32_t flags;
    uint32_t reserved;
} keel_import_row;

typedef struct keel_import_assembly keel_import_assembly;

// COUNT_ONLY: nothing is kept, records are counted (to recognise a format).
keel_status keel_import_assembly_open(bool count_only, keel_import_assembly **assembly);
void keel_import_assembly_close(keel_import_assembly *assembly); // NULL is fine

// The line that the next records come from. SOLE: the log has one writer, so a step that comes again was done again;
// otherwise other ranks may have printed it as well.
void keel_import_assembly_at(keel_import_assembly *assembly, uint64_t line, bool sole);
keel_status keel_import_assembly_add(keel_import_assembly *assembly, const keel_import_record *record);
// An update was skipped because of an overflow, after which the loss scale is SCALE (NaN: not told). The same line of
// another rank (RANK -1: unknown) is the same event.
keel_status keel_import_assembly_overflow(keel_import_assembly *assembly, double scale, int32_t rank);
// The log is over: what waited for evidence is decided.
keel_status keel_import_assembly_finish(keel_import_assembly *assembly);

uint64_t keel_import_assembly_records(
    const keel_import_assembly *assembly); // records with a value that was trained or evaluated, so far
uint64_t keel_import_assembly_dropped(const keel_import_assembly *assembly); // records left out: out of order, torn
// After finish.
size_t keel_import_assembly_count(const keel_import_assembly *assembly);
const keel_import_segment *keel_import_assembly_get(const keel_import_assembly *assembly, size_t index);
const keel_import_spool *keel_import_assembly_spool(const keel_import_assembly *assembly);

#endif
