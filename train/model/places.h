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
    KEEL_PLACE_ROUTER, // with experts
    KEEL_PLACE_UP,     // with experts this and ACT have a row for each assignment, sorted by expert
    KEEL_PLACE_ACT,
    KEEL_PLACE_DOWN,
    KEEL_PLACE_BLOCK,
    KEEL_PLACE_COUNT
} keel_place;

// The order of a place of LAYER in the forward data flow of the whole model; behind the last layer come the last norm
// and the head.
static inline size_t keel_places_order(size_t layer, keel_place place) {
    return 1 + layer * KEEL_PLACE_COUNT + place;
}
static inline size_t keel_places_count(size_t layers) {
    return layers * KEEL_PLACE_COUNT + 3;
}
// Backward the places come the other way round.
static inline uint32_t keel_places_back(size_t layers, size_t order) {
    return (uint32_t)(keel_places_count(layers) - 1 - order);
}
// The order of a place of a model with LAYERS in either direction.
static inline uint32_t keel_place_order(size_t layers, size_t layer, keel_place place, bool backward) {
    const size_t order = keel_places_order(layer, place);
    return backward ? keel_places_back(layers, order) : (uint32_t)order;
}

// Where a collective stands that a layer has right before PLACE, which in the backward phase is its gradient.
static inline keel_collective_place keel_places_before(const keel_context *context, keel_phase phase, size_t layer,
                                                       keel_place place) {
    return (keel_collective_place){.within = true,
                                   .phase = phase,
                                   .order =
                                       keel_place_order(context->layers, layer, place, phase == KEEL_PHASE_BACKWARD),
                                   .layer = (int32_t)layer,
                                   .stage = (int32_t)context->stage.index};
}

typedef struct keel_place_taps {
    keel_tap *value; // activation
    keel_tap *grad;  // activation_grad
} keel_place_taps;

// What is told of a layer's routing, over all data-parallel ranks.
typedef struct keel_routing_taps {
    keel_tap *load;      // [E] assignments of each expert, before any is dropped
    keel_tap *drop_rate; // dropped / routed assignments
    keel_tap *estimate;  // of the drop rate, from the loads: sum_e max(0, load_e - capacity of all sequences) / routed;
                         // NULL without a capacity
} keel_routing_taps;

// The taps of a layer.
typedef struct keel_layer_places {
    keel_place_taps taps[KEEL_PLACE_COUNT];
    keel_tap *logit;           // max |q.k / sqrt(d)| over unmasked positions, of each head and sequence
    keel_routing_taps routing; // with experts
} keel_layer_places;

typedef struct keel_places {
    keel_place_taps embedding, final_norm, head; // NULL where the stage has none
    keel_layer_places *layers;
} keel_places;

// Of the stage's places, with their orders in the whole model. Registers a site of activation and one of
// activation_grad for every place, and one of activation for every layer's greatest attention logits,
// "layers.3.attention.max_logit"; with experts, of its routing, "layers.3.mlp.router.expert_load", ".drop_rate" and
// ".drop_rate_estimate".
keel_status keel_places_open(const keel_context *context, keel_taps *taps, keel_places *places);
void keel_places_close(keel_places *places);

#endif
