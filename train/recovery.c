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

// KEEL_ERR_FORMAT: damaged, go on with the one before it. DONE: what is said before the path of one that is read.
static keel_status take(const keel_checkpoint_folder *folder, const keel_checkpoint_entry *entry,
                        const keel_facts *facts, const char *done, keel_note *note, void *context,
                        keel_checkpoint *checkpoint) {
    char *path = keel_checkpoint_folder_path(folder, entry), *changed = NULL;
    if (!path) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", folder->path);
    const keel_status status = keel_checkpoint_open(path, facts, checkpoint, &changed);
    if (status == KEEL_OK) tell(note, context, done, path);
    if (changed) tell(note, context, "the run will not go on bit for bit, since these have changed: ", changed);
    free(changed);
    free(path);
    return status;
}

keel_status keel_recover(keel_checkpoint_folder *folder, const keel_facts *facts, bool look, keel_note *note,
                         void *context, keel_checkpoint *checkpoint) {
    const size_t found = folder->count;
    for (size_t left = found; left > 0; left--) {
        const keel_checkpoint_entry newest = folder->entries[left - 1];
        keel_status status = take(folder, &newest, facts, "resumed from ", note, context, checkpoint);
        if (status != KEEL_ERR_FORMAT) return status;
        tell(note, context, keel_error(),
             look ? "; passed over, the one before it is tried" : "; set aside, the one before it is tried");
        status = look ? KEEL_OK : keel_checkpoint_folder_set_aside(folder, newest.step);
        if (status) return status;
    }
    if (found) return keel_fail(KEEL_ERR_NOT_FOUND, "%s: none of its %zu checkpoints is whole", folder->path, found);
    return keel_fail(KEEL_ERR_NOT_FOUND, "%s: no checkpoint to resume from", folder->path);
}

keel_status keel_recover_before(const keel_checkpoint_folder *folder, uint64_t step, const keel_facts *facts,
                                keel_note *note, void *context, keel_checkpoint *checkpoint) {
    for (int healthy = 1; healthy >= 0; healthy--)
        for (size_t i = folder->count; i-- > 0;) {
            const keel_checkpoint_entry *entry = &folder->entries[i];
            if (entry->step >= step || entry->healthy != healthy) continue;
            const char *done = healthy ? "parameters of the healthy checkpoint "
                                       : "no checkpoint before it has the mark of health; parameters of the newest, ";
            const keel_status status = take(folder, entry, facts, done, note, context, checkpoint);
            if (status != KEEL_ERR_FORMAT) return status;
            tell(note, context, keel_error(), "; passed over");
        }
    if (folder->count == 0) return keel_fail(KEEL_ERR_NOT_FOUND, "%s: no checkpoint", folder->path);
    return keel_fail(KEEL_ERR_NOT_FOUND,
                     "%s: no whole checkpoint before step %" PRIu64 "; the oldest is of step %" PRIu64, folder->path,
                     step, folder->entries[0].step);
}
