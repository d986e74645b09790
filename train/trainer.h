// The training loop: data parallel over MPI, watched through the probe.
//
//     keel_affinity_share(MPI_COMM_WORLD, &config->affinity, &affinity); // first, before threads exist
//     keel_trainer_open(config, MPI_COMM_WORLD, probe, resume, &report, &trainer);
//     keel_probe_start(probe);
//     keel_trainer_run(trainer);
//     keel_trainer_close(trainer);
//
// Every call that is collective gives the same status on all ranks, and the text of the lowest rank that failed.
#ifndef KEEL_TRAIN_TRAINER_H
#define KEEL_TRAIN_TRAINER_H

#include <mpi.h>
#include <stdio.h>

#include "configs/train_config.h"
#include "probe/keel.h"
#include "train/data/loader.h"

typedef struct keel_trainer keel_trainer;

// What a step spends its time on.
typedef enum keel_trainer_part {
    KEEL_TRAINER_PART_MODEL,  // forward, backward and what they reduce
    KEEL_TRAINER_PART_NORM,   // of the gradient
    KEEL_TRAINER_PART_UPDATE, // the optimizer's
    KEEL_TRAINER_PART_COUNT
} keel_trainer_part;

// What the trainer tells its caller; called on rank 0's training thread. NULL members are skipped.
typedef struct keel_trainer_report {
    void *context;
    void (*progress)(void *context, const char *what, double done); // data preparation, 0..1
    // LOSS_SCALE: of this step; 0 where none is configured.
    void (*step)(void *context, const keel_step *step, double loss, double grad_norm, double lr,
                 double tokens_per_second, double loss_scale);
    // Before STEP, of the same step, with experts: their losses, and layer L's drop rate at RATES[L * stride].
    void (*routing)(void *context, const keel_step *step, double aux_loss, double z_loss, const double *rates,
                    size_t stride, size_t layers);
    void (*note)(void *context, const char *text); // one line: resumed from ..., checkpoint refused because ...
} keel_trainer_report;

// Builds mesh, data, model, optimizer; registers every site with PROBE, which the caller then starts (keel_probe_start)
// before keel_trainer_run. The caller has its backend attached before this call. CONFIG and PROBE must outlive the
// trainer. RESUME: continue from the newest usable checkpoint. Writes shards, checkpoints and the trained model below
// the folders of CONFIG. Collective.
keel_status keel_trainer_open(const keel_train_config *config, MPI_Comm comm, keel_probe *probe, bool resume,
                              const keel_trainer_report *report, keel_trainer **trainer);
// The same with sequences of the caller's own, of config->model.seq_length + 1 tokens each, in place of
// config->dataset's shards. They are borrowed.
keel_status keel_trainer_open_with(const keel_train_config *config, const keel_sequences *sequences, MPI_Comm comm,
                                   keel_probe *probe, bool resume, const keel_trainer_report *report,
                                   keel_trainer **trainer);
// As keel_trainer_open, for keel_trainer_print_structure alone: nothing is written anywhere, the shards are taken as
// they are, and need not be there. Collective.
keel_status keel_trainer_open_structure(const keel_train_config *config, MPI_Comm comm, keel_probe *probe, bool resume,
                                        const keel_trainer_report *report, keel_trainer **trainer);
// Trains until runner_config.steps updates are made, then writes OUTPUT_DIR/model.safetensors. KEEL_ERR_DIVERGED after
// runner_config.stop_after_skipped non-finite losses or gradient norms in a row, or where the monitor asks for the end.
// An infinite gradient of a finite loss does not count while a dynamic loss scale falls with it: that is what the scale
// is for. Collective.
keel_status keel_trainer_run(keel_trainer *trainer);
// Asks for an orderly stop at the next step border (checkpoint included). From any thread or a signal handler.
void keel_trainer_stop(keel_trainer *trainer);
// Wall seconds of each part in all steps so far, on this rank; of the step at hand once it is reported.
void keel_trainer_seconds(const keel_trainer *trainer, double seconds[KEEL_TRAINER_PART_COUNT]);
// All updates of runner_config.steps are made.
bool keel_trainer_is_complete(const keel_trainer *trainer);
void keel_trainer_close(keel_trainer *trainer); // NULL is fine

// Module tree, parameters, and every collective of a step with count, bytes, dtype and communicator.
// OUT: on rank 0. Of several stages each is printed. Collective.
keel_status keel_trainer_print_structure(const keel_trainer *trainer, FILE *out);

#endif
