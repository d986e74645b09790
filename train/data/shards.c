#include "train/data/shards.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "train/data/shard_manifest.h"

// Open files at a time; a shard has one place among them.
enum { OPEN_FILES = 64, READ_TOKENS = 4096 };

typedef struct shard {
    char *path;
    uint64_t begin;  // its first token in the sequence of all
    uint64_t offset; // of its first token in the file
    bool checked;    // its content is what was written
} shard;

struct keel_shards {
    keel_shard_manifest manifest;
    shard *shards; // one more than there are: begin of the last is the number of all tokens
    char identity[48];
    uint32_t width;
    int fds[OPEN_FILES];
    size_t owners[OPEN_FILES]; // the shard whose file it is; SIZE_MAX: none
};

static keel_status open_shard(keel_shards *set, const char *folder, size_t index, uint64_t begin) {
    const keel_shard_manifest *manifest = &set->manifest;
    shard *here = &set->shards[index];
    here->begin = begin;
    if (asprintf(&here->path, "%s/%s", folder, manifest->files[index]) < 0) {
        here->path = NULL;
        return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its shards", folder);
    }
    keel_shard_info info;
    const keel_status status = keel_shard_inspect(here->path, &info, &here->offset);
    if (status) return status;
    if (strcmp(info.set, manifest->set) != 0 || info.index != index || info.vocab_size != manifest->vocab_size)
        return keel_fail(KEEL_ERR_FORMAT, "%s: belongs to another set of shards than %s/shards.json", here->path,
                         folder);
    if (info.tokens != manifest->file_tokens[index])
        return keel_fail(KEEL_ERR_FORMAT, "%s: %" PRIu64 " tokens, %s/shards.json says %" PRIu64, here->path,
                         info.tokens, folder, manifest->file_tokens[index]);
    return KEEL_OK;
}

keel_status keel_shards_open(const char *folder, keel_shards **shards) {
    keel_shards *made = calloc(1, sizeof *made);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its shards", folder);
    for (size_t i = 0; i < OPEN_FILES; i++) {
        made->fds[i] = -1;
        made->owners[i] = SIZE_MAX;
    }
    keel_status status = keel_shard_manifest_read(folder, &made->manifest);
    if (status) goto fail;
    made->width = keel_shard_width(made->manifest.vocab_size);
    snprintf(made->identity, sizeof made->identity, "%08" PRIx32 "-%" PRIu64, made->manifest.crc32,
             made->manifest.tokens);
    made->shards = calloc(made->manifest.file_count + 1, sizeof *made->shards);
    if (!made->shards) {
        status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its shards", folder);
        goto fail;
    }
    uint64_t begin = 0;
    for (size_t i = 0; i < made->manifest.file_count; i++) {
        status = open_shard(made, folder, i, begin);
        if (status) goto fail;
        begin += made->manifest.file_tokens[i];
    }
    made->shards[made->manifest.file_count].begin = begin;
    *shards = made;
    return KEEL_OK;
fail:
    keel_shards_close(made);
    return status;
}

void keel_shards_close(keel_shards *shards) {
    if (!shards) return;
    for (size_t i = 0; i < OPEN_FILES; i++)
        if (shards->fds[i] >= 0) close(shards->fds[i]);
    for (size_t i = 0; shards->shards && i < shards->manifest.file_count; i++) free(shards->shards[i].path);
    free(shards->shards);
    keel_shard_manifest_free(&shards->manifest);
    free(shards);
}

uint64_t keel_shards_tokens(const keel_shards *shards) {
    return shards->manifest.tokens;
}
uint32_t keel_shards_vocab_size(const keel_shards *shards) {
    return shards->manifest.vocab_size;
}
const char *keel_shards_identity(const keel_shards *shards) {
    return shards->identity;
}

