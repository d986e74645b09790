// The model in bfloat16 and float16: what is kept has the format, what is computed is near float32, and each switch
// acts where it says.
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/unit/train_math/watcher.h"
#include "train/model/model_state.h"

enum { BATCH = 3, SEQ = 21, VOCAB = 50, TOKENS = BATCH * (SEQ + 1) };

static const keel_optimizer_config adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
static const double epsilons[] = {[KEEL_BFLOAT16] = 0x1p-7, [KEEL_FLOAT16] = 0x1p-10}; // steps at 1

static keel_model_config small(keel_model_type type) {
    return (keel_model_config){.model_type = (int)type,
                               .vocab_size = VOCAB,
                               .seq_length = SEQ,
                               .hidden_size = 48,
                               .num_layers = 2,
                               .num_heads = 4,
                               .n_kv_heads = type == KEEL_MODEL_LLAMA ? 2 : 4,
                               .intermediate_size = 72,
                               .layer_norm_epsilon = 1e-5,
                               .rms_norm_eps = 1e-6,
                               .theta = 10000,
                               .tie_word_embeddings = type == KEEL_MODEL_GPT2,
                               .initializer_range = 0.1};
}

typedef struct pass {
    rig rig;
    double loss;
} pass;

// One forward and backward pass, watched if ON. SCALE: of the loss.
static void run(const keel_model_config *config, double scale, bool on, pass *p) {
    uint32_t tokens[TOKENS];
    random_tokens(tokens, TOKENS, VOCAB, 3);
    if (rig_open(config, BATCH, &adamw, NULL, 0, on, &p->rig)) fail_msg("%s", keel_error());
    keel_step_begin(p->rig.probe, 1);
    keel_model_take_weights(p->rig.model);
    assert_int_equal(keel_model_forward(p->rig.model, tokens, scale, p->rig.grad, &p->loss), KEEL_OK);
    assert_int_equal(keel_model_backward(p->rig.model, NULL, NULL), KEEL_OK);
    p->loss /= BATCH * SEQ;
}

static double distance(const float *a, const float *b, size_t n) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)b[i], 2);
    }
    return size > 0 ? sqrt(difference / size) : 0;
}

static bool refuses(const keel_stats *stats, keel_precision precision) {
    return (precision == KEEL_BFLOAT16 ? stats->not_bf16 : stats->not_fp16) > 0;
}

static void test_activations_have_the_format(void **state) {
    (void)state;
    for (int type = KEEL_MODEL_GPT2; type <= KEEL_MODEL_LLAMA; type++)
        for (int precision = KEEL_BFLOAT16; precision <= KEEL_FLOAT16; precision++) {
            keel_model_config config = small((keel_model_type)type);
            config.compute_dtype = precision;
            pass p;
            run(&config, 1, true, &p);
            size_t gradients = 0;
            for (uint32_t i = 0; i < keel_probe_site_count(p.rig.probe); i++) {
                const keel_site_info *site = keel_probe_site_info(p.rig.probe, i);
                const keel_stats *stats = keel_frame_stats(p.rig.watcher.frame) + i;
                const bool float32 = strcmp(site->module, "head") == 0 || strcmp(site->name, "final_norm") == 0 ||
                                     strstr(site->name, "max_logit"); // a sum that is not rounded
                if (site->quantity == KEEL_ACTIVATION && refuses(stats, (keel_precision)precision) != float32)
                    fail_msg("%s: %llu of %llu values", site->name, (unsigned long long)stats->not_bf16,
                             (unsigned long long)stats->n);
                // Seen before they are rounded: the sums of products are no values of the format.
                if (site->quantity == KEEL_ACTIVATION_GRAD) gradients += refuses(stats, (keel_precision)precision);
                assert_int_equal(site->dtype, KEEL_F32);
            }
            assert_int_equal(gradients, 2 * 9 + 3);
            rig_close(&p.rig);
        }
}

