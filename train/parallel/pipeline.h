// The micro-batches of a step through the stages of a pipeline: one forward, one backward (Narayanan et al. 2021,
// "1F1B" with a flush at the step's end). Stage S of P lets P - S micro-batches in before the first comes back, and
// then takes them in turn, so that no rank keeps more of them than that. The residual stream and the gradient by it
// move from stage to stage while other micro-batches are computed. One stage alone takes its micro-batches one by one.
#ifndef KEEL_TRAIN_PARALLEL_PIPELINE_H
#define KEEL_TRAIN_PARALLEL_PIPELINE_H

#include "train/model/model.h"
#include "train/parallel/bucket.h"
#include "train/parallel/collective.h"

typedef struct keel_pipeline keel_pipeline;

typedef struct keel_pipeline_plan { // everything is borrowed and outlives the pipeline
    keel_model *model;              // with keel_pipeline_slots slots
    keel_stage stage;
    size_t layers; // of the whole model
    keel_buckets *buckets;
    size_t micro_batches; // of a step
    const keel_mesh *mesh;
    keel_taps *taps;
    keel_collectives *collectives;
} keel_pipeline_plan;

// Micro-batches that STAGE has between forward and backward pass at a time.
size_t keel_pipeline_slots(const keel_stage *stage, size_t micro_batches);

// Declares the transfers: none with one stage.
keel_status keel_pipeline_open(const keel_pipeline_plan *plan, keel_pipeline **pipeline);
void keel_pipeline_close(keel_pipeline *pipeline);         // NULL is fine
size_t keel_pipeline_bytes(const keel_pipeline *pipeline); // allocated: the streams on their way

// The next micro-batch: TOKENS [B, T + 1]. Called in the order of MICRO, on every stage.
typedef keel_status keel_next_batch(void *context, size_t micro, uint32_t *tokens);

typedef struct keel_pipeline_loss {
    double sum;      // of cross entropy over all micro-batches, in nats; 0 where another stage has the loss
    double greatest; // of one micro-batch's sums, NaN being greatest; -1 where another stage has the loss
} keel_pipeline_loss;

// All micro-batches of a step, forward and backward; the buckets have their gradient, of the loss times SCALE, and are
// still to be finished. A rank that fails goes on with tokens of its own making, so that every transfer and reduction
// of the step takes place and the others come to its end; only failed transfers end at once.
keel_status keel_pipeline_run(keel_pipeline *pipeline, keel_next_batch *next, void *context, double scale,
                              keel_pipeline_loss *loss);

#endif
