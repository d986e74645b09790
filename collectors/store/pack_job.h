// The rewriting of one segment: what is read, in which pieces, and where the compressed pieces go. All of its HDF5
// calls; each does a bounded part.
#ifndef KEEL_COLLECTORS_STORE_PACK_JOB_H
#define KEEL_COLLECTORS_STORE_PACK_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectors/store/pack_worker.h"
#include "probe/status.h"

typedef struct keel_pack_job keel_pack_job;

// Opens segment NUMBER and begins "keel-NUMBER.h5.packed" with its tables. *JOB is NULL if it is packed already, or
// holds nothing but scalars.
// PIECE_BYTES: what a piece can hold.
keel_status keel_pack_job_open(const char *directory, uint32_t number, size_t piece_bytes, keel_pack_job **job);
// Describes and reads the next piece; *MORE is false at the end.
keel_status keel_pack_job_read(keel_pack_job *job, keel_pack_piece *piece, bool *more);
// Writes the oldest piece that was read. KEEL_ERR_LIMIT: no space.
keel_status keel_pack_job_write(keel_pack_job *job, const keel_pack_piece *piece);
// Closes the files; PIECE becomes the order to put the new one into its place, valid until close.
keel_status keel_pack_job_finish(keel_pack_job *job, keel_pack_piece *piece);
// Removes what is not in its place. NULL is fine.
void keel_pack_job_close(keel_pack_job *job);

const char *keel_pack_job_path(const keel_pack_job *job);

#endif
