// Every place of the model is seen whole, and configured faults strike where they are told to.
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/unit/train_math/small_models.h"
#include "tests/unit/train_math/watcher.h"
#include "train/model/model_state.h"

static const keel_model_config gpt2 = SMALL_GPT2(2);
static const keel_model_config llama = SMALL_LLAMA(2, .n_kv_heads = 2);
static const keel_optimizer_config adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
enum { BATCH = 3 };

// A step of the rig; gives the loss. The optimizer is skipped where the gradient's norm is not finite.
static double step(rig *r, const keel_model_config *config, uint64_t number, bool *armed) {
    uint32_t tokens[BATCH * 64];
    double loss;
    random_tokens(tokens, BATCH * ((size_t)config->seq_length + 1), (uint32_t)config->vocab_size, 5);
    keel_step_begin(r->probe, number);
    bool due = keel_taps_arm(r->taps, number);
    if (armed) *armed = due;
    assert_int_equal(keel_model_forward(r->model, tokens, 0.02, r->grad, &loss), KEEL_OK);
    assert_int_equal(keel_model_backward(r->model, NULL, NULL), KEEL_OK);
    double norm = rig_norm(r);
    if (isfinite(norm))
        keel_optimizer_step(r->optimizer, r->grad, &(keel_update){.lr = 1e-3, .clip_factor = 1, .update = number});
    else
        keel_optimizer_skip(r->optimizer);
    keel_step_end(r->probe, &(keel_step){.step = number});
    return loss;
}

static void check_whole(const keel_model_config *config, size_t sites) {
    rig r;
    size_t activations = 0;
    if (rig_open(config, BATCH, &adamw, NULL, 0, true, &r) != KEEL_OK) fail_msg("%s", keel_error());
    assert_true(isfinite(step(&r, config, 1, NULL)));
    for (uint32_t i = 0; i < keel_probe_site_count(r.probe); i++) {
        const keel_site_info *info = keel_probe_site_info(r.probe, i);
        const keel_stats *seen = keel_frame_stats(r.watcher.frame) + i;
        const bool one = info->numel == 1 || strstr(info->name, "max_logit"); // no module's output
        if (seen->n != info->numel || keel_stats_nonfinite(seen) || (!one && !(seen->max > seen->min)))
            fail_msg("%s %s: saw %llu of %llu, %g to %g", info->name, keel_quantity_name(info->quantity),
                     (unsigned long long)seen->n, (unsigned long long)info->numel, seen->min, seen->max);
        if (one || (info->quantity != KEEL_ACTIVATION && info->quantity != KEEL_ACTIVATION_GRAD)) continue;
        activations++;
        assert_int_equal(info->layout, KEEL_LAYOUT_SAMPLE);
        assert_int_equal(info->phase, info->quantity == KEEL_ACTIVATION ? KEEL_PHASE_FORWARD : KEEL_PHASE_BACKWARD);
    }
    assert_int_equal(activations, 2 * sites);
    // The gradient by the head's output sums to zero in every row; that by the embedding is what reaches the tokens.
    const keel_stats *head = rig_stats(&r, "head", KEEL_ACTIVATION_GRAD);
    assert_true(fabs(head->sum) < 1e-5);
    assert_true(rig_stats(&r, "layers.0.attention.core", KEEL_ACTIVATION)->sum_sq > 0);
    // A block's output and its last branch have the same gradient: both are summands of the stream.
    assert_true(rig_stats(&r, "layers.1", KEEL_ACTIVATION_GRAD)->sum_sq ==
                rig_stats(&r, "layers.1.mlp.down", KEEL_ACTIVATION_GRAD)->sum_sq);
    rig_close(&r);
}

static void test_whole(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        check_whole(&gpt2, 3 + 2 * 9);
        check_whole(&llama, 3 + 2 * 9);
    }
    omp_set_num_threads(omp_get_num_procs());
}

