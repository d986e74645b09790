#include "train/model/stage.h"

static size_t layers_of(const keel_train_config *config, size_t index) {
    const int64_t *given = config->parallel.pipeline_layers;
    const size_t count = (size_t)config->parallel.pipeline_stage, layers = (size_t)config->model.num_layers;
    const size_t rest = layers % count, richest = rest + 1 < count ? 1 : 0; // of those with one more, the first
    if (given) return (size_t)given[index];
    return layers / count + (index >= richest && index < richest + rest);
}

keel_stage keel_stage_of(const keel_train_config *config, uint32_t index) {
    keel_stage stage = {
        .index = index, .count = (uint32_t)config->parallel.pipeline_stage, .layers = layers_of(config, index)};
    for (size_t before = 0; before < index; before++) stage.first += layers_of(config, before);
    return stage;
}
