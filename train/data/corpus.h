// The plain text files that a data set is made of.
#ifndef KEEL_TRAIN_DATA_CORPUS_H
#define KEEL_TRAIN_DATA_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

typedef struct keel_corpus_file {
    char *path;
    uint64_t bytes;
    int64_t mtime_ns; // modified, nanoseconds since 1970
    bool binary;      // holds a zero byte near its start: not read. Known only after keel_corpus_sniff.
} keel_corpus_file;

typedef struct keel_corpus {
    keel_corpus_file *files; // in the order of the paths given, those of a folder sorted by name
    size_t count;
} keel_corpus;

// Lists PATHS: files as they are, folders with all below them. Hidden files and second ways to the same file (links)
// are left out. KEEL_ERR_NOT_FOUND for a path that does not exist, KEEL_ERR_IO for one that cannot be read.
keel_status keel_corpus_list(char *const *paths, size_t count, keel_corpus *corpus);
// Looks into each file and marks those that are no text. KEEL_ERR_FORMAT for one that was named itself; all of a folder
// may be left out.
keel_status keel_corpus_sniff(char *const *paths, size_t count, keel_corpus *corpus);
void keel_corpus_free(keel_corpus *corpus);

#endif
