// The part of the model that one rank of a pipeline holds: some layers, with the embedding before the first of all and
// the last norm and the head behind the last.
#ifndef KEEL_TRAIN_MODEL_STAGE_H
#define KEEL_TRAIN_MODEL_STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct keel_stage {
    uint32_t index, count; // of the stages
    size_t first, layers;  // layers [first, first + layers) of the model
} keel_stage;

static inline bool keel_stage_is_first(const keel_stage *stage) {
    return stage->index == 0;
}
static inline bool keel_stage_is_last(const keel_stage *stage) {
    return stage->index + 1 == stage->count;
}

#endif