// The greatest |q.k / sqrt(d)| of every layer, by brute force over what each query sees.
static void check_logits(const keel_model_config *config) {
    rig r;
    assert_int_equal(rig_open(config, BATCH, &adamw, NULL, 0, true, &r), KEEL_OK);
    step(&r, config, 1, NULL);
    const keel_context *c = &r.model->context;
    for (size_t l = 0; l < c->layers; l++) {
        const float *qkv = r.model->slots[0].layers[l].attention.state.qkv;
        double greatest = 0;
        for (size_t item = 0; item < c->batch * c->heads; item++)
            for (size_t i = 0; i < c->seq; i++)
                for (size_t j = 0; j <= i; j++) {
                    const size_t head = item % c->heads, row0 = item / c->heads * c->seq;
                    const size_t kv = c->heads + head / (c->heads / c->kv_heads);
                    double dot = 0;
                    for (size_t d = 0; d < c->head_size; d++)
                        dot += (double)qkv[(row0 + i) * c->qkv_size + head * c->head_size + d] *
                               (double)qkv[(row0 + j) * c->qkv_size + kv * c->head_size + d];
                    greatest = fmax(greatest, fabs(dot) / sqrt((double)c->head_size));
                }
        char name[64];
        snprintf(name, sizeof name, "layers.%zu.attention.max_logit", l);
        const keel_stats *seen = rig_stats(&r, name, KEEL_ACTIVATION);
        assert_int_equal(seen->n, c->batch * c->heads);
        if (fabs(seen->max - greatest) > 1e-5 * greatest) fail_msg("%s: %g, expected %g", name, seen->max, greatest);
    }
    rig_close(&r);
}

static void test_logits(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        check_logits(&gpt2);
        check_logits(&llama);
    }
    omp_set_num_threads(omp_get_num_procs());
}

static void test_order(void **state) {
    (void)state;
    rig r;
    assert_int_equal(rig_open(&gpt2, BATCH, &adamw, NULL, 0, true, &r), KEEL_OK);
    const char *const flow[] = {"embedding",
                                "layers.0.norm1",
                                "layers.0.attention.qkv",
                                "layers.0.attention.core",
                                "layers.0.attention.out",
                                "layers.0.norm2",
                                "layers.0.mlp.up",
                                "layers.0.mlp.act",
                                "layers.0.mlp.down",
                                "layers.0",
                                "layers.1.norm1",
                                "final_norm",
                                "head"};
    const keel_site_info *before[2] = {NULL, NULL};
    for (size_t k = 0; k < sizeof flow / sizeof *flow; k++)
        for (uint32_t i = 0; i < keel_probe_site_count(r.probe); i++) {
            const keel_site_info *info = keel_probe_site_info(r.probe, i);
            if (strcmp(info->name, flow[k]) != 0) continue;
            bool backward = info->quantity == KEEL_ACTIVATION_GRAD;
            if (before[backward] && !backward) assert_true(keel_site_compare(before[0], info) < 0);
            if (before[backward] && backward) assert_true(keel_site_compare(before[1], info) > 0);
            before[backward] = info;
        }
    assert_true(keel_site_compare(before[0], before[1]) < 0);
    rig_close(&r);
}

// SITE and QUANTITY: writable copies, as a configuration holds them.
static keel_fault_config nan_fault(char *site, char *quantity, int64_t index) {
    return (keel_fault_config){
        .kind = KEEL_FAULT_NAN, .step = 2, .steps = 1, .rank = 0, .site = site, .quantity = quantity, .index = index};
}

// The struck site holds one NaN in step 2 if nothing upstream of it does, and nothing is left of the fault's arm in
// step 3.
static void check_fault(const keel_model_config *config, const char *site, const char *quantity, int64_t index) {
    rig r;
    bool armed;
    char site_copy[64], quantity_copy[64];
    snprintf(site_copy, sizeof site_copy, "%s", site);
    snprintf(quantity_copy, sizeof quantity_copy, "%s", quantity);
    const keel_fault_config fault = nan_fault(site_copy, quantity_copy, index);
    assert_int_equal(rig_open(config, BATCH, &adamw, &fault, 1, true, &r), KEEL_OK);
    if (keel_taps_check(r.taps) != KEEL_OK) fail_msg("%s", keel_error());
    const keel_quantity q = keel_quantity_find(quantity);
    const keel_stats *seen = rig_stats(&r, site, q);
    assert_true(isfinite(step(&r, config, 1, &armed)));
    assert_false(armed);
    assert_int_equal(seen->nans, 0);
    double loss = step(&r, config, 2, &armed);
    assert_true(armed);
    if (seen->nans != 1) fail_msg("%s %s: %llu NaN", site, quantity, (unsigned long long)seen->nans);
    assert_int_equal(isnan(loss), q == KEEL_ACTIVATION);
    // Nothing before it has any.
    const keel_site_info *struck = NULL;
    for (uint32_t i = 0; i < keel_probe_site_count(r.probe); i++)
        if (keel_frame_stats(r.watcher.frame) + i == seen) struck = keel_probe_site_info(r.probe, i);
    for (uint32_t i = 0; i < keel_probe_site_count(r.probe); i++) {
        const keel_site_info *info = keel_probe_site_info(r.probe, i);
        const keel_stats *other = keel_frame_stats(r.watcher.frame) + i;
        if (keel_site_compare(info, struck) < 0 && keel_stats_nonfinite(other))
            fail_msg("%s %s is not finite before %s", info->name, keel_quantity_name(info->quantity), site);
    }
    step(&r, config, 3, &armed);
    assert_false(armed);
    rig_close(&r);
}

