// Inside the model: what keel_model holds.
#ifndef KEEL_TRAIN_MODEL_MODEL_STATE_H
#define KEEL_TRAIN_MODEL_MODEL_STATE_H

#include "train/model/crossing.h"
#include "train/model/embedding.h"
#include "train/model/head.h"
#include "train/model/layer.h"

// A micro-batch on its way: what its forward pass keeps until its backward pass.
typedef struct keel_slot {
    keel_layer *layers; // of the stage
    keel_join last;     // the last layer joins; final_norm, on the last stage
    uint32_t *tokens;   // [B, T + 1]
} keel_slot;

struct keel_model {
    keel_probe *probe;
    keel_taps *taps;
    keel_collectives *collectives; // NULL: none
    keel_clock clock;
    keel_context context;
    keel_parameters parameters;
    keel_crossings crossings;
    keel_places places;
    keel_arena arena;
    keel_embedding embedding;
    keel_work work;
    keel_moe_common *experts; // [layers of the stage]; NULL: no experts
    keel_slot *slots;
    size_t slot_count;
    keel_head head;
    double initializer_range;
    keel_status failure;
    float *dstream; // [R, C] gradient by the residual stream; where there is but one stage
};

#endif
