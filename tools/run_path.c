#include "tools/run_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool has_suffix(const char *path, const char *suffix) {
    size_t n = strlen(path), k = strlen(suffix);
    return n >= k && strcmp(path + n - k, suffix) == 0;
}

bool keel_path_is_store(const char *path) {
    static const unsigned char signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    struct stat about;
    if (strcmp(path, "-") == 0) return false;
    if (has_suffix(path, ".h5")) return true;
    if (stat(path, &about) != 0) return false;
    if (S_ISDIR(about.st_mode)) return true;
    if (!S_ISREG(about.st_mode)) return false;
    FILE *file = fopen(path, "rb");
    unsigned char begin[sizeof signature];
    bool is =
        file && fread(begin, 1, sizeof begin, file) == sizeof begin && memcmp(begin, signature, sizeof begin) == 0;
    if (file) fclose(file);
    return is;
}

keel_status keel_name_path(keel_status status, const char *path) {
    const char *text = keel_error();
    if (strncmp(text, path, strlen(path)) == 0) return status;
    char *copy = strdup(text);
    status = keel_fail(status, "%s: %s", path, copy ? copy : keel_status_name(status));
    free(copy);
    return status;
}
