// What the `faults` section of the configuration does beside the taps (train/model/tap.h): to batches, weights,
// updates, and the process itself. Nothing here does anything where no fault is configured.
#ifndef KEEL_TRAIN_FAULTS_FAULTS_H
#define KEEL_TRAIN_FAULTS_FAULTS_H

#include "configs/train_config.h"
#include "train/data/loader.h"
#include "train/model/model.h"

typedef struct keel_faults {
    const keel_train_config *config; // borrowed
    keel_model *model;               // borrowed
    const keel_mesh *mesh;           // borrowed
    uint32_t rank, ranks;
    uint32_t shard; // of the data: what is done to a batch is done on all ranks that have it
    void *leaked;   // a list of blocks
} keel_faults;

void keel_faults_close(keel_faults *faults); // zeros are fine

// KEEL_ERR_CONFIG, with the place, for a fault of a rank, an element or a layer that is not there. Those of parameters
// that are not here are fine.
keel_status keel_faults_check(const keel_faults *faults);

// Once, to the first weights of a run.
void keel_faults_initial_weights(const keel_faults *faults);
// Before anything of STEP: weights, time, memory. KEEL_ERR_MEMORY where there is nothing left to leak.
keel_status keel_faults_begin_step(keel_faults *faults, uint64_t step);
// Before the batches of STEP are drawn.
void keel_faults_move_loader(const keel_faults *faults, uint64_t step, keel_loader *loader);
// To a micro-batch, TOKENS [B, T + 1].
void keel_faults_spoil_batch(const keel_faults *faults, uint64_t step, size_t micro, uint32_t *tokens);
double keel_faults_learning_rate(const keel_faults *faults, uint64_t step, double lr);
// True if this rank leaves out the update of STEP.
bool keel_faults_skip_update(const keel_faults *faults, uint64_t step);

#endif
