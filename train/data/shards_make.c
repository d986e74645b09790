#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <zlib.h>

#include "train/atomic_file.h"
#include "train/data/shard_manifest.h"
#include "train/data/shards.h"

enum { READ_BYTES = 1 << 20 };

typedef struct maker {
    const keel_shards_plan *plan;
    const keel_shards_listener *listener;
    const keel_corpus *corpus;
    keel_shard_manifest manifest;
    size_t capacity; // of manifest.files
    uint32_t width;
    uint8_t *stored;  // [limit * width]: the shard being filled
    uint64_t limit;   // tokens it may hold
    uint64_t filled;  // tokens it holds
    uint8_t *text;    // [READ_BYTES]
    uint32_t *tokens; // [READ_BYTES]
    uint64_t bytes_total, bytes_done;
} maker;

KEEL_PRINTF(2, 3) static void tell(const keel_shards_listener *listener, const char *format, ...) {
    if (!listener || !listener->note) return;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    listener->note(listener->context, text);
}

static void show_progress(const maker *make, double done) {
    const keel_shards_listener *listener = make->listener;
    if (listener && listener->progress) listener->progress(listener->context, "tokens", done);
}

static keel_status no_memory(const char *folder) {
    return keel_fail(KEEL_ERR_MEMORY, "%s: no memory to make shards", folder);
}

// FNV-1a, 64 bits (Fowler, Noll, Vo).
static uint64_t hash(uint64_t state, const void *data, size_t size) {
    for (const uint8_t *p = data, *end = p + size; p < end; p++) state = (state ^ *p) * UINT64_C(0x100000001b3);
    return state;
}

static void name_set(const keel_shards_plan *plan, const keel_corpus *corpus, char *set) {
    uint64_t state = UINT64_C(0xcbf29ce484222325);
    state = hash(state, plan->tokenizer->name, strlen(plan->tokenizer->name) + 1);
    state = hash(state, &plan->shard_tokens, sizeof plan->shard_tokens);
    for (size_t i = 0; i < corpus->count; i++) {
        const keel_corpus_file *file = &corpus->files[i];
        state = hash(state, file->path, strlen(file->path) + 1);
        state = hash(state, &file->bytes, sizeof file->bytes);
        state = hash(state, &file->mtime_ns, sizeof file->mtime_ns);
    }
    snprintf(set, KEEL_SHARD_SET_BYTES, "%016" PRIx64, state);
}

static keel_status finish_shard(maker *make) {
    keel_shard_manifest *manifest = &make->manifest;
    const size_t index = manifest->file_count;
    if (index == make->capacity) {
        const size_t capacity = make->capacity ? 2 * make->capacity : 16;
        char **files = realloc(manifest->files, capacity * sizeof *files);
        if (files) manifest->files = files;
        uint64_t *counts = realloc(manifest->file_tokens, capacity * sizeof *counts);
        if (counts) manifest->file_tokens = counts;
        int64_t *crcs = realloc(manifest->file_crc32, capacity * sizeof *crcs);
        if (crcs) manifest->file_crc32 = crcs;
        if (!files || !counts || !crcs) return no_memory(make->plan->folder);
        make->capacity = capacity;
    }
    keel_shard_info info = {
        .index = (uint32_t)index, .vocab_size = make->plan->tokenizer->vocab_size, .tokens = make->filled};
    memcpy(info.set, manifest->set, sizeof info.set);
    char *name = NULL, *path = NULL;
    if (asprintf(&name, "shard-%s-%05zu.h5", manifest->set, index) < 0) name = NULL;
    if (!name || asprintf(&path, "%s/%s", make->plan->folder, name) < 0) path = NULL;
    const keel_status status = path ? keel_shard_write(path, &info, make->stored) : no_memory(make->plan->folder);
    free(path);
    if (status) {
        free(name);
        return status;
    }
    const size_t bytes = make->filled * make->width;
    const uLong crc = crc32_z(0, make->stored, bytes);
    manifest->crc32 = (uint32_t)crc32_combine(manifest->crc32, crc, (z_off_t)bytes);
    manifest->files[index] = name;
    manifest->file_crc32[index] = (int64_t)crc;
    manifest->file_tokens[index] = make->filled;
    manifest->file_count++;
    manifest->tokens += make->filled;
    make->filled = 0;
    return KEEL_OK;
}

