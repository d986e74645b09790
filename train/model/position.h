// Positions: the table of rotations of RoPE. (GPT-2's learned positions are part of the embedding.)
#ifndef KEEL_TRAIN_MODEL_POSITION_H
#define KEEL_TRAIN_MODEL_POSITION_H

#include "train/model/context.h"

typedef struct keel_position {
    float *cosine, *sine; // [T, D / 2]; NULL without rotary positions
} keel_position;

void keel_position_plan(const keel_context *context, keel_arena *arena, keel_position *position);
// Angle of position t and pair i: t theta^(-2 i / D).
void keel_position_init(const keel_context *context, keel_position *position);

#endif
