// What the trainer's YAML says of single layers: how many a stage of the pipeline has, and which are computed again.
#ifndef KEEL_CONFIGS_LAYER_CONFIG_H
#define KEEL_CONFIGS_LAYER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "configs/yaml.h"

// parallel_config.pipeline_layers of PARALLEL, into LAYERS [STAGES], malloc'ed, NULL where it is not given. In any case
// KEEL_ERR_CONFIG, with the numbers, if NUM_LAYERS do not give every stage one, or the list does not fit.
keel_status keel_pipeline_layers_read(const keel_yaml_node *parallel, int64_t stages, int64_t num_layers,
                                      int64_t **layers);

// Which layers keep less of a forward pass and compute the rest again before their backward pass. Each is
// [num_layers], malloc'ed; NULL: none.
typedef struct keel_recompute_config { // recompute_config
    bool *full;                        // recompute: all but the layer's input
    bool *select;                      // select_recompute: the attention's core and the activation function's output
} keel_recompute_config;

// Each of the two: true, false, or a list of layers counted from 0.
keel_status keel_recompute_config_read(const keel_yaml_node *node, int64_t num_layers,
                                       keel_recompute_config *recompute);
void keel_recompute_config_free(keel_recompute_config *recompute); // zeros are fine

#endif
