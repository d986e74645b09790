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

static keel_status fail_unknown(const keel_model *model, const keel_fault_config *fault) {
    size_t count;
    const keel_param *params = keel_model_params(model, &count);
    const char **names = malloc(count * sizeof *names);
    if (!names) return keel_fail(KEEL_ERR_MEMORY, "no memory for the names of parameters");
    for (size_t i = 0; i < count; i++) names[i] = params[i].name;
    const keel_status status = keel_yaml_fail_key(fault->node, "site", "no parameter '%s'; the nearest is '%s'",
                                                  fault->site, keel_yaml_nearest(fault->site, names, count));
    free(names);
    return status;
}

static bool names_parameter(const keel_fault_config *fault) {
    return fault->kind == KEEL_FAULT_BIT_FLIP || fault->kind == KEEL_FAULT_INITIAL_SCALE;
}

bool keel_fault_finds_weights(const keel_model *model, const keel_fault_config *fault) {
    return !names_parameter(fault) || find(model, fault->site);
}

keel_status keel_fault_check_weights(const keel_model_config *config, const keel_model *model,
                                     const keel_fault_config *fault) {
    if (fault->kind == KEEL_FAULT_QUERY_GROWTH && fault->layer >= config->num_layers)
        return keel_yaml_fail_key(fault->node, "layer", "layer %lld, but the model has %lld, from 0",
                                  (long long)fault->layer, (long long)config->num_layers);
    if (!names_parameter(fault)) return KEEL_OK;
    const keel_param *param = find(model, fault->site);
    if (!param) return fail_unknown(model, fault);
    if ((uint64_t)fault->index >= param->numel)
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
