// The places of the model that are watched, forward and backward, in the order of the data flow.
#ifndef KEEL_TRAIN_MODEL_PLACES_H
#define KEEL_TRAIN_MODEL_PLACES_H

#include "train/model/context.h"

typedef enum keel_place { // outputs of the modules of a layer, in forward order
    KEEL_PLACE_NORM1,
    KEEL_PLACE_QKV,
    KEEL_PLACE_CORE,
    KEEL_PLACE_OUT,
    KEEL_PLACE_NORM2,
    KEEL_PLACE_UP,
    KEEL_PLACE_ACT,
    KEEL_PLACE_DOWN,
    KEEL_PLACE_BLOCK,
    KEEL_PLACE_COUNT
} keel_place;

typedef struct keel_place_taps {
    keel_tap *value; // activation
    keel_tap *grad;  // activation_grad
} keel_place_taps;

typedef struct keel_places {
    keel_place_taps embedding, final_norm, head; // NULL where the stage has none
    keel_place_taps (*layers)[KEEL_PLACE_COUNT];
    keel_tap **logits; // of each layer: max |q.k / sqrt(d)| over unmasked positions, one number
} keel_places;

// Of the stage's places, with their orders in the whole model. Registers a site of activation and one of
// activation_grad for every place, and one of activation for every layer's greatest attention logit,
// "layers.3.attention.max_logit".
keel_status keel_places_open(const keel_context *context, keel_taps *taps, keel_places *places);
void keel_places_close(keel_places *places);

#endif
