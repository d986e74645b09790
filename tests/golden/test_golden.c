// The trainer's mathematics against trajectories computed in float64 by another framework: tests/golden/data.
#include <hdf5.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/model/model.h"
#include "train/optim/optimizer.h"

// ---- reading ----

static hid_t open_h5(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.h5", KEEL_TEST_DATA, name);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    assert_true(file >= 0);
    return file;
}

// Dataset GROUP/NAME as TYPE, malloc'ed; SHAPE gets its dimensions, *NDIM their number.
static void *read_dataset(hid_t file, const char *group, const char *name, hid_t type, hsize_t *shape, int *ndim) {
    char path[512];
    snprintf(path, sizeof path, "%s%s%s", group, *group ? "/" : "", name);
    hid_t set = H5Dopen2(file, path, H5P_DEFAULT);
    if (set < 0) fail_msg("no dataset %s", path);
    hid_t space = H5Dget_space(set);
    *ndim = H5Sget_simple_extent_dims(space, shape, NULL);
    hssize_t n = H5Sget_simple_extent_npoints(space);
    void *data = malloc((size_t)n * H5Tget_size(type) + 1);
    assert_non_null(data);
    assert_true(H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    H5Sclose(space);
    H5Dclose(set);
    return data;
}

static json_t *read_json(hid_t file, const char *name) {
    hid_t attribute = H5Aopen(file, name, H5P_DEFAULT);
    hid_t type = H5Aget_type(attribute);
    char *text = NULL;
    assert_true(H5Aread(attribute, type, &text) >= 0);
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    H5free_memory(text);
    H5Tclose(type);
    H5Aclose(attribute);
    return json;
}

static double number(const json_t *json, const char *key) {
    const json_t *value = json_object_get(json, key);
    if (!value) fail_msg("no %s", key);
    return json_number_value(value);
}

// The file's float32 tensors into the model's weights, by their Hugging Face names.
static void load_weights(const char *name, keel_model *model) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.safetensors", KEEL_TEST_DATA, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    uint64_t length;
    assert_int_equal(fread(&length, sizeof length, 1, file), 1);
    char *text = malloc(length);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, length, file), length);
    json_t *header = json_loadb(text, length, 0, NULL);
    free(text);
    assert_non_null(header);
    size_t count;
    const keel_hf_tensor *tensors = keel_model_hf_tensors(model, &count);
    assert_int_equal(count, json_object_size(header) - (json_object_get(header, "__metadata__") ? 1 : 0));
    for (size_t i = 0; i < count; i++) {
        const json_t *entry = json_object_get(header, tensors[i].name);
        if (!entry) fail_msg("no tensor %s", tensors[i].name);
        const json_t *shape = json_object_get(entry, "shape"), *place = json_object_get(entry, "data_offsets");
        assert_int_equal(json_array_size(shape), tensors[i].ndim);
        size_t n = 1;
        for (size_t d = 0; d < tensors[i].ndim; d++) {
            assert_int_equal(json_integer_value(json_array_get(shape, d)), tensors[i].shape[d]);
            n *= tensors[i].shape[d];
        }
        long begin = (long)json_integer_value(json_array_get(place, 0));
        assert_int_equal(fseek(file, 8 + (long)length + begin, SEEK_SET), 0);
        assert_int_equal(fread(keel_model_weights(model) + tensors[i].offset, sizeof(float), n, file), n);
    }
    json_decref(header);
    fclose(file);
}

// ---- comparing ----

static void assert_near(const char *what, double value, double expected, double tolerance) {
    if (!(fabs(value - expected) <= tolerance * fabs(expected)))
        fail_msg("%s: %.9g, expected %.9g (relative error %.2g)", what, value, expected,
                 fabs(value - expected) / fabs(expected));
}

// Relative L2 distance of every tensor of GROUP in the file from its place in FLAT.
static void assert_tensors(hid_t file, const char *group, const keel_model *model, const float *flat) {
    size_t count;
    const keel_hf_tensor *tensors = keel_model_hf_tensors(model, &count);
    for (size_t i = 0; i < count; i++) {
        hsize_t shape[4];
        int ndim;
        float *expected = read_dataset(file, group, tensors[i].name, H5T_NATIVE_FLOAT, shape, &ndim);
        assert_int_equal(ndim, tensors[i].ndim);
        size_t n = 1;
        for (int d = 0; d < ndim; d++) {
            assert_int_equal(shape[d], tensors[i].shape[d]);
            n *= (size_t)shape[d];
        }
        double distance = 0, norm = 0;
        for (size_t k = 0; k < n; k++) {
            double e = (double)expected[k], x = (double)flat[tensors[i].offset + k];
            distance += (x - e) * (x - e);
            norm += e * e;
        }
        if (!(sqrt(distance) <= 1e-4 * sqrt(norm)))
            fail_msg("%s/%s: relative distance %.3g", group, tensors[i].name, sqrt(distance / norm));
        free(expected);
    }
}

// ---- what the taps see: activations of the first step ----

typedef struct capture {
    hid_t file;
    keel_probe *probe;
    size_t compared;
} capture;