static keel_status append(maker *make, const uint32_t *tokens, size_t n) {
    for (size_t i = 0; i < n; i++) {
        memcpy(make->stored + make->filled * make->width, &tokens[i], make->width); // little-endian
        if (++make->filled < make->limit) continue;
        const keel_status status = finish_shard(make);
        if (status) return status;
    }
    return KEEL_OK;
}

static keel_status add_file(maker *make, const keel_corpus_file *file) {
    const int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return keel_fail(KEEL_ERR_IO, "%s: %s", file->path, strerror(errno));
    keel_status status = KEEL_OK;
    while (!status) {
        const ssize_t got = read(fd, make->text, READ_BYTES);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) status = keel_fail(KEEL_ERR_IO, "%s: %s", file->path, strerror(errno));
        if (got <= 0) break;
        const size_t n = make->plan->tokenizer->encode(make->text, (size_t)got, make->tokens);
        status = append(make, make->tokens, n);
        make->bytes_done += (uint64_t)got;
        // A file may grow while it is read; the bar then waits at its end.
        if (make->bytes_done < make->bytes_total)
            show_progress(make, (double)make->bytes_done / (double)make->bytes_total);
    }
    close(fd);
    if (!status) status = append(make, &make->plan->tokenizer->end_of_text, 1);
    return status;
}

// What an earlier set, or a run that was ended while it made one, has left.
static void remove_others(const char *folder, const keel_shard_manifest *manifest) {
    DIR *dir = opendir(folder);
    if (!dir) return;
    for (const struct dirent *entry; (entry = readdir(dir));) {
        if (fnmatch("shard-[0-9a-f]*-[0-9]*.h5", entry->d_name, 0) != 0 &&
            fnmatch("shard-[0-9a-f]*-[0-9]*.h5" KEEL_PARTIAL_SUFFIX, entry->d_name, 0) != 0)
            continue;
        bool ours = false;
        for (size_t i = 0; i < manifest->file_count && !ours; i++)
            ours = strcmp(manifest->files[i], entry->d_name) == 0;
        if (!ours) unlinkat(dirfd(dir), entry->d_name, 0);
    }
    closedir(dir);
}

static void count_binaries(maker *make) {
    size_t binaries = 0;
    const char *first = NULL;
    for (size_t i = 0; i < make->corpus->count; i++) {
        const keel_corpus_file *file = &make->corpus->files[i];
        if (!file->binary) {
            make->bytes_total += file->bytes;
            continue;
        }
        if (!binaries++) first = file->path;
    }
    if (binaries == 1) tell(make->listener, "%s: not plain text, left out", first);
    if (binaries > 1) tell(make->listener, "%s and %zu more: not plain text, left out", first, binaries - 1);
}

static keel_status make_set(maker *make) {
    const keel_shards_plan *plan = make->plan;
    make->width = keel_shard_width(plan->tokenizer->vocab_size);
    make->manifest.vocab_size = plan->tokenizer->vocab_size;
    snprintf(make->manifest.tokenizer, sizeof make->manifest.tokenizer, "%s", plan->tokenizer->name);
    count_binaries(make);
    if (make->bytes_total == 0) return keel_fail(KEEL_ERR_FORMAT, "%s: no plain text in it", plan->text[0]);
    // A shard size beyond the text (with an end for each document) need not be had as memory.
    make->limit = make->bytes_total + make->corpus->count;
    if (make->limit > plan->shard_tokens) make->limit = plan->shard_tokens;
    make->stored = malloc(make->limit * make->width);
    make->text = malloc(READ_BYTES);
    make->tokens = malloc(READ_BYTES * sizeof *make->tokens);
    if (!make->stored || !make->text || !make->tokens) return no_memory(plan->folder);
    for (size_t i = 0; i < make->corpus->count; i++) {
        if (make->corpus->files[i].binary) continue;
        const keel_status status = add_file(make, &make->corpus->files[i]);
        if (status) return status;
    }
    keel_status status = make->filled ? finish_shard(make) : KEEL_OK;
    if (!status) status = keel_shard_manifest_write(plan->folder, &make->manifest, make->corpus);
    if (status) return status;
    remove_others(plan->folder, &make->manifest);
    show_progress(make, 1);
    tell(make->listener, "%s: %" PRIu64 " tokens in %zu shard%s", plan->folder, make->manifest.tokens,
         make->manifest.file_count, make->manifest.file_count == 1 ? "" : "s");
    return KEEL_OK;
}

