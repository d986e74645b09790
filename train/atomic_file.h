// A file that is either as it was or whole: written under "PATH.partial", flushed to the disk, then renamed.
#ifndef KEEL_TRAIN_ATOMIC_FILE_H
#define KEEL_TRAIN_ATOMIC_FILE_H

#include <stddef.h>

#include "probe/status.h"

#define KEEL_PARTIAL_SUFFIX ".partial"

typedef struct keel_atomic_file keel_atomic_file;

// All fail with KEEL_ERR_IO and the system's reason; only keel_atomic_commit and keel_atomic_abort end the file's life.
keel_status keel_atomic_open(const char *path, keel_atomic_file **file);
keel_status keel_atomic_write(keel_atomic_file *file, const void *data, size_t size);
keel_status keel_atomic_commit(keel_atomic_file *file); // on failure nothing is left
void keel_atomic_abort(keel_atomic_file *file);         // NULL is fine

// The three in one: SIZE bytes at DATA.
keel_status keel_atomic_write_file(const char *path, const void *data, size_t size);

// Makes the folder and those above it.
keel_status keel_make_folders(const char *path);

#endif