static keel_model_config model_config(const json_t *json, size_t seq) {
    const char *architecture = json_string_value(json_object_get(json, "architecture"));
    bool gpt2 = !strcmp(architecture, "gpt2");
    keel_model_config config = {
        .model_type = gpt2 ? KEEL_MODEL_GPT2 : KEEL_MODEL_LLAMA,
        .vocab_size = (int64_t)number(json, "vocab_size"),
        .seq_length = (int64_t)seq,
        .hidden_size = (int64_t)number(json, gpt2 ? "n_embd" : "hidden_size"),
        .num_layers = (int64_t)number(json, gpt2 ? "n_layer" : "num_hidden_layers"),
        .num_heads = (int64_t)number(json, gpt2 ? "n_head" : "num_attention_heads"),
        .tie_word_embeddings = gpt2,
        .initializer_range = 0.02,
    };
    if (gpt2) {
        config.max_position_embeddings = (int64_t)number(json, "n_positions");
        config.layer_norm_epsilon = number(json, "layer_norm_epsilon");
    } else {
        config.n_kv_heads = (int64_t)number(json, "num_key_value_heads");
        config.intermediate_size = (int64_t)number(json, "intermediate_size");
        config.rms_norm_eps = number(json, "rms_norm_eps");
        config.theta = number(json, "rope_theta");
    }
    return config;
}

static void run_case(const char *name, size_t accumulation) {
    hid_t file = open_h5(name);
    json_t *model_json = read_json(file, "config_json"), *optimizer_json = read_json(file, "optimizer_json");
    hsize_t shape[4];
    int ndim;
    uint32_t *tokens = read_dataset(file, "", "tokens", H5T_NATIVE_UINT32, shape, &ndim);
    assert_int_equal(ndim, 3);
    size_t steps = (size_t)shape[0], sequences = (size_t)shape[1], width = (size_t)shape[2];
    double *losses = read_dataset(file, "", "loss", H5T_NATIVE_DOUBLE, shape, &ndim);
    double *norms = read_dataset(file, "", "grad_norm", H5T_NATIVE_DOUBLE, shape, &ndim);

    keel_probe *probe;
    keel_taps *taps;
    keel_model *model;
    keel_optimizer *optimizer;
    const keel_model_config config = model_config(model_json, width - 1);
    const keel_optimizer_config adamw = {
        .beta1 = number(optimizer_json, "beta1"),
        .beta2 = number(optimizer_json, "beta2"),
        .eps = number(optimizer_json, "eps"),
        .weight_decay = number(optimizer_json, "weight_decay"),
    };
    size_t micro = sequences / accumulation;
    assert_int_equal(keel_probe_open(0, &probe), KEEL_OK);
    assert_int_equal(keel_taps_open(probe, 0, NULL, 0, &taps), KEEL_OK);
    if (keel_model_open(&config, micro, taps, &model) != KEEL_OK) fail_msg("%s", keel_error());
    if (keel_optimizer_open(&adamw, model, taps, 0, 1, &optimizer) != KEEL_OK) fail_msg("%s", keel_error());
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    load_weights(name, model);

    size_t n = keel_model_numel(model);
    float *grad = calloc(n, sizeof *grad), *part = calloc(n, sizeof *part);
    assert_true(grad && part);
    for (size_t step = 0; step < steps; step++) {
        double loss = 0, scale = 1.0 / (double)(sequences * (width - 1));
        memset(grad, 0, n * sizeof *grad);
        for (size_t m = 0; m < accumulation; m++) {
            const uint32_t *batch = tokens + (step * sequences + m * micro) * width;
            double sum;
            assert_int_equal(keel_model_forward(model, batch, scale, part, &sum), KEEL_OK);
            assert_int_equal(keel_model_backward(model, NULL, NULL), KEEL_OK);
            for (size_t i = 0; i < n; i++) grad[i] += part[i];
            loss += sum * scale;
        }
        assert_near("loss", loss, losses[step], 1e-5);
        if (step == 0) assert_tensors(file, "grad", model, grad);
        double norm = keel_optimizer_grad_norm(optimizer, grad);
        assert_near("grad_norm", norm, norms[step], 1e-5);
        const keel_update update = {
            .lr = number(optimizer_json, "lr"),
            .clip_factor = keel_clip_factor(norm, number(optimizer_json, "max_grad_norm")),
            .update = step + 1,
        };
        keel_optimizer_step(optimizer, grad, &update);
    }
    size_t count;
    const keel_optimizer_state *states = keel_optimizer_states(optimizer, &count);
    assert_int_equal(count, 2);
    assert_tensors(file, "param_after", model, keel_model_weights(model));
    assert_tensors(file, "adam_m_after", model, states[0].data);
    assert_tensors(file, "adam_v_after", model, states[1].data);

    free(grad);
    free(part);
    free(tokens);
    free(losses);
    free(norms);
    keel_optimizer_close(optimizer);
    keel_model_close(model);
    keel_taps_close(taps);
    keel_probe_close(probe);
    json_decref(model_json);
    json_decref(optimizer_json);
    H5Fclose(file);
}

static void test_gpt2(void **state) {
    (void)state;
    run_case("gpt2-tiny", 1);
}

static void test_gpt2_accumulated(void **state) {
    (void)state;
    run_case("gpt2-tiny", 2);
}

static void test_llama(void **state) {
    (void)state;
    run_case("llama-tiny", 1);
}

static void test_llama_accumulated(void **state) {
    (void)state;
    run_case("llama-tiny", 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_gpt2_accumulated),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_llama_accumulated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
