// The loss scale: the loss is multiplied by it before the backward pass, and the gradient divided by it, in float32,
// before anything is made of it, so that small gradients are not flushed where they are kept in float16 (Micikevicius
// et al. 2018).
#ifndef KEEL_TRAIN_OPTIM_LOSS_SCALE_H
#define KEEL_TRAIN_OPTIM_LOSS_SCALE_H

#include "configs/train_config.h"

// A dynamic scale stays within these; above the second only where loss_scale_value already is.
#define KEEL_LOSS_SCALE_LEAST 1.0
#define KEEL_LOSS_SCALE_MOST  0x1p24

// Of a dynamic scale; zeros otherwise, and before the first step.
typedef struct keel_loss_scale {
    double scale;   // of the next step
    uint64_t clean; // updates since it was last changed
} keel_loss_scale;

void keel_loss_scale_begin(const keel_loss_scale_config *config, keel_loss_scale *state); // keeps a resumed state
// The scale of the next step: 1 where none is configured.
double keel_loss_scale_now(const keel_loss_scale_config *config, const keel_loss_scale *state);
// After a step: SKIPPED says that its gradient was not finite. A dynamic scale is divided by scale_factor then, and
// multiplied by it after scale_window updates in a row. True if it fell.
bool keel_loss_scale_end_step(const keel_loss_scale_config *config, keel_loss_scale *state, bool skipped);

#endif
