// shards.json in a folder of token shards: which files are the set, and what it was made from. Written last, so that it
// is what makes the set valid.
#ifndef KEEL_TRAIN_DATA_SHARD_MANIFEST_H
#define KEEL_TRAIN_DATA_SHARD_MANIFEST_H

#include "train/data/corpus.h"
#include "train/data/shard_file.h"

typedef struct keel_shard_manifest {
    char set[KEEL_SHARD_SET_BYTES]; // of sources, tokenizer and shard size: another set when one of them changes
    char tokenizer[32];
    uint32_t vocab_size;
    uint64_t tokens;
    uint32_t crc32; // of all tokens as stored: what the data is, wherever it lies
    char **files;   // names in the folder, in order
    uint64_t *file_tokens;
    int64_t *file_crc32; // of each file's tokens as stored; -1: an older list does not say
    size_t file_count;
} keel_shard_manifest;

// KEEL_ERR_NOT_FOUND if there is none, KEEL_ERR_FORMAT if it is not one.
keel_status keel_shard_manifest_read(const char *folder, keel_shard_manifest *manifest);
// SOURCES are written along, for people.
keel_status keel_shard_manifest_write(const char *folder, const keel_shard_manifest *manifest,
                                      const keel_corpus *sources);
void keel_shard_manifest_free(keel_shard_manifest *manifest);
char *keel_shard_manifest_path(const char *folder); // malloc'ed; NULL without memory

#endif
