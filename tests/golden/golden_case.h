// A golden case: NAME.h5 in KEEL_TEST_DATA, with a trajectory that another framework computed in float64. Readers end
// the program where a file lacks something.
#ifndef KEEL_TESTS_GOLDEN_CASE_H
#define KEEL_TESTS_GOLDEN_CASE_H

#include <hdf5.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/golden/param_rows.h"
#include "train/model/model.h"

typedef struct golden_case {
    hid_t file;
    json_t *model, *optimizer;      // settings, with Hugging Face's keys
    size_t steps, sequences, width; // of the tokens; width T + 1
    uint32_t *tokens;
    double *losses, *norms; // [steps]
    double *aux_losses;     // [steps]; NULL: no experts
    double *drop_rates;     // [steps, layers]; NULL: no experts
} golden_case;

static inline void golden_check(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "golden case: %s\n", what);
    abort();
}

// Dataset PATH as TYPE, malloc'ed; SHAPE [4] gets its dimensions, the result of NDIM their number.
static inline void *golden_read(hid_t file, const char *path, hid_t type, hsize_t *shape, int *ndim) {
    hid_t set = H5Dopen2(file, path, H5P_DEFAULT);
    golden_check(set >= 0, path);
    hid_t space = H5Dget_space(set);
    *ndim = H5Sget_simple_extent_dims(space, shape, NULL);
    const size_t n = (size_t)H5Sget_simple_extent_npoints(space);
    void *data = malloc(n * H5Tget_size(type) + 1);
    golden_check(data && H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0, path);
    H5Sclose(space);
    H5Dclose(set);
    return data;
}

static inline json_t *golden_read_json(hid_t file, const char *name) {
    hid_t attribute = H5Aopen(file, name, H5P_DEFAULT);
    golden_check(attribute >= 0, name);
    hid_t type = H5Aget_type(attribute);
    char *text = NULL;
    golden_check(H5Aread(attribute, type, &text) >= 0, name);
    json_t *json = json_loads(text, 0, NULL);
    golden_check(json != NULL, name);
    H5free_memory(text);
    H5Tclose(type);
    H5Aclose(attribute);
    return json;
}

static inline double golden_number(const json_t *json, const char *key) {
    const json_t *value = json_object_get(json, key);
    golden_check(value != NULL, key);
    return json_number_value(value);
}

static inline golden_case golden_open(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.h5", KEEL_TEST_DATA, name);
    golden_case c = {.file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT)};
    golden_check(c.file >= 0, path);
    c.model = golden_read_json(c.file, "config_json");
    c.optimizer = golden_read_json(c.file, "optimizer_json");
    hsize_t shape[4];
    int ndim;
    c.tokens = golden_read(c.file, "tokens", H5T_NATIVE_UINT32, shape, &ndim);
    golden_check(ndim == 3, "tokens are not [step, sequence, time + 1]");
    c.steps = (size_t)shape[0];
    c.sequences = (size_t)shape[1];
    c.width = (size_t)shape[2];
    c.losses = golden_read(c.file, "loss", H5T_NATIVE_DOUBLE, shape, &ndim);
    c.norms = golden_read(c.file, "grad_norm", H5T_NATIVE_DOUBLE, shape, &ndim);
    if (json_object_get(c.model, "num_local_experts")) {
        c.aux_losses = golden_read(c.file, "aux_loss", H5T_NATIVE_DOUBLE, shape, &ndim);
        c.drop_rates = golden_read(c.file, "drop_rate", H5T_NATIVE_DOUBLE, shape, &ndim);
    }
    return c;
}

static inline void golden_close(golden_case *c) {
    free(c->tokens);
    free(c->losses);
    free(c->norms);
    free(c->aux_losses);
    free(c->drop_rates);
    json_decref(c->model);
    json_decref(c->optimizer);
    H5Fclose(c->file);
}

