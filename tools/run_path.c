#include "tools/run_path.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "collectors/store/store_files.h"

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

static bool holds_segments(const char *directory) {
    uint32_t *numbers = NULL;
    size_t count = 0;
    if (keel_segment_list(directory, &numbers, &count)) return false;
    free(numbers);
    return count > 0;
}

// The directories in PATH that hold runs, by name: the first SHOWN of them in NAMES, which the caller frees. How many
// there are.
enum { SHOWN = 3 };
static size_t find_runs(const char *path, char *names[SHOWN]) {
    struct dirent **entries;
    const int count = scandir(path, &entries, NULL, alphasort);
    size_t runs = 0;
    for (int i = 0; i < count; i++) {
        char *run = NULL;
        if (entries[i]->d_name[0] != '.' &&
            asprintf(&run, "%s%s%s", path, has_suffix(path, "/") ? "" : "/", entries[i]->d_name) >= 0 &&
            holds_segments(run)) {
            if (runs < SHOWN) {
                names[runs] = run;
                run = NULL;
            }
            runs++;
        }
        free(run);
        free(entries[i]);
    }
    if (count >= 0) free(entries);
    return runs;
}

static bool holds_file(const char *directory, const char *name) {
    char *path;
    struct stat about;
    if (asprintf(&path, "%s/%s", directory, name) < 0) return false;
    const bool is = stat(path, &about) == 0 && S_ISREG(about.st_mode);
    free(path);
    return is;
}

keel_status keel_path_holds_run(const char *path) {
    struct stat about;
    if (stat(path, &about) != 0 || !S_ISDIR(about.st_mode) || holds_segments(path)) return KEEL_OK;
    char *names[SHOWN] = {NULL}, list[512] = "";
    const size_t runs = find_runs(path, names);
    for (size_t i = 0; i < SHOWN && names[i]; i++) {
        const size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    }
    for (size_t i = 0; i < SHOWN; i++) free(names[i]);
    if (runs)
        return keel_fail(KEEL_ERR_FORMAT, "%s: no run, but a directory that holds %zu of them; give %s: %s%s", path,
                         runs, runs == 1 ? "that" : "one", list, runs > SHOWN ? ", ..." : "");
    if (holds_file(path, "train.csv"))
        return keel_fail(KEEL_ERR_FORMAT,
                         "%s: what keel-train wrote without a monitor: no store, but a log; give %s%strain.csv. Where "
                         "the monitor recorded is its monitor.output",
                         path, path, has_suffix(path, "/") ? "" : "/");
    return keel_fail(KEEL_ERR_FORMAT,
                     "%s: no run: a directory without keel-NNNN.h5, in which there is no other that has "
                     "one",
                     path);
}

keel_status keel_name_path(keel_status status, const char *path) {
    const char *text = keel_error();
    if (strncmp(text, path, strlen(path)) == 0) return status;
    char *copy = strdup(text);
    status = keel_fail(status, "%s: %s", path, copy ? copy : keel_status_name(status));
    free(copy);
    return status;
}
