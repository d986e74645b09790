// The files of a run directory: RUN/keel-0000.h5 and on. What is not of that form is not looked at.
#ifndef KEEL_COLLECTORS_STORE_STORE_FILES_H
#define KEEL_COLLECTORS_STORE_STORE_FILES_H

#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

// A segment that is being made, and one that is being packed, have these after their name until they are complete.
#define KEEL_SEGMENT_NEW    ".new"
#define KEEL_SEGMENT_PACKED ".packed"
// What becomes a segment by one renaming (file_copy.h).
#define KEEL_SEGMENT_COPY ".copy"

// "DIRECTORY/keel-0007.h5SUFFIX", malloc'ed, owned by the caller; NULL: no memory.
char *keel_segment_path(const char *directory, uint32_t number, const char *suffix);

// The segments' numbers, ascending; malloc'ed, owned by the caller, NULL when there are none. KEEL_ERR_NOT_FOUND
// without such a directory.
keel_status keel_segment_list(const char *directory, uint32_t **numbers, size_t *count);

// Removes what a killed writer left half made. Only for who holds the directory's lock.
keel_status keel_segment_clean(const char *directory);

#endif
