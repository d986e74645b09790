// The bytes of a log: a file or standard input, plain or gzip, to its end as it is now.
#ifndef KEEL_TOOLS_IMPORT_IMPORT_INPUT_H
#define KEEL_TOOLS_IMPORT_IMPORT_INPUT_H

#include <stddef.h>

#include "probe/status.h"

typedef struct keel_import_input keel_import_input;

// PATH "-": standard input, which stays open. KEEL_ERR_IO with the path: missing, a folder, not readable.
keel_status keel_import_input_open(const char *path, keel_import_input **input);
void keel_import_input_close(keel_import_input *input); // NULL is fine
// At most SIZE bytes; *GOT 0 at the end. A gzip file that is cut short ends where it is cut.
keel_status keel_import_input_read(keel_import_input *input, void *bytes, size_t size, size_t *got);

#endif
