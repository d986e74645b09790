// One token shard: an HDF5 file with a contiguous dataset /tokens of unsigned integers just wide enough for the
// vocabulary, and attributes that say which set it belongs to.
#ifndef KEEL_TRAIN_DATA_SHARD_FILE_H
#define KEEL_TRAIN_DATA_SHARD_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

enum { KEEL_SHARD_SCHEMA = 1, KEEL_SHARD_SET_BYTES = 17 };

typedef struct keel_shard_info {
    char set[KEEL_SHARD_SET_BYTES]; // 16 hexadecimal digits, the same for all shards of a set
    uint32_t index;                 // in the set, from 0
    uint32_t vocab_size;
    uint64_t tokens;
} keel_shard_info;

// Bytes of a stored token: 1, 2 or 4.
uint32_t keel_shard_width(uint32_t vocab_size);

// Writes TOKENS (info->tokens of them, stored width, little-endian), whole or not at all. The file is built in memory,
// so that HDF5 never meets a full disk.
keel_status keel_shard_write(const char *path, const keel_shard_info *info, const void *tokens);

// KEEL_ERR_FORMAT if the file is cut short or no shard. *OFFSET: of the first token in the file, for pread.
keel_status keel_shard_inspect(const char *path, keel_shard_info *info, uint64_t *offset);

#endif
