#include "train/data/corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SNIFF_BYTES = 64 << 10 };

typedef struct inode {
    dev_t device;
    ino_t number;
    size_t index; // of the file
} inode;

typedef struct listing {
    keel_corpus corpus;
    inode *inodes; // of the files
    size_t capacity;
} listing;

static int by_name(const FTSENT **a, const FTSENT **b) {
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static keel_status no_memory(void) {
    return keel_fail(KEEL_ERR_MEMORY, "no memory for the list of text files");
}

static keel_status add(listing *list, const FTSENT *entry) {
    const struct stat *about = entry->fts_statp;
    if (list->corpus.count == list->capacity) {
        const size_t capacity = list->capacity ? 2 * list->capacity : 64;
        keel_corpus_file *files = realloc(list->corpus.files, capacity * sizeof *files);
        if (files) list->corpus.files = files;
        inode *inodes = realloc(list->inodes, capacity * sizeof *inodes);
        if (inodes) list->inodes = inodes;
        if (!files || !inodes) return no_memory();
        list->capacity = capacity;
    }
    char *path = strdup(entry->fts_path);
    if (!path) return no_memory();
    list->inodes[list->corpus.count] = (inode){about->st_dev, about->st_ino, list->corpus.count};
    list->corpus.files[list->corpus.count++] =
        (keel_corpus_file){.path = path,
                           .bytes = (uint64_t)about->st_size,
                           .mtime_ns = (int64_t)about->st_mtim.tv_sec * 1000000000 + about->st_mtim.tv_nsec};
    return KEEL_OK;
}

static keel_status visit(listing *list, FTS *tree, FTSENT *entry) {
    switch (entry->fts_info) {
    case FTS_D:
        if (entry->fts_level > FTS_ROOTLEVEL && entry->fts_name[0] == '.') fts_set(tree, entry, FTS_SKIP);
        return KEEL_OK;
    case FTS_F:
        if (entry->fts_level > FTS_ROOTLEVEL && entry->fts_name[0] == '.') return KEEL_OK;
        return add(list, entry);
    case FTS_NS:
    case FTS_DNR:
    case FTS_ERR:
        return keel_fail(entry->fts_errno == ENOENT ? KEEL_ERR_NOT_FOUND : KEEL_ERR_IO, "%s: %s", entry->fts_path,
                         strerror(entry->fts_errno));
    default: // the way back out of a folder, a loop of links, a link to nothing, a device
        if (entry->fts_level > FTS_ROOTLEVEL || entry->fts_info == FTS_DP) return KEEL_OK;
        return keel_fail(KEEL_ERR_FORMAT, "%s: neither a file nor a folder", entry->fts_path);
    }
}

static int by_inode(const void *a, const void *b) {
    const inode *x = a, *y = b;
    if (x->device != y->device) return x->device < y->device ? -1 : 1;
    if (x->number != y->number) return x->number < y->number ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

// Of several ways to one file the first stays.
static void drop_links(listing *list) {
    keel_corpus *corpus = &list->corpus;
    if (corpus->count == 0) return;
    qsort(list->inodes, corpus->count, sizeof *list->inodes, by_inode);
    for (size_t i = 1; i < corpus->count; i++) {
        const inode *before = &list->inodes[i - 1], *here = &list->inodes[i];
        if (before->device != here->device || before->number != here->number) continue;
        free(corpus->files[here->index].path);
        corpus->files[here->index].path = NULL;
    }
    size_t kept = 0;
    for (size_t i = 0; i < corpus->count; i++)
        if (corpus->files[i].path) corpus->files[kept++] = corpus->files[i];
    corpus->count = kept;
}

keel_status keel_corpus_list(char *const *paths, size_t count, keel_corpus *corpus) {
    listing list = {0};
    keel_status status = KEEL_OK;
    for (size_t i = 0; !status && i < count; i++) {
        char *root[] = {paths[i], NULL};
        FTS *tree = fts_open(root, FTS_LOGICAL | FTS_NOCHDIR, by_name);
        if (!tree) {
            status = keel_fail(KEEL_ERR_IO, "%s: %s", paths[i], strerror(errno));
            break;
        }
        for (FTSENT *entry; !status && (errno = 0, entry = fts_read(tree));) status = visit(&list, tree, entry);
        if (!status && errno) status = keel_fail(KEEL_ERR_IO, "%s: %s", paths[i], strerror(errno));
        fts_close(tree);
    }
    drop_links(&list);
    free(list.inodes);
    if (status)
        keel_corpus_free(&list.corpus);
    else
        *corpus = list.corpus;
    return status;
}

static keel_status sniff(keel_corpus_file *file, uint8_t *buffer) {
    const int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd < 0 ? -1 : read(fd, buffer, SNIFF_BYTES);
    const int reason = errno;
    if (fd >= 0) close(fd);
    if (got < 0) return keel_fail(KEEL_ERR_IO, "%s: %s", file->path, strerror(reason));
    file->binary = memchr(buffer, 0, (size_t)got) != NULL;
    return KEEL_OK;
}

keel_status keel_corpus_sniff(char *const *paths, size_t count, keel_corpus *corpus) {
    uint8_t *buffer = malloc(SNIFF_BYTES);
    if (!buffer) return no_memory();
    keel_status status = KEEL_OK;
    for (size_t i = 0; !status && i < corpus->count; i++) {
        keel_corpus_file *file = &corpus->files[i];
        status = sniff(file, buffer);
        for (size_t k = 0; !status && file->binary && k < count; k++)
            if (strcmp(paths[k], file->path) == 0)
                status = keel_fail(KEEL_ERR_FORMAT, "%s: not plain text: it holds zero bytes", file->path);
    }
    free(buffer);
    return status;
}

void keel_corpus_free(keel_corpus *corpus) {
    for (size_t i = 0; i < corpus->count; i++) free(corpus->files[i].path);
    free(corpus->files);
    *corpus = (keel_corpus){0};
}
