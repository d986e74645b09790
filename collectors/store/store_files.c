#include "collectors/store/store_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "keel-"
#define ENDING ".h5"

char *keel_segment_path(const char *directory, uint32_t number, const char *suffix) {
    char *path;
    return asprintf(&path, "%s/" PREFIX "%04u" ENDING "%s", directory, number, suffix) < 0 ? NULL : path;
}

// Splits "keel-0007.h5REST". False for any other name.
static bool parse_name(const char *name, uint32_t *number, const char **rest) {
    if (strncmp(name, PREFIX, sizeof PREFIX - 1) != 0) return false;
    const char *digits = name + sizeof PREFIX - 1;
    const size_t count = strspn(digits, "0123456789");
    if (count < 4 || count > 9 || (count > 4 && *digits == '0')) return false;
    if (strncmp(digits + count, ENDING, sizeof ENDING - 1) != 0) return false;
    *number = (uint32_t)strtoul(digits, NULL, 10);
    *rest = digits + count + sizeof ENDING - 1;
    return true;
}

static keel_status open_directory(const char *directory, DIR **dir) {
    *dir = opendir(directory);
    if (*dir) return KEEL_OK;
    return keel_fail(errno == ENOENT ? KEEL_ERR_NOT_FOUND : KEEL_ERR_IO, "%s: %s", directory, strerror(errno));
}

static int compare_numbers(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

keel_status keel_segment_list(const char *directory, uint32_t **out, size_t *out_count) {
    DIR *dir;
    keel_status status = open_directory(directory, &dir);
    if (status) return status;
    uint32_t *numbers = NULL;
    size_t count = 0;
    for (const struct dirent *entry; (entry = readdir(dir));) {
        uint32_t number;
        const char *rest;
        if (!parse_name(entry->d_name, &number, &rest) || *rest) continue;
        if ((count & (count - 1)) == 0) { // full at every power of two
            uint32_t *more = realloc(numbers, (count ? 2 * count : 1) * sizeof *numbers);
            if (!more) {
                status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its list of segments", directory);
                break;
            }
            numbers = more;
        }
        numbers[count++] = number;
    }
    closedir(dir);
    if (status) {
        free(numbers);
        return status;
    }
    if (count > 0) qsort(numbers, count, sizeof *numbers, compare_numbers);
    *out = numbers;
    *out_count = count;
    return KEEL_OK;
}

keel_status keel_segment_clean(const char *directory) {
    DIR *dir;
    keel_status status = open_directory(directory, &dir);
    if (status) return status;
    for (const struct dirent *entry; (entry = readdir(dir));) {
        uint32_t number;
        const char *rest;
        if (!parse_name(entry->d_name, &number, &rest)) continue;
        if (strcmp(rest, KEEL_SEGMENT_NEW) != 0 && strcmp(rest, KEEL_SEGMENT_PACKED) != 0 &&
            strcmp(rest, KEEL_SEGMENT_COPY) != 0)
            continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) != 0 && errno != ENOENT)
            status = keel_fail(KEEL_ERR_IO, "%s/%s: cannot remove what an earlier job left: %s", directory,
                               entry->d_name, strerror(errno));
    }
    closedir(dir);
    return status;
}
