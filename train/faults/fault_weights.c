#include "train/faults/fault_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const keel_param *find(const keel_model *model, const char *name) {
    size_t count;
    const keel_param *params = keel_model_params(model, &count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(params[i].name, name) == 0) return &params[i];
    return NULL;
}

keel_status keel_fault_nearest_parameter(const keel_model *model, const keel_fault_config *fault,
                                         const char **nearest) {
    size_t count;
    const keel_param *params = keel_model_params(model, &count);
    const char **names = malloc(count * sizeof *names);
    if (!names) return keel_fail(KEEL_ERR_MEMORY, "no memory for the names of parameters");
    for (size_t i = 0; i < count; i++) names[i] = params[i].name;
    *nearest = keel_yaml_nearest(fault->site, names, count);
    free(names);
    return KEEL_OK;
}

keel_status keel_fault_fail_parameter(const keel_fault_config *fault, const char *nearest) {
    return keel_yaml_fail_key(fault->node, "site", "no parameter '%s'; the nearest is '%s'", fault->site, nearest);
}

bool keel_fault_names_parameter(const keel_fault_config *fault) {
    return fault->kind == KEEL_FAULT_BIT_FLIP || fault->kind == KEEL_FAULT_INITIAL_SCALE;
}

bool keel_fault_finds_parameter(const keel_model *model, const keel_fault_config *fault) {
    return find(model, fault->site) != NULL;
}

keel_status keel_fault_check_weights(const keel_model_config *config, const keel_model *model,
                                     const keel_fault_config *fault) {
    if (fault->kind == KEEL_FAULT_QUERY_GROWTH && fault->layer >= config->num_layers)
        return keel_yaml_fail_key(fault->node, "layer", "layer %lld, but the model has %lld, from 0",
                                  (long long)fault->layer, (long long)config->num_layers);
    const keel_param *param = keel_fault_names_parameter(fault) ? find(model, fault->site) : NULL;
    if (param && (uint64_t)fault->index >= param->numel)
        return keel_yaml_fail_key(fault->node, "index", "%s has %zu elements", param->name, param->numel);
    return KEEL_OK;
}

void keel_fault_flip_bit(keel_model *model, const keel_fault_config *fault) {
    const keel_param *param = find(model, fault->site);
    uint32_t bits;
    if (!param) return;
    float *weight = keel_model_weights(model) + param->offset + fault->index;
    memcpy(&bits, weight, sizeof bits);
    bits ^= UINT32_C(1) << fault->bit;
    memcpy(weight, &bits, sizeof bits);
}

void keel_fault_scale_parameter(keel_model *model, const keel_fault_config *fault) {
    const keel_param *param = find(model, fault->site);
    if (!param) return;
    float *weights = keel_model_weights(model) + param->offset;
    for (size_t i = 0; i < param->numel; i++) weights[i] *= (float)fault->factor;
}

void keel_fault_scale_queries(const keel_model_config *config, keel_model *model, const keel_fault_config *fault) {
    char name[KEEL_SITE_NAME_BYTES];
    snprintf(name, sizeof name, "layers.%lld.attention.qkv.weight", (long long)fault->layer);
    const keel_param *param = find(model, name);
    if (!param) return;
    float *weights = keel_model_weights(model) + param->offset;
    // The first hidden_size outputs of the fused product are the queries: columns for GPT-2, rows for LLaMA. Where
    // heads are shared out, they are the first piece.
    const size_t hidden = (size_t)config->hidden_size;
    const keel_piece *queries = &param->pieces[0];
    const size_t rows = queries->rows < hidden ? queries->rows : hidden;
    const size_t cols = queries->cols < hidden ? queries->cols : hidden;
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < cols; i++) weights[row * queries->local_stride + i] *= (float)fault->factor;
}
