// One segment while it is written, in SWMR mode: every dataset exists before SWMR begins, /steps is the commit record.
#ifndef KEEL_COLLECTORS_STORE_SEGMENT_WRITER_H
#define KEEL_COLLECTORS_STORE_SEGMENT_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "collectors/incident.h"
#include "collectors/row.h"

typedef struct keel_segment_writer keel_segment_writer;

// Makes "DIRECTORY/keel-NUMBER.h5.new". INFO is borrowed until close. ORIGIN: KEEL_ORIGIN_*. KEEL_ERR_LIMIT: no space.
// ASIDE: on a file system that shows readers on other machines writes in another order than they were made. Then the
// file keeps that name until it is closed, and readers get copies.
keel_status keel_segment_writer_open(const char *directory, uint32_t number, const keel_run_info *info,
                                     const char *origin, bool aside, keel_segment_writer **writer);
// Gives it its name: from now on readers see it. ASIDE: makes a copy of what it is now under its name; again and again.
keel_status keel_segment_writer_publish(keel_segment_writer *writer);

// Takes the blocks that the next row needs. KEEL_ERR_LIMIT: no space.
keel_status keel_segment_writer_make_room(keel_segment_writer *writer);

// Both leave the file as it was for readers unless they succeed, and may be called again. KEEL_ERR_LIMIT: no space;
// HDF5 was not called. After any other failure the writer must be closed.
keel_status keel_segment_writer_row(keel_segment_writer *writer, const keel_row *row);
keel_status keel_segment_writer_incident(keel_segment_writer *writer, const keel_incident *incident);

const char *keel_segment_writer_path(const keel_segment_writer *writer);
// True where the next row would begin new chunks and take the file beyond BYTES. Never before the first chunks are
// full.
bool keel_segment_writer_full(const keel_segment_writer *writer, uint64_t bytes);
// True if the file has been deleted.
bool keel_segment_writer_gone(const keel_segment_writer *writer);

// After a failure of the disk: nothing more goes into the file, which stays as if its writer had been killed.
void keel_segment_writer_abandon(keel_segment_writer *writer);
// Not published: the file is removed. KEEL_ERR_IO if HDF5 could not write its last bytes.
keel_status keel_segment_writer_close(keel_segment_writer *writer);

#endif
