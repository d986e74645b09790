// The model's parameters: names, shapes and places in the flat buffers, and how Hugging Face names them.
#ifndef KEEL_TRAIN_MODEL_PARAMETERS_H
#define KEEL_TRAIN_MODEL_PARAMETERS_H

#include "train/model/context.h"
#include "train/model/linear.h"
#include "train/model/model.h"
#include "train/model/norm.h"

typedef struct keel_layer_params {
    keel_norm norm1, norm2;
    keel_linear qkv, out, up, down; // with experts UP and DOWN are the first one's, the others' follow
    keel_linear router;             // with experts
} keel_layer_params;

typedef struct keel_parameters {
    keel_param *list; // in forward order
    size_t count, capacity;
    size_t numel;       // of this rank's flat buffers
    size_t whole_numel; // of those of a single rank
    uint32_t whole_count;
    keel_hf_tensor *hf;
    size_t hf_count, hf_capacity;
    keel_layer_params *layers; // of the stage
    // Offsets are KEEL_NO_PARAM where the stage has none.
    keel_norm final_norm;
    size_t token_embedding, position_embedding;
    keel_linear head; // its weight is the token embedding's if tied
} keel_parameters;

keel_status keel_parameters_build(const keel_context *context, keel_parameters *parameters);
void keel_parameters_free(keel_parameters *parameters);

#endif
