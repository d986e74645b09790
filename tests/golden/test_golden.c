// The trainer's mathematics against trajectories computed in float64 by another framework: tests/golden/data.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/golden/golden_case.h"
#include "train/optim/optimizer.h"

// ---- reading ----

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
    if (!golden_near(value, expected, tolerance))
        fail_msg("%s: %.9g, expected %.9g (relative error %.2g)", what, value, expected,
                 fabs(value - expected) / fabs(expected));
}

static void assert_tensors(const golden_case *golden, const char *group, const keel_model *model, const float *flat) {
    char name[KEEL_SITE_NAME_BYTES] = "";
    const double distance = golden_distance(golden, group, model, flat, name);
    if (!(distance <= 1e-4)) fail_msg("%s/%s: relative distance %.3g", group, name, distance);
}

static void run_case(const char *name, size_t accumulation) {
    golden_case golden = golden_open(name);
    const size_t steps = golden.steps, sequences = golden.sequences, width = golden.width;

    keel_probe *probe;
    keel_taps *taps;
    keel_model *model;
    keel_optimizer *optimizer;
    const keel_model_config config = golden_model_config(&golden);
    const keel_optimizer_config adamw = golden_optimizer_config(&golden);
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
            const uint32_t *batch = golden.tokens + (step * sequences + m * micro) * width;
            double sum;
            assert_int_equal(keel_model_forward(model, batch, scale, part, &sum), KEEL_OK);
            assert_int_equal(keel_model_backward(model, NULL, NULL), KEEL_OK);
            for (size_t i = 0; i < n; i++) grad[i] += part[i];
            loss += sum * scale;
        }
        assert_near("loss", loss, golden.losses[step], 1e-5);
        if (step == 0) assert_tensors(&golden, "grad", model, grad);
        double norm = keel_optimizer_grad_norm(optimizer, grad);
        assert_near("grad_norm", norm, golden.norms[step], 1e-5);
        const keel_update update = {
            .lr = golden_number(golden.optimizer, "lr"),
            .clip_factor = keel_clip_factor(norm, golden_number(golden.optimizer, "max_grad_norm")),
            .update = step + 1,
        };
        keel_optimizer_step(optimizer, grad, &update);
    }
    size_t count;
    const keel_optimizer_state *states = keel_optimizer_states(optimizer, &count);
    assert_int_equal(count, 2);
    assert_tensors(&golden, "param_after", model, keel_model_weights(model));
    assert_tensors(&golden, "adam_m_after", model, states[0].data);
    assert_tensors(&golden, "adam_v_after", model, states[1].data);

    free(grad);
    free(part);
    keel_optimizer_close(optimizer);
    keel_model_close(model);
    keel_taps_close(taps);
    keel_probe_close(probe);
    golden_close(&golden);
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
