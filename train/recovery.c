#include "train/recovery.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void tell(keel_note *note, void *context, const char *before, const char *text) {
    char *line;
    if (asprintf(&line, "%s%s", before, text) < 0) return;
    note(context, line);
    free(line);
}

// KEEL_ERR_FORMAT: damaged, go on with the one before it.
static keel_status take(keel_checkpoint_folder *folder, const keel_checkpoint_entry *entry, const keel_facts *facts,
                        keel_note *note, void *context, keel_checkpoint *checkpoint) {
    char *path = keel_checkpoint_folder_path(folder, entry), *changed = NULL;
    if (!path) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", folder->path);
    const keel_status status = keel_checkpoint_read(path, facts, checkpoint, &changed);
    if (status == KEEL_OK) tell(note, context, "resumed from ", path);
    if (changed) tell(note, context, "the run will not go on bit for bit, since these have changed: ", changed);
    free(changed);
    free(path);
    return status;
}

keel_status keel_recover(keel_checkpoint_folder *folder, const keel_facts *facts, keel_note *note, void *context,
                         keel_checkpoint *checkpoint) {
    const size_t found = folder->count;
    while (folder->count) {
        const keel_checkpoint_entry newest = folder->entries[folder->count - 1];
        keel_status status = take(folder, &newest, facts, note, context, checkpoint);
        if (status != KEEL_ERR_FORMAT) return status;
        tell(note, context, keel_error(), "; set aside, the one before it is tried");
        status = keel_checkpoint_folder_set_aside(folder, newest.step);
        if (status) return status;
    }
    if (found) return keel_fail(KEEL_ERR_NOT_FOUND, "%s: none of its %zu checkpoints is whole", folder->path, found);
    return keel_fail(KEEL_ERR_NOT_FOUND, "%s: no checkpoint to resume from", folder->path);
}