// A product's output is the exact sum over its rounded inputs, rounded, but where the float32 sum lies on the other
// side of a tie.
static void test_products(void **state) {
    (void)state;
    for (int precision = KEEL_BFLOAT16; precision <= KEEL_FLOAT16; precision++) {
        keel_model_config config = small(KEEL_MODEL_LLAMA);
        config.compute_dtype = precision;
        pass p;
        run(&config, 1, false, &p);
        const keel_layer *layer = &p.rig.model->slots[0].layers[1];
        const size_t in = 48, out = 144, rows = BATCH * SEQ;
        const float *x = layer->join2.state.normed, *y = layer->mlp.state.up;
        const float *w = keel_model_weights(p.rig.model) + rig_param(&p.rig, "layers.1.mlp.gate_up.weight")->offset;
        size_t differ = 0;
        for (size_t r = 0; r < rows; r++)
            for (size_t o = 0; o < out; o++) {
                double sum = 0, sizes = 0;
                for (size_t i = 0; i < in; i++) {
                    const double product =
                        (double)x[r * in + i] * (double)keel_round_one((keel_precision)precision, w[o * in + i]);
                    sum += product;
                    sizes += fabs(product);
                }
                const float expected = keel_round_one((keel_precision)precision, (float)sum), got = y[r * out + o];
                differ += got != expected;
                assert_true(fabs((double)got - (double)expected) <= epsilons[precision] * fabs(sum) + 1e-6 * sizes);
            }
        assert_true(differ < rows * out / 500);
        rig_close(&p.rig);
    }
}

// A rounding is off by half an epsilon of a value at most; those on a way through the model add up like noise.
static void test_near_float32(void **state) {
    (void)state;
    for (int type = KEEL_MODEL_GPT2; type <= KEEL_MODEL_LLAMA; type++) {
        keel_model_config config = small((keel_model_type)type);
        pass full;
        run(&config, 1, false, &full);
        for (int precision = KEEL_BFLOAT16; precision <= KEEL_FLOAT16; precision++) {
            config.compute_dtype = precision;
            pass p;
            run(&config, 1, false, &p);
            const double epsilon = epsilons[precision];
            assert_true(p.loss != full.loss);
            assert_true(fabs(p.loss - full.loss) < epsilon * full.loss);
            size_t count;
            const keel_param *params = keel_model_params(p.rig.model, &count);
            for (size_t i = 0; i < count; i++) {
                const float *got = p.rig.grad + params[i].offset, *expected = full.rig.grad + params[i].offset;
                const double d = distance(got, expected, params[i].numel);
                if (!(d < 4 * epsilon))
                    fail_msg("%s in %s: %g", params[i].name, keel_precision_name((keel_precision)precision), d);
            }
            rig_close(&p.rig);
        }
        rig_close(&full.rig);
    }
}

// Alone, each switch changes the loss or, where it acts backward only, the gradients, and all together as well.
static void test_switches(void **state) {
    (void)state;
    for (int type = KEEL_MODEL_GPT2; type <= KEEL_MODEL_LLAMA; type++)
        for (int precision = KEEL_BFLOAT16; precision <= KEEL_FLOAT16; precision++) {
            keel_model_config plain = small((keel_model_type)type), config, all = plain;
            int *const switches[] = {&config.softmax_compute_dtype,   &config.layernorm_compute_dtype,
                                     &config.loss_compute_dtype,      &config.attention_value_dtype,
                                     &config.embedding_compute_dtype, &config.head_compute_dtype};
            pass full;
            run(&plain, 1, false, &full);
            for (size_t s = 0; s <= sizeof switches / sizeof *switches; s++) {
                config = plain;
                if (s == sizeof switches / sizeof *switches) {
                    config = all;
                    config.compute_dtype = precision;
                } else {
                    *switches[s] = precision;
                    *(int *)((char *)&all + ((char *)switches[s] - (char *)&config)) = precision;
                }
                pass p;
                run(&config, 1, false, &p);
                const double d = distance(p.rig.grad, full.rig.grad, full.rig.numel);
                assert_true(d > 0 && p.loss != full.loss);
                if (!(d < 4 * epsilons[precision])) fail_msg("switch %zu: %g", s, d);
                rig_close(&p.rig);
            }
            rig_close(&full.rig);
        }
}

