// The trainer's mathematics against trajectories computed in float64 by another framework: tests/golden/data.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/golden/golden_case.h"
#include "tests/unit/train_math/watcher.h"
#include "train/model/model_state.h"
#include "train/pretrained.h"

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

// An activation of the first step: what the model keeps of it, and what its tap has seen.
static void assert_activation(const golden_case *golden, const char *name, const rig *r, const char *site,
                              const float *kept) {
    char path[64];
    hsize_t shape[4];
    int ndim;
    snprintf(path, sizeof path, "activation/%s", name);
    float *expected = golden_read(golden->file, path, H5T_NATIVE_FLOAT, shape, &ndim);
    assert_int_equal(ndim, 3);
    const size_t n = (size_t)(shape[0] * shape[1] * shape[2]);
    double distance = 0, norm = 0, max = -INFINITY, min = INFINITY;
    for (size_t k = 0; k < n; k++) {
        const double e = (double)expected[k], x = (double)kept[k];
        distance += (x - e) * (x - e);
        norm += e * e;
        max = fmax(max, e);
        min = fmin(min, e);
    }
    if (!(sqrt(distance) <= 1e-5 * sqrt(norm))) fail_msg("%s: relative distance %.3g", name, sqrt(distance / norm));
    const keel_stats *seen = rig_stats(r, site, KEEL_ACTIVATION);
    assert_non_null(seen);
    assert_int_equal(seen->n, n);
    assert_near(site, seen->sum_sq, norm, 1e-5);
    assert_near(site, seen->max, max, 1e-5);
    assert_near(site, seen->min, min, 1e-5);
    free(expected);
}

static void assert_activations(const golden_case *golden, const rig *r) {
    const keel_model *model = r->model;
    const size_t layers = model->context.layers;
    assert_activation(golden, "embedding", r, "embedding", model->slots[0].layers[0].join1.state.stream);
    for (size_t l = 0; l < layers; l++) {
        char name[32], site[32];
        snprintf(name, sizeof name, "block.%zu", l);
        snprintf(site, sizeof site, "layers.%zu", l);
        const keel_join *after = l + 1 < layers ? &model->slots[0].layers[l + 1].join1 : &model->slots[0].last;
        assert_activation(golden, name, r, site, after->state.stream);
    }
    assert_activation(golden, "final_norm", r, "final_norm", model->slots[0].last.state.normed);
}

// What the forward passes of STEP have told of their experts.
static void assert_routing(const golden_case *golden, size_t step, const keel_moe_config *moe, rig *r) {
    enum { LAYERS = 8 };
    keel_routing_totals totals[LAYERS];
    const size_t layers = r->model->context.layers;
    assert_true(layers <= LAYERS);
    keel_model_take_routing(r->model, totals);
    double aux_loss = 0;
    for (size_t l = 0; l < layers && golden->aux_losses; l++) {
        char site[64];
        snprintf(site, sizeof site, "layers.%zu.mlp.router.drop_rate", l);
        const double expected = golden->drop_rates[step * layers + l];
        assert_int_equal(totals[l].micro_batches, 1);
        assert_near("drop_rate", totals[l].drop_rate, expected, 1e-12);
        assert_near(site, rig_stats(r, site, KEEL_ACTIVATION)->max, expected, 1e-6);
        aux_loss += moe->aux_loss_factor * totals[l].balance + moe->z_loss_factor * totals[l].z;
    }
    if (golden->aux_losses) assert_near("aux_loss", aux_loss, golden->aux_losses[step], 1e-5);
}

static keel_status load_weights(rig *r, const keel_model_config *config, const char *path, size_t *ignored) {
    keel_reshard *reshard = NULL;
    keel_pretrained *weights = NULL;
    keel_status status = keel_reshard_open(
        &(keel_reshard_plan){.config = config, .model = r->model, .optimizer = r->optimizer, .zero = &r->zero},
        &reshard);
    if (!status) status = keel_pretrained_open(path, reshard, &weights, ignored);
    if (!status) status = keel_pretrained_load(weights, reshard);
    keel_pretrained_close(weights);
    keel_reshard_close(reshard);
    return status;
}

