// The thread that compresses pieces of datasets, as HDF5's filters shuffle, deflate and Fletcher-32 would. No
// HDF5.
#ifndef KEEL_COLLECTORS_STORE_PACK_WORKER_H
#define KEEL_COLLECTORS_STORE_PACK_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

// A block of a dataset and, afterwards, its compressed chunks.
typedef struct keel_pack_piece {
    // What to do: [rows][micros][columns] elements at RAW, cut into chunks of [chunk_rows][micros][chunk_columns]; rows
    // is at most chunk_rows. Or, where rows is 0, make the file at FROM durable and give it the name TO.
    size_t rows, micros, columns, element_bytes;
    size_t chunk_rows, chunk_columns;
    bool as_is; // not compressed
    unsigned char *raw;
    const char *from, *to;
    // The result: chunk I, at OFFSETS[I], of BYTES[I]; PLAIN where deflate would have grown it: only shuffled.
    size_t chunk_count;
    unsigned char *packed;
    size_t *offsets, *bytes;
    bool *plain;
    int error; // errno of the renaming; ENOMEM
} keel_pack_piece;

typedef struct keel_pack_worker keel_pack_worker;

// Higher ones take longer and save little: mantissas are noise. 5,000 sites: 2.75 bytes a value at 1, 2.69 at 6.
enum { KEEL_DEFLATE_LEVEL = 1 };
enum { KEEL_PACK_PIECES = 2 }; // one is compressed while the other is read or written

// Pieces have RAW_BYTES of raw data, in at most MOST_CHUNKS chunks.
keel_status keel_pack_worker_open(size_t raw_bytes, size_t most_chunks, keel_pack_worker **worker);
// A piece to be filled, or NULL while both are with the worker.
keel_pack_piece *keel_pack_worker_free(keel_pack_worker *worker);
// Hands over the piece that was given last.
void keel_pack_worker_start(keel_pack_worker *worker);
// The oldest piece that was started, once it is done; the caller then owns it until keel_pack_worker_release. Waits at
// most SECONDS, 0: not at all. NULL: none yet, or none started.
keel_pack_piece *keel_pack_worker_done(keel_pack_worker *worker, double seconds);
void keel_pack_worker_release(keel_pack_worker *worker);
bool keel_pack_worker_idle(const keel_pack_worker *worker); // nothing started that was not released
void keel_pack_worker_close(keel_pack_worker *worker);      // idle; NULL is fine

#endif