static void test_weights_are_rounded_once(void **state) {
    (void)state;
    keel_model_config config = small(KEEL_MODEL_LLAMA);
    config.compute_dtype = KEEL_BFLOAT16;
    pass p;
    run(&config, 1, false, &p);
    // A change below the format's steps: the master holds it, the products do not see it.
    const keel_param *up = rig_param(&p.rig, "layers.0.mlp.gate_up.weight");
    float *weights = keel_model_weights(p.rig.model);
    double loss[2];
    uint32_t tokens[TOKENS];
    random_tokens(tokens, TOKENS, VOCAB, 3);
    for (size_t i = 0; i < up->numel; i++) weights[up->offset + i] = 0.5f + 0x1p-12f * (float)(i % 3);
    keel_model_take_weights(p.rig.model);
    assert_int_equal(keel_model_forward(p.rig.model, tokens, 1, NULL, &loss[0]), KEEL_OK);
    for (size_t i = 0; i < up->numel; i++) weights[up->offset + i] = 0.5f;
    assert_int_equal(keel_model_forward(p.rig.model, tokens, 1, NULL, &loss[1]), KEEL_OK);
    assert_true(loss[0] == loss[1]);
    keel_model_take_weights(p.rig.model);
    assert_int_equal(keel_model_forward(p.rig.model, tokens, 1, NULL, &loss[1]), KEEL_OK);
    assert_true(loss[0] == loss[1]);
    for (size_t i = 0; i < up->numel; i++) weights[up->offset + i] = 0.625f;
    keel_model_take_weights(p.rig.model);
    assert_int_equal(keel_model_forward(p.rig.model, tokens, 1, NULL, &loss[1]), KEEL_OK);
    assert_true(loss[0] != loss[1]);
    rig_close(&p.rig);
}

// Gradients that float16 flushes come through under a scale that is a power of two.
static void test_scale_saves_small_gradients(void **state) {
    (void)state;
    keel_model_config config = small(KEEL_MODEL_LLAMA);
    pass full, flushed, scaled;
    const double small_scale = 0x1p-22, scale = 0x1p16;
    run(&config, small_scale, false, &full);
    config.compute_dtype = KEEL_FLOAT16;
    run(&config, small_scale, false, &flushed);
    run(&config, small_scale * scale, false, &scaled);
    const keel_param *qkv = rig_param(&full.rig, "layers.0.attention.qkv.weight");
    float *got = scaled.rig.grad + qkv->offset;
    for (size_t i = 0; i < qkv->numel; i++) got[i] /= (float)scale;
    assert_true(distance(got, full.rig.grad + qkv->offset, qkv->numel) < 4 * epsilons[KEEL_FLOAT16]);
    assert_true(distance(flushed.rig.grad + qkv->offset, full.rig.grad + qkv->offset, qkv->numel) > 0.1);
    rig_close(&full.rig);
    rig_close(&flushed.rig);
    rig_close(&scaled.rig);
}

// Scores beyond 65504 are infinite in float16, and the softmax of infinity is not a number; float32 bears them.
static void test_large_logits(void **state) {
    (void)state;
    keel_model_config config = small(KEEL_MODEL_LLAMA);
    uint32_t tokens[TOKENS];
    random_tokens(tokens, TOKENS, VOCAB, 3);
    for (int precision = KEEL_FLOAT32; precision <= KEEL_FLOAT16; precision++) {
        config.softmax_compute_dtype = precision;
        pass p;
        run(&config, 1, false, &p);
        const keel_param *qkv = rig_param(&p.rig, "layers.1.attention.qkv.weight");
        for (size_t i = 0; i < qkv->numel; i++) keel_model_weights(p.rig.model)[qkv->offset + i] *= 400;
        keel_model_take_weights(p.rig.model);
        assert_int_equal(keel_model_forward(p.rig.model, tokens, 1, NULL, &p.loss), KEEL_OK);
        assert_int_equal(isnan(p.loss), precision == KEEL_FLOAT16);
        rig_close(&p.rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_activations_have_the_format),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_near_float32),
        cmocka_unit_test(test_switches),
        cmocka_unit_test(test_weights_are_rounded_once),
        cmocka_unit_test(test_scale_saves_small_gradients),
        cmocka_unit_test(test_large_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