static void test_faults(void **state) {
    (void)state;
    const char *const places[] = {"embedding",
                                  "layers.1.norm1",
                                  "layers.0.attention.qkv",
                                  "layers.1.attention.core",
                                  "layers.0.attention.out",
                                  "layers.0.norm2",
                                  "layers.1.mlp.act",
                                  "layers.0.mlp.down",
                                  "layers.0",
                                  "final_norm",
                                  "head"};
    for (int threads = 1; threads <= 3; threads += 2) {
        omp_set_num_threads(threads);
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            check_fault(&gpt2, places[i], "activation", 3 + 7 * (int64_t)i);
            check_fault(&llama, places[i], "activation", BATCH * 21 * 32 - 1);
            check_fault(&gpt2, places[i], "activation_grad", BATCH * 21 * 32 - 1 - (int64_t)i);
        }
        check_fault(&gpt2, "layers.1.mlp.up", "activation", 100);
        check_fault(&llama, "layers.1.mlp.gate_up", "activation_grad", 100);
        check_fault(&gpt2, "embedding.weight", "grad_reduced", 3000);
        check_fault(&gpt2, "layers.1.mlp.up.weight", "exp_avg", 2000);
        check_fault(&gpt2, "layers.1.mlp.up.weight", "update", 2000);
        check_fault(&gpt2, "layers.0.mlp.up.bias", "weight", 1);
    }
    omp_set_num_threads(omp_get_num_procs());
}

// What the optimizer writes is struck where it is: the weight of a struck update is.
static void test_struck_update(void **state) {
    (void)state;
    rig r;
    const keel_fault_config fault = nan_fault((char[]){"layers.0.mlp.up.bias"}, (char[]){"adam_direction"}, 5);
    assert_int_equal(rig_open(&gpt2, BATCH, &adamw, &fault, 1, true, &r), KEEL_OK);
    step(&r, &gpt2, 2, NULL);
    assert_int_equal(rig_stats(&r, "layers.0.mlp.up.bias", KEEL_ADAM_DIRECTION)->nans, 1);
    assert_int_equal(rig_stats(&r, "layers.0.mlp.up.bias", KEEL_UPDATE)->nans, 1);
    assert_int_equal(rig_stats(&r, "layers.0.mlp.up.bias", KEEL_WEIGHT)->nans, 1);
    assert_int_equal(rig_stats(&r, "layers.0.mlp.up.bias", KEEL_EXP_AVG)->nans, 0);
    assert_true(isnan(keel_model_weights(r.model)[rig_param(&r, "layers.0.mlp.up.bias")->offset + 5]));
    rig_close(&r);
}

