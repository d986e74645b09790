// One checkpoint: a safetensors file with everything that a run needs to go on bit for bit. It knows no layout: tensors
// are whole, whatever ranks held them, and a run of any other layout can take it up.
//
//     model.NAME, exp_avg.NAME, exp_avg_sq.NAME    F32, every parameter
//     monitor                                      U8, the detectors' state
//     crc32                                        U8 [4], of all before it
//     __metadata__                                 keel_checkpoint, step, update, samples, skipped_in_row,
//                                                  clean_updates, loss_scale, and the facts of the run
//
// All random draws of a run are functions of its seed and of the position (train/mix.h), so that these two are the
// random state.
#ifndef KEEL_TRAIN_CHECKPOINT_H
#define KEEL_TRAIN_CHECKPOINT_H

#include "train/facts.h"
#include "train/optim/loss_scale.h"
#include "train/reshard_file.h"

enum { KEEL_CHECKPOINT_SCHEMA = 1 };

// Where a run stands.
typedef struct keel_progress {
    uint64_t step;           // attempts
    uint64_t update;         // applied
    uint64_t samples;        // sequences consumed by all ranks: the loader's position
    uint64_t skipped_in_row; // skipped steps at the end, one after another, but for those that lowered the loss scale
    keel_loss_scale loss_scale;
} keel_progress;

typedef struct keel_checkpoint {
    keel_reshard *reshard; // weights and states, read or overwritten; borrowed
    keel_progress progress;
    void *monitor; // malloc'ed; NULL: none
    size_t monitor_bytes;
    // private
    keel_safetensors *file; // between open and load
    keel_reshard_source *sources;
} keel_checkpoint;

// By rank 0, whole or not at all. KEEL_ERR_IO on a full disk, or where states that lie in a file were lost. Unless the
// reshard is alone it is collective: PATH NULL takes part without writing, and needs nothing else of CHECKPOINT.
keel_status keel_checkpoint_write(const char *path, const keel_checkpoint *checkpoint, const keel_facts *facts);

// Reads and checks all of PATH, on rank 0; sets progress and monitor, which is then the caller's. KEEL_ERR_CONFIG,
// naming the key, if a required fact differs, or if the file is whole and not a checkpoint of this model;
// KEEL_ERR_FORMAT if it is damaged. *CHANGED: what else differs, as one line, malloc'ed; NULL: nothing.
keel_status keel_checkpoint_open(const char *path, const keel_facts *facts, keel_checkpoint *checkpoint,
                                 char **changed);
// Brings the weights and states of the file that rank 0 has opened to all ranks, and closes it. Collective.
keel_status keel_checkpoint_load(keel_checkpoint *checkpoint);
void keel_checkpoint_close(keel_checkpoint *checkpoint); // without having loaded; zeros are fine

#endif
