// Disk blocks for a file before anything is written to them, so that HDF5 never meets a full disk.
#ifndef KEEL_COLLECTORS_STORE_RESERVE_H
#define KEEL_COLLECTORS_STORE_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "probe/status.h"

typedef struct keel_reserve {
    int fd;        // of the file; borrowed
    uint64_t upto; // blocks are reserved from the file's begin to here
    bool counted;  // the file system cannot reserve: its free space is looked at instead
} keel_reserve;

// Makes sure of blocks up to END. UNWRITTEN: bytes below UPTO that were promised before and may still need blocks, for
// file systems that cannot reserve. The file's size covers all that is in use. KEEL_ERR_LIMIT if there is no space (or
// quota), KEEL_ERR_IO on any other refusal.
keel_status keel_reserve_until(keel_reserve *reserve, const char *path, uint64_t end, uint64_t unwritten);

// Gives back what was reserved beyond the end of a file that is closed.
void keel_reserve_trim(const char *path);

#endif
