#include "train/earlier_run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const names[] = {"checkpoints", "train.csv", "model.safetensors"};
enum { NAMES = sizeof names / sizeof *names };

static keel_status no_memory(const char *output_dir) {
    return keel_fail(KEEL_ERR_MEMORY, "%s: no memory to move what an earlier run has left", output_dir);
}

static keel_status make_folder(const char *output_dir, char **folder) {
    for (unsigned n = 1;; n++) {
        char *path;
        if (asprintf(&path, "%s/earlier.%u", output_dir, n) < 0) return no_memory(output_dir);
        const int error = mkdir(path, 0777) ? errno : 0;
        if (!error) {
            *folder = path;
            return KEEL_OK;
        }
        const keel_status status = error == EEXIST ? KEEL_OK : keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(error));
        free(path);
        if (status) return status;
    }
}

// One that is not there is no failure; *FOLDER is made for the first that is.
static keel_status move(const char *output_dir, const char *name, char **folder) {
    char *from, *to = NULL;
    keel_status status = KEEL_OK;
    if (asprintf(&from, "%s/%s", output_dir, name) < 0) return no_memory(output_dir);
    if (access(from, F_OK) == 0) {
        if (!*folder) status = make_folder(output_dir, folder);
        if (!status && asprintf(&to, "%s/%s", *folder, name) < 0) {
            to = NULL;
            status = no_memory(output_dir);
        }
        if (!status && rename(from, to)) status = keel_fail(KEEL_ERR_IO, "%s: %s", to, strerror(errno));
    }
    free(to);
    free(from);
    return status;
}

keel_status keel_earlier_run_move(const char *output_dir, char **moved) {
    char *folder = NULL;
    for (size_t i = 0; i < NAMES; i++) {
        const keel_status status = move(output_dir, names[i], &folder);
        if (!status) continue;
        free(folder);
        return status;
    }
    *moved = folder;
    return KEEL_OK;
}
