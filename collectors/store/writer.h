// Writes a run directory: RUN/keel-0000.h5 and on, schema 1 (docs/store.md), in SWMR mode. One thread uses a writer.
#ifndef KEEL_COLLECTORS_STORE_WRITER_H
#define KEEL_COLLECTORS_STORE_WRITER_H

#include "collectors/row.h"
#include "collectors/sink.h"

typedef struct keel_store_options {
    uint64_t segment_bytes; // a segment is closed, and then packed, at about this size; 0: 1 GiB
    // At close, how long at most to go on packing what is not packed yet; 0: 10 s, negative: not at all.
    double pack_seconds;
    double show_seconds; // where readers get copies (see below): how often at most; 0: 10 s
} keel_store_options;

// "NFS", "SMB", ...: what is written there on one machine is seen on another in no certain order. NULL: it is none
// such.
const char *keel_store_shared_file_system(const char *directory);

// A sink that stores rows and incidents under DIRECTORY (made if need be, with those above it). An existing run there
// is continued with a new segment. The segment is created in start, complete with all its datasets, before SWMR begins.
// Where the file system has no locks, or is one of several machines (NFS, SMB), readers of a file that is being written
// could see its pieces in any order: then they get copies, made at once with an incident or a flush and every
// show_seconds else, and segments are small (64 MiB). What a killed writer had recorded since the last copy is found by
// the next writer. Said in one line.
//
// KEEL_ERR_USAGE while another writer has the directory, and for an empty name; KEEL_ERR_IO where it cannot be made or
// written.
//
// Rows that cannot be written (no space, the directory gone, an error of the disk) wait in at most 16 MiB of memory,
// the oldest are dropped and counted in the dropped_frames of the row after them; said once by keel_log, and once more
// when recording goes on. A directory that was removed is made again. So row and incident fail only for what waiting
// cannot help, and flush with KEEL_ERR_IO while rows or incidents wait or where some were lost since the last flush.
keel_status keel_store_sink_open(const char *directory, const keel_store_options *options, keel_sink *sink);

#endif
