// Opening a log with an importer that need not be in the table: for tests.
#ifndef KEEL_TOOLS_IMPORT_IMPORT_OPEN_H
#define KEEL_TOOLS_IMPORT_IMPORT_OPEN_H

#include "tools/import/import.h"
#include "tools/import/importer.h"

// As keel_import_open. IMPORTER NULL: recognised by content.
keel_status keel_import_open_with(const char *path, const keel_importer *importer, const char *columns,
                                  keel_import **import);

#endif
