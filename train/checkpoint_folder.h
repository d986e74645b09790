// The checkpoints of a run: OUTPUT_DIR/checkpoints/step-0000000100.safetensors, and with the mark of health
// step-0000000100.healthy.safetensors, so that the mark is set by one atomic rename.
#ifndef KEEL_TRAIN_CHECKPOINT_FOLDER_H
#define KEEL_TRAIN_CHECKPOINT_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/keel.h"

// A checkpoint is healthy once so many steps after it have passed without a warning or critical incident open.
enum { KEEL_QUIET_STEPS = 200 };

typedef struct keel_checkpoint_entry {
    uint64_t step;
    bool healthy;
} keel_checkpoint_entry;

typedef struct keel_checkpoint_folder {
    char *path;
    keel_checkpoint_entry *entries; // from the oldest to the newest
    size_t count;
} keel_checkpoint_folder;

// Lists OUTPUT_DIR/checkpoints, which need not exist.
keel_status keel_checkpoint_folder_open(const char *output_dir, keel_checkpoint_folder *folder);
void keel_checkpoint_folder_close(keel_checkpoint_folder *folder); // zeros are fine

// Path of an entry, malloc'ed; NULL without memory.
char *keel_checkpoint_folder_path(const keel_checkpoint_folder *folder, const keel_checkpoint_entry *entry);
// After the checkpoint of STEP has been written to its path without the mark: takes it into the list.
keel_status keel_checkpoint_folder_add(keel_checkpoint_folder *folder, uint64_t step);
// Gives the mark of health to those that have earned it.
keel_status keel_checkpoint_folder_judge(keel_checkpoint_folder *folder, const keel_health *health);
// Deletes all but the newest KEEP_HEALTHY healthy ones and, of the others, the newest KEEP; never the newest of all.
keel_status keel_checkpoint_folder_prune(keel_checkpoint_folder *folder, size_t keep, size_t keep_healthy);
// Takes a damaged checkpoint out of the list, and renames it to NAME.damaged.
keel_status keel_checkpoint_folder_set_aside(keel_checkpoint_folder *folder, uint64_t step);
// Removes what a write that was cut short has left. To be called by the run that is about to write here.
void keel_checkpoint_folder_clean(const keel_checkpoint_folder *folder);

#endif
