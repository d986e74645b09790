// Opening datasets of a file that nobody vouches for.
#ifndef KEEL_COLLECTORS_STORE_CHECKED_DATASET_H
#define KEEL_COLLECTORS_STORE_CHECKED_DATASET_H

#include <hdf5.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

// No file of ours holds more bytes of values than this times its own: deflate gives at most 1032.
#define KEEL_MOST_RATIO UINT64_C(1100)

// *EXISTS: PATH, whose group exists, is in this file, not behind a link into another.
keel_status keel_dataset_find(hid_t file, const char *file_path, const char *path, bool *exists);

// Opens PATH if it has RANK dimensions of elements of TYPE (of a compound: at least its members), its data in this
// file, behind no filter but ours, in chunks of bearable size; else KEEL_ERR_FORMAT. *DATASET is the caller's.
keel_status keel_dataset_open(hid_t file, const char *file_path, const char *path, hid_t type, int rank,
                              hsize_t dims[3], hid_t *dataset);

// The same for one text of fixed length up to MOST bytes, which is read. malloc'ed, with an end; owned by the caller.
keel_status keel_dataset_read_text(hid_t file, const char *file_path, const char *path, size_t most, char **text);

// Reads a table of elements of TYPE, at most MOST of them. malloc'ed with one more, zeroed; owned by the caller.
keel_status keel_dataset_read_table(hid_t file, const char *file_path, const char *path, hid_t type, uint64_t most,
                                    void **data, uint32_t *count);

#endif
