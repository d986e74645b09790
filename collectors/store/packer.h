// Rewrites closed segments compressed: half the bytes, and single series found without reading the rest.
//
// Not in a process of its own, since a library cannot count on a program to start and should not fork inside an MPI
// job; and not by HDF5 on a second thread, since HDF5 has one lock and a thread of low priority that holds it would
// hold up the writer. So the writer's thread makes all HDF5 calls, a bounded piece at each call of advance; a helper
// thread of lowest priority, which knows nothing of HDF5, compresses the pieces. The packed file has a name of its own
// until it is complete and on disk: a kill leaves the segment as it was.
#ifndef KEEL_COLLECTORS_STORE_PACKER_H
#define KEEL_COLLECTORS_STORE_PACKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

typedef struct keel_packer keel_packer;

// ROW_BYTES: of a row that is written between two calls of advance; pieces are larger, so that packing keeps up.
// DIRECTORY is copied.
keel_status keel_packer_open(const char *directory, size_t row_bytes, keel_packer **packer);
// Queues a segment that nobody writes. One that is packed already is left alone. What goes wrong with it is logged, and
// it stays as it is.
void keel_packer_add(keel_packer *packer, uint32_t number);
// Does the next piece, if there is one: about a millisecond.
void keel_packer_advance(keel_packer *packer);
// Gives up the segment at hand, for the sake of the space that its copy takes. False if there was none.
bool keel_packer_give_way(keel_packer *packer);
// Goes on until all is packed, at most for SECONDS; what is left then stays as it is. Frees the packer; NULL is fine.
void keel_packer_close(keel_packer *packer, double seconds);

#endif
