#include "train/checkpoint_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/atomic_file.h"

#define ENDING ".safetensors"

static keel_status no_memory(const char *path) {
    return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for the list of checkpoints", path);
}

static int by_step(const void *a, const void *b) {
    const keel_checkpoint_entry *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    return x->healthy - y->healthy;
}

// False if NAME is not that of a checkpoint.
static bool parse_name(const char *name, keel_checkpoint_entry *entry) {
    int used = 0;
    *entry = (keel_checkpoint_entry){0};
    if (sscanf(name, "step-%10" SCNu64 "%n", &entry->step, &used) != 1 || used != 15) return false;
    entry->healthy = strcmp(name + used, ".healthy" ENDING) == 0;
    return entry->healthy || strcmp(name + used, ENDING) == 0;
}

static keel_status append(keel_checkpoint_folder *folder, keel_checkpoint_entry entry) {
    keel_checkpoint_entry *entries = realloc(folder->entries, (folder->count + 1) * sizeof *entries);
    if (!entries) return no_memory(folder->path);
    folder->entries = entries;
    entries[folder->count++] = entry;
    qsort(entries, folder->count, sizeof *entries, by_step);
    return KEEL_OK;
}

static keel_status list(keel_checkpoint_folder *folder) {
    DIR *dir = opendir(folder->path);
    if (!dir) {
        if (errno == ENOENT) return KEEL_OK;
        return keel_fail(KEEL_ERR_IO, "%s: %s", folder->path, strerror(errno));
    }
    keel_status status = KEEL_OK;
    keel_checkpoint_entry entry;
    for (const struct dirent *found; !status && (found = readdir(dir));)
        if (parse_name(found->d_name, &entry)) status = append(folder, entry);
    closedir(dir);
    return status;
}

keel_status keel_checkpoint_folder_open(const char *output_dir, keel_checkpoint_folder *folder) {
    keel_checkpoint_folder made = {0};
    if (asprintf(&made.path, "%s/checkpoints", output_dir) < 0)
        return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", output_dir);
    const keel_status status = list(&made);
    if (status)
        keel_checkpoint_folder_close(&made);
    else
        *folder = made;
    return status;
}

void keel_checkpoint_folder_close(keel_checkpoint_folder *folder) {
    free(folder->path);
    free(folder->entries);
    *folder = (keel_checkpoint_folder){0};
}

char *keel_checkpoint_folder_path(const keel_checkpoint_folder *folder, const keel_checkpoint_entry *entry) {
    char *path;
    if (asprintf(&path, "%s/step-%010" PRIu64 "%s" ENDING, folder->path, entry->step,
                 entry->healthy ? ".healthy" : "") < 0)
        return NULL;
    return path;
}

static void forget(keel_checkpoint_folder *folder, size_t index) {
    folder->count--;
    memmove(&folder->entries[index], &folder->entries[index + 1], (folder->count - index) * sizeof folder->entries[0]);
}

static keel_status delete_entry(keel_checkpoint_folder *folder, size_t index) {
    char *path = keel_checkpoint_folder_path(folder, &folder->entries[index]);
    if (!path) return no_memory(folder->path);
    forget(folder, index);
    const keel_status status =
        unlink(path) == 0 || errno == ENOENT ? KEEL_OK : keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(errno));
    free(path);
    return status;
}

keel_status keel_checkpoint_folder_add(keel_checkpoint_folder *folder, uint64_t step) {
    keel_status status = KEEL_OK;
    // One of the same step is of a course of the run that was given up.
    for (size_t i = folder->count; !status && i-- > 0;) {
        if (folder->entries[i].step != step) continue;
        if (folder->entries[i].healthy)
            status = delete_entry(folder, i);
        else
            forget(folder, i);
    }
    return status ? status : append(folder, (keel_checkpoint_entry){.step = step});
}

static keel_status rename_entry(const keel_checkpoint_folder *folder, const keel_checkpoint_entry *entry,
                                const char *to) {
    char *from = keel_checkpoint_folder_path(folder, entry);
    if (!from || !to) {
        free(from);
        return no_memory(folder->path);
    }
    const keel_status status = rename(from, to) == 0 ? KEEL_OK : keel_fail(KEEL_ERR_IO, "%s: %s", to, strerror(errno));
    free(from);
    return status;
}

keel_status keel_checkpoint_folder_judge(keel_checkpoint_folder *folder, const keel_health *health) {
    if (health->quiet_steps < KEEL_QUIET_STEPS) return KEEL_OK;
    const uint64_t quiet_since =
        health->judged_step > health->quiet_steps ? health->judged_step - health->quiet_steps : 0;
    for (size_t i = 0; i < folder->count; i++) {
        keel_checkpoint_entry *entry = &folder->entries[i];
        if (entry->healthy || entry->step < quiet_since || entry->step + KEEL_QUIET_STEPS > health->judged_step)
            continue;
        const keel_checkpoint_entry marked = {.step = entry->step, .healthy = true};
        char *to = keel_checkpoint_folder_path(folder, &marked);
        const keel_status status = rename_entry(folder, entry, to);
        free(to);
        if (status) return status;
        *entry = marked;
    }
    return KEEL_OK;
}

keel_status keel_checkpoint_folder_prune(keel_checkpoint_folder *folder, size_t keep, size_t keep_healthy) {
    size_t healthy = 0, others = 0;
    for (size_t i = folder->count; i-- > 0;) {
        const bool newest = i + 1 == folder->count;
        if (folder->entries[i].healthy && healthy < keep_healthy) {
            healthy++;
            continue;
        }
        if (others < keep || newest) {
            others++;
            continue;
        }
        const keel_status status = delete_entry(folder, i);
        if (status) return status;
    }
    return KEEL_OK;
}

keel_status keel_checkpoint_folder_set_aside(keel_checkpoint_folder *folder, uint64_t step) {
    for (size_t i = folder->count; i-- > 0;) {
        if (folder->entries[i].step != step) continue;
        char *path = keel_checkpoint_folder_path(folder, &folder->entries[i]), *to = NULL;
        if (!path || asprintf(&to, "%s.damaged", path) < 0) to = NULL;
        const keel_status status = rename_entry(folder, &folder->entries[i], to);
        free(path);
        free(to);
        forget(folder, i);
        return status;
    }
    return keel_fail(KEEL_ERR_NOT_FOUND, "%s: no checkpoint of step %" PRIu64, folder->path, step);
}

void keel_checkpoint_folder_clean(const keel_checkpoint_folder *folder) {
    DIR *dir = opendir(folder->path);
    if (!dir) return;
    for (const struct dirent *found; (found = readdir(dir));)
        if (fnmatch("step-*" ENDING KEEL_PARTIAL_SUFFIX, found->d_name, 0) == 0) unlinkat(dirfd(dir), found->d_name, 0);
    closedir(dir);
}