static void run_case(const char *name, size_t accumulation, const keel_moe_config *experts) {
    golden_case golden = golden_open(name);
    const size_t steps = golden.steps, sequences = golden.sequences, width = golden.width;
    const size_t micro = sequences / accumulation;
    keel_model_config config = golden_model_config(&golden);
    if (experts) {
        config.moe.use_gmm = experts->use_gmm;
        config.moe.enable_gmm_safe_tokens = experts->enable_gmm_safe_tokens;
        config.moe.use_fused_ops_permute = experts->use_fused_ops_permute;
    }
    const keel_optimizer_config adamw = golden_optimizer_config(&golden);
    rig r;
    char path[512];
    snprintf(path, sizeof path, "%s/%s.safetensors", KEEL_TEST_DATA, name);
    if (rig_open(&config, micro, &adamw, NULL, 0, true, &r) != KEEL_OK) fail_msg("%s", keel_error());
    size_t ignored = 0;
    if (load_weights(&r, &config, path, &ignored) != KEEL_OK) fail_msg("%s", keel_error());
    assert_int_equal(ignored, 0);

    float *grad = calloc(r.numel, sizeof *grad);
    assert_non_null(grad);
    for (size_t step = 0; step < steps; step++) {
        double loss = 0, scale = 1.0 / (double)(sequences * (width - 1));
        memset(grad, 0, r.numel * sizeof *grad);
        keel_step_begin(r.probe, step + 1);
        for (size_t m = 0; m < accumulation; m++) {
            const uint32_t *batch = golden.tokens + (step * sequences + m * micro) * width;
            double sum;
            assert_int_equal(keel_model_forward(r.model, batch, scale, r.grad, &sum), KEEL_OK);
            assert_int_equal(keel_model_backward(r.model, NULL, NULL), KEEL_OK);
            for (size_t i = 0; i < r.numel; i++) grad[i] += r.grad[i];
            loss += sum * scale;
        }
        assert_near("loss", loss, golden.losses[step], 1e-5);
        assert_routing(&golden, step, &config.moe, &r);
        if (step == 0) assert_tensors(&golden, "grad", r.model, grad);
        if (step == 0 && accumulation == 1) assert_activations(&golden, &r);
        double norm;
        assert_int_equal(keel_optimizer_grad_norm(r.optimizer, grad, &norm), KEEL_OK);
        assert_near("grad_norm", norm, golden.norms[step], 1e-5);
        const keel_update update = {
            .lr = golden_number(golden.optimizer, "lr"),
            .clip_factor = keel_clip_factor(norm, golden_number(golden.optimizer, "max_grad_norm")),
            .update = step + 1,
        };
        keel_optimizer_step(r.optimizer, grad, &update);
        keel_step_end(r.probe, &(keel_step){.step = step + 1, .update = step + 1});
    }
    size_t count;
    const keel_optimizer_state *states = keel_optimizer_states(r.optimizer, &count);
    assert_int_equal(count, 2);
    assert_tensors(&golden, "param_after", r.model, keel_model_weights(r.model));
    assert_tensors(&golden, "adam_m_after", r.model, states[0].data);
    assert_tensors(&golden, "adam_v_after", r.model, states[1].data);

    free(grad);
    rig_close(&r);
    golden_close(&golden);
}

static void test_experts(void **state) {
    (void)state;
    static const keel_moe_config ways[] = {
        {.use_gmm = true, .use_fused_ops_permute = true},
        {.use_gmm = true, .enable_gmm_safe_tokens = true},
        {.use_gmm = false, .use_fused_ops_permute = false},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        run_case("mixtral-tiny", 1, &ways[i]);
        run_case("mixtral-capacity", 1, &ways[i]);
    }
}

static void test_gpt2(void **state) {
    (void)state;
    run_case("gpt2-tiny", 1, NULL);
}

static void test_gpt2_accumulated(void **state) {
    (void)state;
    run_case("gpt2-tiny", 2, NULL);
}

static void test_llama(void **state) {
    (void)state;
    run_case("llama-tiny", 1, NULL);
}

static void test_llama_accumulated(void **state) {
    (void)state;
    run_case("llama-tiny", 2, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts),           cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_gpt2_accumulated),  cmocka_unit_test(test_llama),
        cmocka_unit_test(test_llama_accumulated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