// KEEL_OK if FOLDER holds a whole set; *SET: its name.
static keel_status check_present(const char *folder, char *set) {
    keel_shard_manifest manifest;
    keel_status status = keel_shard_manifest_read(folder, &manifest);
    if (status) return status;
    memcpy(set, manifest.set, sizeof manifest.set);
    keel_shard_manifest_free(&manifest);
    keel_shards *shards = NULL;
    status = keel_shards_open(folder, &shards);
    keel_shards_close(shards);
    return status;
}

static keel_status remake(const keel_shards_plan *plan, const keel_shards_listener *listener, keel_corpus *corpus,
                          const char *set) {
    keel_status status = keel_corpus_sniff(plan->text, plan->text_count, corpus);
    if (status) return status;
    maker make = {.plan = plan, .listener = listener, .corpus = corpus};
    memcpy(make.manifest.set, set, sizeof make.manifest.set);
    status = make_set(&make);
    keel_shard_manifest_free(&make.manifest);
    free(make.stored);
    free(make.text);
    free(make.tokens);
    return status;
}

// What another process reads from is not replaced.
static keel_status claim(const char *folder, int *claimed) {
    char *path = keel_shard_manifest_path(folder);
    if (!path) return no_memory(folder);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    free(path);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        close(fd);
        return keel_fail(KEEL_ERR_USAGE,
                         "train_dataset.shards: another job uses the shards in %s, and they are of another text, "
                         "tokenizer or shard size: name another folder",
                         folder);
    }
    *claimed = fd;
    return KEEL_OK;
}

static keel_status replace(const keel_shards_plan *plan, const keel_shards_listener *listener, keel_corpus *corpus,
                           const char *set) {
    int claimed = -1;
    keel_status status = claim(plan->folder, &claimed);
    if (!status) status = remake(plan, listener, corpus, set);
    if (claimed >= 0) close(claimed);
    return status;
}

static keel_status prepare(const keel_shards_plan *plan, const keel_shards_listener *listener) {
    char there[KEEL_SHARD_SET_BYTES] = "", wanted[KEEL_SHARD_SET_BYTES];
    const keel_status present = check_present(plan->folder, there);
    if (plan->text_count == 0 || (plan->look && present)) return present;

    keel_corpus corpus = {0};
    keel_status status = keel_corpus_list(plan->text, plan->text_count, &corpus);
    if (status == KEEL_ERR_NOT_FOUND && present == KEEL_OK) {
        tell(listener, "%s; the shards in %s are used as they are", keel_error(), plan->folder);
        return KEEL_OK;
    }
    if (status) return status;
    name_set(plan, &corpus, wanted);
    if (present == KEEL_OK && strcmp(there, wanted) == 0) goto done;
    if (plan->look) {
        tell(listener, "%s: the text, the tokenizer or the shard size has changed: the shards are used as they are",
             plan->folder);
        goto done;
    }
    if (present == KEEL_OK)
        tell(listener, "%s: the text, the tokenizer or the shard size has changed: shards are made again",
             plan->folder);
    else if (*there)
        tell(listener, "%s: not a whole set of shards: they are made again", plan->folder);
    status = replace(plan, listener, &corpus, wanted);
done:
    keel_corpus_free(&corpus);
    return status;
}

// -1: the folder has no locks.
static int take_turn(const char *folder, const keel_shards_listener *listener) {
    const int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return lock;
    tell(listener, "waiting for another job that makes shards in %s", folder);
    while (flock(lock, LOCK_EX) && errno == EINTR) continue;
    return lock;
}

// In this process's turn, so that nobody has claimed it.
static int hold_set(const char *folder) {
    char *path = keel_shard_manifest_path(folder);
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) (void)flock(fd, LOCK_SH | LOCK_NB);
    free(path);
    return fd;
}

keel_status keel_shards_prepare(const keel_shards_plan *plan, const keel_shards_listener *listener, int *hold) {
    if (plan->text_count && !plan->look) {
        const keel_status status = keel_make_folders(plan->folder);
        if (status) return keel_fail(status, "train_dataset.shards: %s", keel_error());
    }
    // Two jobs on one folder take turns. Where a file system has no locks they are not kept apart.
    const int lock = take_turn(plan->folder, listener);
    const keel_status status = prepare(plan, listener);
    if (!status) *hold = hold_set(plan->folder);
    if (lock >= 0) close(lock);
    return status;
}
