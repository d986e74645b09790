// Inside the model: what keel_model holds.
#ifndef KEEL_TRAIN_MODEL_MODEL_STATE_H
#define KEEL_TRAIN_MODEL_MODEL_STATE_H

#include "train/model/attention.h"
#include "train/model/embedding.h"
#include "train/model/head.h"
#include "train/model/mlp.h"
#include "train/model/norm.h"
#include "train/model/parameters.h"
#include "train/model/places.h"

typedef struct keel_layer {
    const keel_layer_params *params;
    keel_join join1; // embedding or the layer below joins, norm1
    keel_attention_layer attention;
    keel_join join2; // attention joins, norm2
    keel_mlp_layer mlp;
} keel_layer;

struct keel_model {
    keel_probe *probe;
    keel_clock clock;
    keel_context context;
    keel_parameters parameters;
    keel_places places;
    keel_arena arena;
    keel_embedding embedding;
    keel_attention attention;
    keel_layer *layers;
    keel_join last; // the last layer joins, final_norm
    keel_head head;
    uint32_t *tokens; // [B, T + 1] of the last forward
    double initializer_range;
    float *branch;  // [N, C] output of the branch that joins
    float *dstream; // [N, C] gradient by the residual stream
    float *dnarrow; // [N, C]
    float *dwide;   // [N, sum_width] gradient by the widest products
    float *dact;    // [N, F]; dwide for GPT-2
};

#endif
