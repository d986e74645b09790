// What can be said of a segment file from its first bytes, before HDF5 looks at it.
#ifndef KEEL_COLLECTORS_STORE_SEGMENT_HEAD_H
#define KEEL_COLLECTORS_STORE_SEGMENT_HEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "probe/status.h"

typedef struct keel_segment_head {
    uint64_t bytes; // size of the file
    bool open;      // marked as being written: by a living writer, or by one that was killed
} keel_segment_head;

// HDF5 1.10 trusts much of what it reads, so what no file of ours can be is refused here: KEEL_ERR_FORMAT for what is
// not an HDF5 file, is truncated, or has another form than the store's; KEEL_ERR_IO, KEEL_ERR_NOT_FOUND.
keel_status keel_segment_head_read(const char *path, keel_segment_head *head);

#endif
