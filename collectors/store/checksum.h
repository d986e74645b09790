// The checksums of a store's values. HDF5's structures carry their own.
//
// A segment that is being written takes a row at a time, which HDF5's checksum of whole chunks does not allow: a row of
// each dataset has its crc32 in /checksums, which readers and the packer look at. Packed chunks are behind HDF5's
// filter.
#ifndef KEEL_COLLECTORS_STORE_CHECKSUM_H
#define KEEL_COLLECTORS_STORE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

// The crc32 of zlib, of BYTES that follow those of SUM (0: none do).
uint32_t keel_row_checksum(uint32_t sum, const void *bytes, size_t size);
// Of two pieces with the sums FIRST and SECOND, the second of SIZE bytes.
uint32_t keel_row_checksum_join(uint32_t first, uint32_t second, size_t size);
// KEEL_ERR_FORMAT with a text that names file, dataset and row.
keel_status keel_row_checksum_fails(const char *file_path, const char *path, uint64_t row);

// What HDF5's Fletcher-32 filter writes after a chunk, little-endian: two sums modulo 65535 over 16-bit words, the
// first byte of a word the high one, an odd last byte with a zero. Fletcher, An Arithmetic Checksum for Serial
// Transmissions, IEEE Trans. Commun. 30 (1982). A sum of 0 is 65535 unless all words are 0.
enum { KEEL_CHUNK_CHECKSUM_BYTES = 4 };
void keel_chunk_checksum(const unsigned char *bytes, size_t size, unsigned char sum[KEEL_CHUNK_CHECKSUM_BYTES]);

#endif