static size_t shard_at(const keel_shards *shards, uint64_t position) {
    size_t low = 0, high = shards->manifest.file_count;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (shards->shards[middle].begin <= position)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static keel_status read_bytes(const keel_shards *shards, size_t index, int fd, uint64_t at, size_t bytes,
                              uint8_t *raw) {
    for (size_t have = 0; have < bytes;) {
        const ssize_t got = pread(fd, raw + have, bytes - have, (off_t)(shards->shards[index].offset + at + have));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return keel_fail(KEEL_ERR_IO, "%s: %s", shards->shards[index].path, strerror(errno));
        if (got == 0) return keel_fail(KEEL_ERR_FORMAT, "%s: cut short", shards->shards[index].path);
        have += (size_t)got;
    }
    return KEEL_OK;
}

// Once for every shard, where it is first read from.
static keel_status check_content(keel_shards *shards, size_t index, int fd) {
    const int64_t wanted = shards->manifest.file_crc32[index];
    const uint64_t bytes = shards->manifest.file_tokens[index] * shards->width;
    uint8_t raw[READ_TOKENS * 4];
    uLong crc = 0;
    for (uint64_t at = 0; wanted >= 0 && at < bytes; at += sizeof raw) {
        const size_t take = bytes - at < sizeof raw ? (size_t)(bytes - at) : sizeof raw;
        const keel_status status = read_bytes(shards, index, fd, at, take, raw);
        if (status) return status;
        crc = crc32(crc, raw, (uInt)take);
    }
    if (wanted >= 0 && crc != (uLong)wanted)
        return keel_fail(KEEL_ERR_FORMAT,
                         "%s: damaged: its tokens are not those that were written; delete it, and the shards are made "
                         "again from the text",
                         shards->shards[index].path);
    shards->shards[index].checked = true;
    return KEEL_OK;
}

static keel_status file_of(keel_shards *shards, size_t index, int *fd) {
    const size_t place = index % OPEN_FILES;
    if (shards->owners[place] != index) {
        if (shards->fds[place] >= 0) close(shards->fds[place]);
        shards->owners[place] = SIZE_MAX;
        shards->fds[place] = open(shards->shards[index].path, O_RDONLY | O_CLOEXEC);
        if (shards->fds[place] < 0)
            return keel_fail(KEEL_ERR_IO, "%s: %s", shards->shards[index].path, strerror(errno));
        shards->owners[place] = index;
    }
    *fd = shards->fds[place];
    return shards->shards[index].checked ? KEEL_OK : check_content(shards, index, *fd);
}

static keel_status read_from(keel_shards *shards, size_t index, uint64_t first, size_t n, uint32_t *tokens) {
    int fd = -1;
    keel_status status = file_of(shards, index, &fd);
    if (status) return status;
    uint8_t raw[READ_TOKENS * 4];
    while (n) {
        const size_t take = n < READ_TOKENS ? n : READ_TOKENS;
        status = read_bytes(shards, index, fd, first * shards->width, take * shards->width, raw);
        if (status) return status;
        for (size_t i = 0; i < take; i++) {
            uint32_t token = 0; // stored little-endian
            memcpy(&token, raw + i * shards->width, shards->width);
            tokens[i] = token;
        }
        tokens += take;
        first += take;
        n -= take;
    }
    return KEEL_OK;
}

keel_status keel_shards_read(keel_shards *shards, uint64_t begin, size_t n, uint32_t *tokens) {
    if (begin > shards->manifest.tokens || n > shards->manifest.tokens - begin)
        return keel_fail(KEEL_ERR_USAGE, "tokens %" PRIu64 " to %" PRIu64 " of %" PRIu64, begin, begin + n,
                         shards->manifest.tokens);
    for (size_t index = shard_at(shards, begin); n; index++) {
        const uint64_t here = shards->shards[index].begin, next = shards->shards[index + 1].begin;
        const size_t take = n < next - begin ? n : (size_t)(next - begin);
        const keel_status status = read_from(shards, index, begin - here, take, tokens);
        if (status) return status;
        tokens += take;
        begin += take;
        n -= take;
    }
    return KEEL_OK;
}
