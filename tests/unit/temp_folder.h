// A folder for one test, removed with all that is in it.
#ifndef KEEL_TESTS_TEMP_FOLDER_H
#define KEEL_TESTS_TEMP_FOLDER_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static inline int temp_remove_one(const char *path, const struct stat *about, int type, struct FTW *walk) {
    (void)about, (void)type, (void)walk;
    return remove(path);
}

static inline int temp_remove(const char *path) {
    return nftw(path, temp_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

// As a cmocka set-up: *STATE is the path.
static inline int temp_folder_make(void **state) {
    char *path = strdup("/tmp/keel-test-XXXXXX");
    if (!path || !mkdtemp(path)) {
        free(path);
        return -1;
    }
    *state = path;
    return 0;
}

static inline int temp_folder_remove(void **state) {
    const int result = temp_remove(*state);
    free(*state);
    return result;
}

// FOLDER/NAME in one of 64 static buffers, which are used in turn.
static inline char *temp_path(const char *folder, const char *name) {
    static char paths[64][512];
    static unsigned next;
    char *path = paths[next++ % 64];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline void temp_write(const char *path, const void *data, size_t size) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0) abort();
}

static inline size_t temp_size(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 ? (size_t)about.st_size : 0;
}

// Turns the bits of one byte over.
static inline void temp_flip(const char *path, long at) {
    FILE *file = fopen(path, "r+b");
    if (!file || fseek(file, at, SEEK_SET) != 0) abort();
    const int byte = fgetc(file);
    if (byte == EOF || fseek(file, at, SEEK_SET) != 0 || fputc(byte ^ 0xff, file) == EOF || fclose(file) != 0) abort();
}

#endif
