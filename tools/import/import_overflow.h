// Lines that say that an update was skipped because of an overflow: DeepSpeed, apex, fairseq. They stand between the
// records of any text log, often once per rank.
#ifndef KEEL_TOOLS_IMPORT_IMPORT_OVERFLOW_H
#define KEEL_TOOLS_IMPORT_IMPORT_OVERFLOW_H

#include "tools/import/importer.h"

keel_status keel_import_overflow_line(keel_import_context *context, const keel_import_line *line);

#endif
