// Token shards: a text corpus as one long sequence of tokens, kept in a folder of HDF5 files and read by position.
#ifndef KEEL_TRAIN_DATA_SHARDS_H
#define KEEL_TRAIN_DATA_SHARDS_H

#include <stdbool.h>

#include "train/data/shard_file.h"
#include "train/data/tokenizer.h"

// Whom to tell while shards are made; NULL members are skipped.
typedef struct keel_shards_listener {
    void *context;
    void (*progress)(void *context, const char *what, double done); // 0..1
    void (*note)(void *context, const char *text);                  // one line
} keel_shards_listener;

typedef struct keel_shards_plan {
    char *const *text; // plain text files or folders; may be none: the folder must then hold shards
    size_t text_count;
    const char *folder;
    uint64_t shard_tokens; // of each shard but the last
    const keel_tokenizer *tokenizer;
    bool look; // nothing is written: the set that is there is taken as it is
} keel_shards_plan;

// Leaves in plan->folder a valid set of shards of the text: the one that is there if its sources, tokenizer and shard
// size are those of the plan, else a new one, which replaces the old one when it is complete. Files that are no text
// are left out with a note. One process at a time; the others wait, with a note. *HOLD is a file for the caller to
// close: while it is open nobody replaces the set (where the file system has locks). KEEL_ERR_USAGE where it would have
// to be replaced and another process holds it. With plan->look KEEL_ERR_NOT_FOUND if there is no set.
keel_status keel_shards_prepare(const keel_shards_plan *plan, const keel_shards_listener *listener, int *hold);

typedef struct keel_shards keel_shards;

// Checks every shard of the folder's set. KEEL_ERR_FORMAT names the file that is cut short or belongs to another set.
keel_status keel_shards_open(const char *folder, keel_shards **shards);
void keel_shards_close(keel_shards *shards); // NULL is fine

uint64_t keel_shards_tokens(const keel_shards *shards);
uint32_t keel_shards_vocab_size(const keel_shards *shards);
// The same for the same tokens, wherever they lie: "crc32-tokens".
const char *keel_shards_identity(const keel_shards *shards);

// Tokens [begin, begin + n) into TOKENS, from file to memory without HDF5, whose lock a slow writer elsewhere may hold.
// All of a shard is read, and compared with its CRC-32, where it is first read from: KEEL_ERR_FORMAT names it.
keel_status keel_shards_read(keel_shards *shards, uint64_t begin, size_t n, uint32_t *tokens);

#endif