static inline keel_model_config golden_model_config(const golden_case *c) {
    const json_t *json = c->model;
    const bool gpt2 = strcmp(json_string_value(json_object_get(json, "architecture")), "gpt2") == 0;
    keel_model_config config = {
        .model_type = gpt2 ? KEEL_MODEL_GPT2 : KEEL_MODEL_LLAMA,
        .vocab_size = (int64_t)golden_number(json, "vocab_size"),
        .seq_length = (int64_t)c->width - 1,
        .hidden_size = (int64_t)golden_number(json, gpt2 ? "n_embd" : "hidden_size"),
        .num_layers = (int64_t)golden_number(json, gpt2 ? "n_layer" : "num_hidden_layers"),
        .num_heads = (int64_t)golden_number(json, gpt2 ? "n_head" : "num_attention_heads"),
        .tie_word_embeddings = gpt2,
        .initializer_range = 0.02,
    };
    if (gpt2) {
        config.max_position_embeddings = (int64_t)golden_number(json, "n_positions");
        config.layer_norm_epsilon = golden_number(json, "layer_norm_epsilon");
    } else {
        config.n_kv_heads = (int64_t)golden_number(json, "num_key_value_heads");
        config.intermediate_size = (int64_t)golden_number(json, "intermediate_size");
        config.rms_norm_eps = golden_number(json, "rms_norm_eps");
        config.theta = golden_number(json, "rope_theta");
    }
    if (c->aux_losses) {
        const json_t *capacity = json_object_get(json, "capacity_factor");
        config.moe = (keel_moe_config){.expert_num = (int64_t)golden_number(json, "num_local_experts"),
                                       .num_experts_chosen = (int64_t)golden_number(json, "num_experts_per_tok"),
                                       .capacity_factor = json_number_value(capacity),
                                       .aux_loss_factor = golden_number(json, "router_aux_loss_coef"),
                                       .z_loss_factor = golden_number(json, "router_z_loss_coef"),
                                       .norm_topk_prob = true,
                                       .use_gmm = true,
                                       .use_fused_ops_permute = true};
    }
    return config;
}

static inline keel_optimizer_config golden_optimizer_config(const golden_case *c) {
    return (keel_optimizer_config){
        .beta1 = golden_number(c->optimizer, "beta1"),
        .beta2 = golden_number(c->optimizer, "beta2"),
        .eps = golden_number(c->optimizer, "eps"),
        .weight_decay = golden_number(c->optimizer, "weight_decay"),
    };
}

static inline bool golden_near(double value, double expected, double tolerance) {
    return fabs(value - expected) <= tolerance * fabs(expected);
}

// The greatest relative L2 distance of a tensor of GROUP from its place in FLAT, as far as this rank holds it; NAME
// [KEEL_SITE_NAME_BYTES]: whose it is.
static inline double golden_distance(const golden_case *c, const char *group, const keel_model *model,
                                     const float *flat, char *name) {
    size_t count;
    const keel_hf_tensor *tensors = keel_model_hf_tensors(model, &count);
    size_t params;
    const keel_param *list = keel_model_params(model, &params);
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", group, tensors[i].name);
        hsize_t shape[4];
        int ndim;
        float *expected = golden_read(c->file, path, H5T_NATIVE_FLOAT, shape, &ndim);
        golden_check((uint32_t)ndim == tensors[i].ndim, path);
        size_t n = 1;
        for (int d = 0; d < ndim; d++) {
            golden_check(shape[d] == tensors[i].shape[d], path);
            n *= (size_t)shape[d];
        }
        float *found = malloc(n * sizeof *found);
        if (!found || !expected) abort();
        memcpy(found, expected, n * sizeof *found);
        param_rows_give(&list[tensors[i].param], flat, found, tensors[i].row, tensors[i].rows);
        double distance = 0, norm = 0;
        for (size_t k = 0; k < n; k++) {
            const double e = (double)expected[k], x = (double)found[k];
            distance += (x - e) * (x - e);
            norm += e * e;
        }
        free(expected);
        free(found);
        const double relative = sqrt(distance / norm);
        if (relative <= worst) continue;
        worst = relative;
        snprintf(name, KEEL_SITE_NAME_BYTES, "%s", tensors[i].name);
        if (isnan(worst)) break;
    }
    return worst;
}

#endif
