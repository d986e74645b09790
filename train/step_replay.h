// A step of a run taken again, to tell bad data from a bad machine.
//
// The run is taken up at the newest healthy checkpoint before the step. There, at parameters that are known to be
// sound, and with nothing done yet that a broken rank could spread, the step's batch is computed on its own ranks,
// shard k on rank k, and on others, shard k on rank k + 1, each twice; and so are the batches before it, for
// comparison. Then the steps up to it are made as they were, so that the same is done at the very parameters of the
// step, and the step itself, whose loss and gradient norm can be held against those that were recorded.
#ifndef KEEL_TRAIN_STEP_REPLAY_H
#define KEEL_TRAIN_STEP_REPLAY_H

#include "train/trainer.h"

enum { KEEL_REPLAY_PASSES = 4, KEEL_REPLAY_NEIGHBOURS = 16, KEEL_REPLAY_NEIGHBOURS_LEAST = 8 };

typedef struct keel_replay_value {
    double loss;      // mean over the shard's tokens, in nats
    double grad_norm; // L2 norm of its gradient, before any reduction and clipping
} keel_replay_value;

// A batch and its neighbours at one set of parameters. Shard k is what rank k had in the run.
typedef struct keel_replay_reading {
    uint64_t step;           // the parameters are those after it
    uint32_t shards, tp, pp; // tp * pp ranks hold the model together: data-parallel rank k is what "rank k" means here
    uint32_t passes;         // 4: on its own rank, again, on the next rank, again; 2 where there is one rank only
    uint32_t neighbours;     // batches before it; where there are too few, behind it too
    keel_replay_value *values; // [KEEL_REPLAY_PASSES + KEEL_REPLAY_NEIGHBOURS, shards]: passes, then neighbours
} keel_replay_reading;

typedef struct keel_replay {
    uint64_t step;
    uint64_t checkpoint_step;
    keel_replay_reading at_checkpoint;
    keel_replay_reading at_step; // the parameters before the step; no values where that was not needed, or
                                 // where they are those of the checkpoint
    keel_replay_value *steps;    // [step_count]: the run as it was made again, from CHECKPOINT_STEP + 1 to STEP
    uint64_t step_count;         // 0 where that was not needed
} keel_replay;

// What a broken machine does in a replay, after the last recorded step of the run: faults of the machine (nan,
// bit_flip, replica_skip) that are over by then do not strike again, and those that hold on strike in every step.
// Faults of the data and of the program stay what they are.
void keel_replay_faults(keel_train_config *config, uint64_t last_step);

// As keel_trainer_open_with, for keel_replay_run of STEP: nothing is written anywhere. SEQUENCES NULL: the shards of
// CONFIG. KEEL_ERR_NOT_FOUND if there is no checkpoint before STEP. KEEL_ERR_CONFIG where ranks compute for one
// another's batches (expert_parallel above 1): what one gives would not be its own. Collective.
keel_status keel_replay_open(const keel_train_config *config, const keel_sequences *sequences, MPI_Comm comm,
                             keel_probe *probe, uint64_t step, const keel_trainer_report *report,
                             keel_trainer **trainer);

// True if a reading tells enough for the steps not to be made again. Called on every rank with the same numbers.
typedef bool keel_replay_enough(const keel_replay_reading *reading);

// After keel_probe_start; the trainer is of no more use after it. REPLAY is freed by keel_replay_free. Collective.
keel_status keel_replay_run(keel_trainer *trainer, keel_replay_enough *enough, keel_replay *replay);
void keel_replay_free(keel_replay *replay);

#endif