// From its step on all of an activation and of its gradient is zero, and so is what the layer's weights get.
static void test_dead_layer(void **state) {
    (void)state;
    const keel_model_config *const configs[] = {&gpt2, &llama};
    const char *const up[] = {"layers.1.mlp.up.weight", "layers.1.mlp.gate_up.weight"};
    for (size_t i = 0; i < 2; i++) {
        rig r;
        const keel_fault_config fault = {
            .kind = KEEL_FAULT_DEAD_LAYER, .step = 2, .steps = 100, .rank = -1, .site = (char[]){"layers.1.mlp.act"}};
        assert_int_equal(rig_open(configs[i], BATCH, &adamw, &fault, 1, true, &r), KEEL_OK);
        assert_int_equal(keel_taps_check(r.taps), KEEL_OK);
        const keel_stats *seen[] = {
            rig_stats(&r, "layers.1.mlp.act", KEEL_ACTIVATION), rig_stats(&r, "layers.1.mlp.act", KEEL_ACTIVATION_GRAD),
            rig_stats(&r, "layers.1.mlp.down.weight", KEEL_GRAD_REDUCED), rig_stats(&r, up[i], KEEL_GRAD_REDUCED)};
        for (uint64_t s = 1; s <= 4; s++) {
            step(&r, configs[i], s, NULL);
            for (size_t k = 0; k < 4; k++)
                if (s == 1 ? seen[k]->zeros > seen[k]->n / 2 : seen[k]->zeros != seen[k]->n)
                    fail_msg("step %d, %zu: %llu zeros of %llu", (int)s, k, (unsigned long long)seen[k]->zeros,
                             (unsigned long long)seen[k]->n);
            assert_true(rig_stats(&r, "layers.0.mlp.act", KEEL_ACTIVATION)->sum_sq > 0);
        }
        rig_close(&r);
    }
}

// The parameter holds bfloat16 values alone, and its updates are multiples of what bfloat16 tells apart there.
static void test_fake_float32(void **state) {
    (void)state;
    rig r;
    const char *const site = "layers.0.mlp.up.weight";
    const keel_fault_config fault = {.kind = KEEL_FAULT_FAKE_FLOAT32,
                                     .step = 2,
                                     .steps = 100,
                                     .rank = -1,
                                     .site = (char[]){"layers.0.mlp.up.weight"}};
    assert_int_equal(rig_open(&gpt2, BATCH, &adamw, &fault, 1, true, &r), KEEL_OK);
    assert_int_equal(keel_taps_check(r.taps), KEEL_OK);
    const keel_stats *weight = rig_stats(&r, site, KEEL_WEIGHT), *update = rig_stats(&r, site, KEEL_UPDATE);
    for (uint64_t s = 1; s <= 4; s++) {
        step(&r, &gpt2, s, NULL);
        assert_int_equal(weight->not_bf16 == 0, s >= 2);
        assert_true(rig_stats(&r, "layers.1.mlp.up.weight", KEEL_WEIGHT)->not_bf16 > 0);
    }
    assert_true(update->zeros > 0 && update->sum_sq > 0);
    const keel_param *param = rig_param(&r, site);
    for (size_t i = 0; i < param->numel; i++) {
        const float w = keel_model_weights(r.model)[param->offset + i];
        assert_true(w == keel_bf16_to_f32(keel_bf16_from_f32(w)));
    }
    rig_close(&r);
}

static void test_when(void **state) {
    (void)state;
    rig r;
    keel_fault_config faults[] = {
        nan_fault((char[]){"head"}, (char[]){"activation"}, 0),
        {.kind = KEEL_FAULT_LEARNING_RATE, .step = 5, .steps = 2, .rank = -1, .factor = 10},
    };
    faults[0].rank = 1; // not this one
    faults[0].steps = 3;
    assert_int_equal(rig_open(&gpt2, BATCH, &adamw, faults, 2, true, &r), KEEL_OK);
    assert_int_equal(keel_taps_check(r.taps), KEEL_OK);
    const bool expected[] = {false, true, true, true, true, true, false};
    for (uint64_t s = 1; s <= 7; s++) {
        bool armed;
        assert_true(isfinite(step(&r, &gpt2, s, &armed)));
        assert_int_equal(armed, expected[s - 1]);
    }
    rig_close(&r);
}

static void expect_refused(keel_fault_config *faults, size_t count, const char *text) {
    rig r;
    assert_int_equal(rig_open(&gpt2, BATCH, &adamw, faults, count, false, &r), KEEL_OK);
    const char *nearest;
    assert_int_equal(keel_taps_nearest(r.taps, faults, &nearest), KEEL_OK);
    assert_int_equal(keel_taps_find(r.taps, faults) ? keel_taps_check(r.taps) : keel_taps_fail_unknown(faults, nearest),
                     KEEL_ERR_CONFIG);
    if (!strstr(keel_error(), text)) fail_msg("%s", keel_error());
    rig_close(&r);
}

