#include "train/data/shard_manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/atomic_file.h"

char *keel_shard_manifest_path(const char *folder) {
    char *path;
    return asprintf(&path, "%s/shards.json", folder) < 0 ? NULL : path;
}

static keel_status no_memory(const char *folder) {
    return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for the list of shards", folder);
}

// A name in this folder: nothing that leads out of it.
static bool plain_name(const char *name) {
    return name && *name && *name != '.' && !strchr(name, '/');
}

static keel_status read_shards(const char *path, const json_t *shards, keel_shard_manifest *manifest) {
    const size_t count = json_array_size(shards);
    if (count == 0) return keel_fail(KEEL_ERR_FORMAT, "%s: no list \"shards\"", path);
    manifest->files = calloc(count, sizeof *manifest->files);
    manifest->file_tokens = calloc(count, sizeof *manifest->file_tokens);
    manifest->file_crc32 = calloc(count, sizeof *manifest->file_crc32);
    if (!manifest->files || !manifest->file_tokens || !manifest->file_crc32) return no_memory(path);
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *shard = json_array_get(shards, i);
        const char *name = json_string_value(json_object_get(shard, "file"));
        const json_int_t tokens = json_integer_value(json_object_get(shard, "tokens"));
        const json_t *crc = json_object_get(shard, "crc32");
        manifest->file_crc32[i] = crc ? (int64_t)json_integer_value(crc) : -1;
        if (!plain_name(name) || tokens <= 0 || (crc && !json_is_integer(crc)))
            return keel_fail(KEEL_ERR_FORMAT, "%s: shard %zu has no proper \"file\", \"tokens\" and \"crc32\"", path,
                             i);
        manifest->files[i] = strdup(name);
        if (!manifest->files[i]) return no_memory(path);
        manifest->file_count++;
        manifest->file_tokens[i] = (uint64_t)tokens;
        if (__builtin_add_overflow(sum, (uint64_t)tokens, &sum))
            return keel_fail(KEEL_ERR_FORMAT, "%s: too many tokens", path);
    }
    if (sum != manifest->tokens)
        return keel_fail(KEEL_ERR_FORMAT, "%s: \"tokens\" is %" PRIu64 ", its shards have %" PRIu64, path,
                         manifest->tokens, sum);
    return KEEL_OK;
}

static keel_status read_root(const char *path, const json_t *root, keel_shard_manifest *manifest) {
    const json_int_t version = json_integer_value(json_object_get(root, "keel_shards"));
    if (version != KEEL_SHARD_SCHEMA)
        return keel_fail(KEEL_ERR_FORMAT, "%s: not a list of token shards of version %d", path, KEEL_SHARD_SCHEMA);
    const char *set = json_string_value(json_object_get(root, "set"));
    const char *tokenizer = json_string_value(json_object_get(root, "tokenizer"));
    const json_int_t vocab = json_integer_value(json_object_get(root, "vocab_size"));
    const json_int_t tokens = json_integer_value(json_object_get(root, "tokens"));
    const json_int_t crc = json_integer_value(json_object_get(root, "crc32"));
    if (!set || strlen(set) != KEEL_SHARD_SET_BYTES - 1 || !tokenizer ||
        strlen(tokenizer) >= sizeof manifest->tokenizer || vocab <= 0 || vocab > UINT32_MAX || tokens <= 0 || crc < 0 ||
        crc > UINT32_MAX)
        return keel_fail(KEEL_ERR_FORMAT,
                         "%s: \"set\", \"tokenizer\", \"vocab_size\", \"tokens\" or \"crc32\" is amiss", path);
    strcpy(manifest->set, set);
    strcpy(manifest->tokenizer, tokenizer);
    manifest->vocab_size = (uint32_t)vocab;
    manifest->tokens = (uint64_t)tokens;
    manifest->crc32 = (uint32_t)crc;
    return read_shards(path, json_object_get(root, "shards"), manifest);
}

keel_status keel_shard_manifest_read(const char *folder, keel_shard_manifest *manifest) {
    char *path = keel_shard_manifest_path(folder);
    if (!path) return no_memory(folder);
    keel_status status = KEEL_OK;
    keel_shard_manifest found = {0};
    json_error_t error;
    json_t *root = NULL;
    if (access(path, R_OK) != 0) {
        status = keel_fail(errno == ENOENT ? KEEL_ERR_NOT_FOUND : KEEL_ERR_IO, "%s: %s", path, strerror(errno));
        goto done;
    }
    root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    status =
        root ? read_root(path, root, &found) : keel_fail(KEEL_ERR_FORMAT, "%s:%d: %s", path, error.line, error.text);
    if (status)
        keel_shard_manifest_free(&found);
    else
        *manifest = found;
done:
    json_decref(root);
    free(path);
    return status;
}

// NULL without memory, or for a name that is not UTF-8.
static char *print(const keel_shard_manifest *manifest, const keel_corpus *sources) {
    char *text = NULL;
    json_t *shards = json_array(), *files = json_array();
    bool failed = false;
    for (size_t i = 0; i < manifest->file_count; i++)
        failed |= json_array_append_new(shards, json_pack("{s:s, s:I, s:I}", "file", manifest->files[i], "tokens",
                                                          (json_int_t)manifest->file_tokens[i], "crc32",
                                                          (json_int_t)manifest->file_crc32[i])) != 0;
    for (size_t i = 0; i < sources->count; i++) {
        const keel_corpus_file *file = &sources->files[i];
        json_t *name = json_string(file->path);
        if (!name) name = json_string("(a name that is not UTF-8)");
        failed |= json_array_append_new(files, json_pack("{s:o, s:I, s:I, s:b}", "path", name, "bytes",
                                                         (json_int_t)file->bytes, "mtime_ns",
                                                         (json_int_t)file->mtime_ns, "skipped", file->binary)) != 0;
    }
    json_t *root = failed ? NULL
                          : json_pack("{s:i, s:s, s:s, s:I, s:I, s:I, s:O, s:O}", "keel_shards", KEEL_SHARD_SCHEMA,
                                      "set", manifest->set, "tokenizer", manifest->tokenizer, "vocab_size",
                                      (json_int_t)manifest->vocab_size, "tokens", (json_int_t)manifest->tokens, "crc32",
                                      (json_int_t)manifest->crc32, "shards", shards, "sources", files);
    if (root) text = json_dumps(root, JSON_INDENT(1) | JSON_ENSURE_ASCII);
    json_decref(root);
    json_decref(shards);
    json_decref(files);
    return text;
}

keel_status keel_shard_manifest_write(const char *folder, const keel_shard_manifest *manifest,
                                      const keel_corpus *sources) {
    char *path = keel_shard_manifest_path(folder), *text = print(manifest, sources);
    const keel_status status = path && text ? keel_atomic_write_file(path, text, strlen(text)) : no_memory(folder);
    free(text);
    free(path);
    return status;
}

void keel_shard_manifest_free(keel_shard_manifest *manifest) {
    for (size_t i = 0; i < manifest->file_count; i++) free(manifest->files[i]);
    free(manifest->files);
    free(manifest->file_tokens);
    free(manifest->file_crc32);
    *manifest = (keel_shard_manifest){0};
}
