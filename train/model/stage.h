// The part of the model that one rank of a pipeline holds: some layers, with the embedding before the first of all and
// the last norm and the head behind the last.
#ifndef KEEL_TRAIN_MODEL_STAGE_H
#define KEEL_TRAIN_MODEL_STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "configs/train_config.h"

typedef struct keel_stage {
    uint32_t index, count; // of the stages
    size_t first, layers;  // layers [first, first + layers) of the model
} keel_stage;

// Stage INDEX of CONFIG, whose lists were checked when it was read. Where the layers do not divide, some stages have
// one more: not the last, which has the head, and not the first either, which has most micro-batches on their way at a
// time, unless the rest is too large for those between.
keel_stage keel_stage_of(const keel_train_config *config, uint32_t index);

static inline bool keel_stage_is_first(const keel_stage *stage) {
    return stage->index == 0;
}
static inline bool keel_stage_is_last(const keel_stage *stage) {
    return stage->index + 1 == stage->count;
}

#endif