static void test_refused(void **state) {
    (void)state;
    keel_fault_config fault = nan_fault((char[]){"layers.1.mlp.upp"}, (char[]){"activation"}, 0);
    expect_refused(&fault, 1, "the nearest is 'layers.1.mlp.up'");
    fault = nan_fault((char[]){"layers.1.mlp.up"}, (char[]){"activations"}, 0);
    expect_refused(&fault, 1, "the nearest is 'activation'");
    fault = nan_fault((char[]){"layers.1.mlp.up"}, (char[]){"collective_in"}, 0);
    expect_refused(&fault, 1, "no site has the quantity collective_in");
    fault = nan_fault((char[]){"layers.0.mlp.up.bias"}, (char[]){"weight"}, 64);
    expect_refused(&fault, 1, "has 64 elements");
    fault = (keel_fault_config){.kind = KEEL_FAULT_DEAD_LAYER, .step = 1, .steps = 1, .rank = -1};
    fault.site = (char[]){"layers.1.mlp.acts"};
    expect_refused(&fault, 1,
                   "no site 'layers.1.mlp.acts' with the quantity activation; the nearest is 'layers.1.mlp.act'");
    fault.kind = KEEL_FAULT_FAKE_FLOAT32;
    fault.site = (char[]){"layers.1.mlp.up.weights"};
    expect_refused(&fault, 1, "with the quantity weight; the nearest is 'layers.1.mlp.up.weight'");
    keel_fault_config two[] = {nan_fault((char[]){"head"}, (char[]){"activation"}, 0),
                               nan_fault((char[]){"head"}, (char[]){"activation"}, 1)};
    two[1].step = 1;
    two[1].steps = 5;
    expect_refused(two, 2, "another fault hits head");
}

// Gradients of a loss times 2^10 are seen as those of the loss itself, but for what float16 would make of them. (Not
// the checksum, which is of the order of the bits alone: it is the same as well.)
static void test_loss_scale(void **state) {
    (void)state;
    rig plain, scaled;
    uint32_t tokens[BATCH * 64];
    double loss;
    random_tokens(tokens, BATCH * ((size_t)llama.seq_length + 1), (uint32_t)llama.vocab_size, 5);
    assert_int_equal(rig_open(&llama, BATCH, &adamw, NULL, 0, true, &plain), KEEL_OK);
    assert_int_equal(rig_open(&llama, BATCH, &adamw, NULL, 0, true, &scaled), KEEL_OK);
    rig *const rigs[] = {&plain, &scaled};
    for (size_t k = 0; k < 2; k++) {
        const double scale = k ? 1024 : 1;
        keel_taps_set_loss_scale(rigs[k]->taps, scale);
        keel_step_begin(rigs[k]->probe, 1);
        assert_int_equal(keel_model_forward(rigs[k]->model, tokens, 1e-7 * scale, rigs[k]->grad, &loss), KEEL_OK);
        assert_int_equal(keel_model_backward(rigs[k]->model, NULL, NULL), KEEL_OK);
    }
    for (uint32_t i = 0; i < keel_probe_site_count(plain.probe); i++) {
        const keel_stats *a = keel_frame_stats(plain.watcher.frame) + i,
                         *b = keel_frame_stats(scaled.watcher.frame) + i;
        const bool gradient = keel_probe_site_info(plain.probe, i)->quantity == KEEL_ACTIVATION_GRAD;
        assert_int_equal(a->n, b->n);
        assert_int_equal(a->checksum, b->checksum);
        assert_int_equal(a->not_bf16, b->not_bf16);
        assert_true(a->min == b->min && a->max == b->max && a->abs_min == b->abs_min);
        assert_true(gradient ? a->fp16_flush > b->fp16_flush : a->fp16_flush == b->fp16_flush);
    }
    for (size_t i = 0; i < plain.numel; i++) assert_true(scaled.grad[i] == 1024 * plain.grad[i]);
    rig_close(&plain);
    rig_close(&scaled);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_whole),         cmocka_unit_test(test_logits),
                                       cmocka_unit_test(test_order),         cmocka_unit_test(test_faults),
                                       cmocka_unit_test(test_struck_update), cmocka_unit_test(test_dead_layer),
                                       cmocka_unit_test(test_fake_float32),  cmocka_unit_test(test_when),
                                       cmocka_unit_test(test_refused),       cmocka_unit_test(test_loss_scale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
