// Inside the trainer: what keel_trainer holds.
#ifndef KEEL_TRAIN_TRAINER_STATE_H
#define KEEL_TRAIN_TRAINER_STATE_H

#include <stdatomic.h>

#include "train/checkpoint.h"
#include "train/checkpoint_folder.h"
#include "train/data/loader.h"
#include "train/faults/faults.h"
#include "train/parallel/bucket.h"
#include "train/parallel/mesh.h"
#include "train/parallel/pipeline.h"
#include "train/plain_nan.h"
#include "train/routing_report.h"
#include "train/trainer.h"

// What one small reduction tells all ranks at the end of a step.
typedef enum keel_control {
    KEEL_CONTROL_LOSS_SUM,  // sum of cross entropy
    KEEL_CONTROL_LOSS_MAX,  // greatest mean loss of a micro-batch; NaN counts as greatest
    KEEL_CONTROL_LOSS_RANK, // the first rank of those that have read it
    KEEL_CONTROL_NONFINITE, // 1: the loss or the gradient norm is not finite on some rank
    KEEL_CONTROL_FAILED,    // 1: some rank cannot go on
    KEEL_CONTROL_STOP,      // 1: some rank was asked to stop; 2: by the monitor
    KEEL_CONTROL_CRITICALS, // critical incidents open on rank 0, so that all ranks judge alike
    KEEL_CONTROL_COUNT
} keel_control;

typedef enum keel_trainer_scalar {
    KEEL_SCALAR_LOSS,
    KEEL_SCALAR_LOSS_MAX,
    KEEL_SCALAR_PERPLEXITY,
    KEEL_SCALAR_LR,
    KEEL_SCALAR_GRAD_NORM,
    KEEL_SCALAR_CLIP_FACTOR,
    KEEL_SCALAR_TOKENS_PER_SECOND,
    KEEL_SCALAR_REDUCE_WAIT, // of a rank in all collectives and transfers of the step
    KEEL_SCALAR_CPU_WAIT, // for which a rank had no processor in its passes through the model, beyond its waits there
    KEEL_SCALAR_REDUCE_WAIT_LEAST, // the same, merged by min: who waits least is waited for
    KEEL_SCALAR_RSS_PEAK,          // memory_peak.h
    KEEL_SCALAR_OFFLOAD_WAIT,      // for which the update waited for states in a file; only where that is configured
    KEEL_SCALAR_LOSS_SCALE,        // likewise
    KEEL_SCALAR_TRAINER_COUNT
} keel_trainer_scalar;

struct keel_trainer {
    const keel_train_config *config;
    keel_probe *probe;
    keel_trainer_report report; // empty on ranks other than 0
    keel_mesh mesh;
    keel_stage stage;
    keel_taps *taps;
    keel_faults faults;
    keel_model *model;
    keel_optimizer *optimizer;
    keel_reshard *reshard;
    keel_collectives *collectives;
    keel_collective *control;
    MPI_Op control_op;
    keel_zero zero;
    keel_buckets *buckets;
    keel_pipeline *pipeline;
    keel_sequences own_sequences; // shards opened here; zeros where the caller gave its own
    keel_routing_report routing;
    keel_loader loader;
    keel_facts facts;
    keel_checkpoint_folder folder; // on rank 0
    int output_lock;               // on rank 0, while it runs; -1: none
    int shards_hold;               // likewise: the shards stay what they are
    keel_progress progress;
    void *monitor; // its state from the checkpoint, until the run starts; NULL: none
    size_t monitor_bytes;
    bool new_run;         // not resumed
    bool look;            // nothing is written: opened to take a step again or to print the structure
    uint64_t replay_step; // opened to take this step again; 0: to train
    uint64_t resumed_step;
    double began; // seconds, the first step of the run
    double seconds[KEEL_TRAINER_PART_COUNT];
    uint64_t saved_step; // of the last checkpoint that was written or tried
    uint32_t scalars[KEEL_SCALAR_TRAINER_COUNT];
    int cpu_wait;       // see cpu_wait.h
    double memory_peak; // bytes, when it was last asked for
    keel_collective *memory;
    atomic_bool stop;
};

// One line to the caller's report, if there is anyone.
void keel_trainer_note(const keel_trainer *trainer, const char *format, ...) KEEL_PRINTF(2, 3);

// Whether what settings name is there, on some stage: parameters of optimizer groups, sites of faults. KEEL_ERR_CONFIG,
// the same on all ranks. Collective.
keel_status keel_trainer_check_names(keel_trainer *trainer);

// Opens one that takes up the run before REPLAY_STEP, to look at that step only.
keel_status keel_trainer_open_before(const keel_train_config *config, const keel_sequences *sequences, MPI_Comm comm,
                                     keel_probe *probe, uint64_t replay_step, const keel_trainer_report *report,
                                     keel_trainer **trainer);
// One attempt at a step with all that belongs to it but reports and checkpoints of the caller's; *LOSS and *GRAD_NORM
// as they are recorded. Collective.
keel_status keel_trainer_step(keel_trainer *trainer, double *loss, double *grad_norm);

// From here on no other run writes to the output folder, if there is one. On rank 0.
keel_status keel_trainer_lock_output(keel_trainer *trainer);
// Makes the run's folders its own. On rank 0, before the first step.
keel_status keel_trainer_begin_folders(keel_trainer *trainer);
// Writes a checkpoint of the present state, unless something speaks against it, which is then noted. Training never
// stops for it. Collective.
void keel_trainer_save(keel_trainer *trainer, bool critical_open);
// Gives marks of health. Once a step.
void keel_trainer_judge_checkpoints(keel_trainer *trainer);

#endif
