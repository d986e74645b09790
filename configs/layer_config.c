#include "configs/layer_config.h"

#include <stdlib.h>

static keel_status no_memory(const char *what) {
    return keel_fail(KEEL_ERR_MEMORY, "trainer configuration: no memory for %s", what);
}

static keel_status read_layers(const keel_yaml_node *list, int64_t stages, int64_t num_layers, int64_t *layers) {
    int64_t sum = 0;
    if (keel_yaml_kind_of(list) != KEEL_YAML_LIST) return keel_yaml_fail_kind(list, "a list of numbers of layers");
    if (keel_yaml_size(list) != (size_t)stages)
        return keel_yaml_fail(list, "%zu numbers of layers for pipeline_stage %lld", keel_yaml_size(list),
                              (long long)stages);
    for (size_t i = 0; i < (size_t)stages; i++) {
        const keel_yaml_node *item = keel_yaml_item(list, i);
        const keel_status status = keel_yaml_to_int(item, &layers[i]);
        if (status) return status;
        if (layers[i] < 1 || layers[i] > num_layers)
            return keel_yaml_fail(item, "must be from 1 to num_layers, %lld; found %lld", (long long)num_layers,
                                  (long long)layers[i]);
        sum += layers[i];
    }
    if (sum != num_layers)
        return keel_yaml_fail(list, "the stages have %lld layers together, but num_layers is %lld", (long long)sum,
                              (long long)num_layers);
    return KEEL_OK;
}

keel_status keel_pipeline_layers_read(const keel_yaml_node *parallel, int64_t stages, int64_t num_layers,
                                      int64_t **layers) {
    const keel_yaml_node *list = keel_yaml_get(parallel, "pipeline_layers");
    if (stages > num_layers)
        return keel_yaml_fail(keel_yaml_get(parallel, "pipeline_stage"),
                              "%lld stages for num_layers %lld: every stage needs a layer", (long long)stages,
                              (long long)num_layers);
    if (keel_yaml_kind_of(list) == KEEL_YAML_NULL) return KEEL_OK;
    int64_t *made = calloc((size_t)stages, sizeof *made);
    if (!made) return no_memory("the stages' layers");
    const keel_status status = read_layers(list, stages, num_layers, made);
    if (status)
        free(made);
    else
        *layers = made;
    return status;
}

// NODE: true, false or a list of layers.
static keel_status read_set(const keel_yaml_node *node, int64_t num_layers, bool **set) {
    bool all = false;
    if (keel_yaml_kind_of(node) == KEEL_YAML_NULL) return KEEL_OK;
    const bool list = keel_yaml_kind_of(node) == KEEL_YAML_LIST;
    keel_status status = list ? KEEL_OK : keel_yaml_to_bool(node, &all);
    if (status || (!list && !all)) return status;
    bool *made = calloc((size_t)num_layers, sizeof *made);
    if (!made) return no_memory("a set of layers");
    for (size_t l = 0; all && l < (size_t)num_layers; l++) made[l] = true;
    for (size_t i = 0; !status && list && i < keel_yaml_size(node); i++) {
        const keel_yaml_node *item = keel_yaml_item(node, i);
        int64_t layer = 0;
        status = keel_yaml_to_int(item, &layer);
        if (!status && (layer < 0 || layer >= num_layers))
            status = keel_yaml_fail(item, "no layer %lld: num_layers is %lld, and they are counted from 0",
                                    (long long)layer, (long long)num_layers);
        if (!status) made[layer] = true;
    }
    if (status)
        free(made);
    else
        *set = made;
    return status;
}

typedef struct recompute_nodes {
    const keel_yaml_node *recompute, *select_recompute;
} recompute_nodes;

static const keel_yaml_field recompute_fields[] = {
    KEEL_YAML_ROW_NODE(recompute_nodes, recompute),
    KEEL_YAML_ROW_NODE(recompute_nodes, select_recompute),
};

keel_status keel_recompute_config_read(const keel_yaml_node *node, int64_t num_layers,
                                       keel_recompute_config *recompute) {
    recompute_nodes nodes = {0};
    keel_status status =
        keel_yaml_read(node, recompute_fields, sizeof recompute_fields / sizeof *recompute_fields, &nodes);
    if (!status) status = read_set(nodes.recompute, num_layers, &recompute->full);
    if (!status) status = read_set(nodes.select_recompute, num_layers, &recompute->select);
    return status;
}

void keel_recompute_config_free(keel_recompute_config *recompute) {
    free(recompute->full);
    free(recompute->select);
    *recompute = (keel_recompute_config){0};
}
