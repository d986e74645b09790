// A whole file under another name.
#ifndef KEEL_COLLECTORS_STORE_FILE_COPY_H
#define KEEL_COLLECTORS_STORE_FILE_COPY_H

#include "probe/status.h"

// TO becomes what FROM is now, on the disk, in one moment: by way of "TO.copy", which is removed where that fails.
keel_status keel_file_copy(const char *from, const char *to);

#endif
