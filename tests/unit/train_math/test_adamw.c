// AdamW against a plain float64 one: groups, clipping, norms, skipped steps, and what is seen of it all.
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/unit/train_math/watcher.h"

// Parameters of less than a block of the optimizer, of several, and of no multiple of anything.
static const keel_model_config model = {
    .model_type = KEEL_MODEL_GPT2,
    .vocab_size = 211,
    .seq_length = 3,
    .hidden_size = 50,
    .num_layers = 2,
    .num_heads = 2,
    .intermediate_size = 133,
    .layer_norm_epsilon = 1e-5,
    .tie_word_embeddings = true,
    .initializer_range = 0.1,
};

static keel_param_group_config groups[] = {
    {.params = "norm", .lr_scale = 0.5, .weight_decay = 0.2, .max_grad_norm = NAN},
    {.params = "^layers\\.1\\..*weight$", .lr_scale = 2, .weight_decay = NAN, .max_grad_norm = 0.75},
};
static const keel_optimizer_config grouped = {
    .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .groups = groups, .group_count = 2};
static const keel_optimizer_config simple = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

static void random_gradient(rig *r, uint32_t seed) {
    for (size_t i = 0; i < r->numel; i++) r->grad[i] = 0.1f * random_float(&seed);
}

static int group_of(const keel_param *p) {
    if (strstr(p->name, "norm")) return 0;
    return p->layer == 1 && strstr(p->name, "weight") ? 1 : 2;
}

static void test_groups_against_plain(void **state) {
    (void)state;
    enum { STEPS = 4 };
    rig r;
    size_t count;
    if (rig_open(&model, 1, &grouped, NULL, 0, false, &r) != KEEL_OK) fail_msg("%s", keel_error());
    const keel_param *params = keel_model_params(r.model, &count);
    double *w = calloc(r.numel, sizeof *w), *m = calloc(r.numel, sizeof *m), *v = calloc(r.numel, sizeof *v);
    assert_true(w && m && v);
    for (size_t i = 0; i < r.numel; i++) w[i] = (double)keel_model_weights(r.model)[i];
    for (int t = 1; t <= STEPS; t++) {
        double square[3] = {0}, lr = 1e-2 / t;
        random_gradient(&r, (uint32_t)t);
        for (size_t p = 0; p < count; p++)
            for (size_t i = 0; i < params[p].numel; i++)
                square[group_of(&params[p])] += pow((double)r.grad[params[p].offset + i], 2);
        double norm = rig_norm(&r);
        assert_true(fabs(norm - sqrt(square[0] + square[1] + square[2])) < 1e-12 * norm);
        double clip = keel_clip_factor(norm, 2);
        assert_true(clip < 1);
        double own = fmin(1, 0.75 / (clip * sqrt(square[1]) + 1e-6));
        assert_true(own < 1);
        keel_optimizer_step(r.optimizer, r.grad, &(keel_update){.lr = lr, .clip_factor = clip, .update = (uint64_t)t});
        for (size_t p = 0; p < count; p++) {
            int group = group_of(&params[p]);
            double rate = lr * (group == 0 ? 0.5 : group == 1 ? 2 : 1);
            double decay = group == 0 ? 0.2 : params[p].ndim > 1 ? 0.1 : 0;
            for (size_t i = params[p].offset; i < params[p].offset + params[p].numel; i++) {
                double g = (double)r.grad[i] * clip * (group == 1 ? own : 1);
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.95 * v[i] + 0.05 * g * g;
                w[i] -= rate * decay * w[i];
                w[i] -= rate * (m[i] / (1 - pow(0.9, t))) / (sqrt(v[i] / (1 - pow(0.95, t))) + 1e-8);
            }
        }
    }
    size_t states_count;
    const keel_optimizer_state *states = keel_optimizer_states(r.optimizer, &states_count);
    assert_int_equal(states_count, 2);
    assert_string_equal(states[0].name, "exp_avg");
    assert_string_equal(states[1].name, "exp_avg_sq");
    for (size_t i = 0; i < r.numel; i++) {
        assert_true(fabs((double)keel_model_weights(r.model)[i] - w[i]) < 2e-6);
        assert_true(fabs((double)states[0].data[i] - m[i]) < 1e-7);
        assert_true(fabs((double)states[1].data[i] - v[i]) < 1e-8);
    }
    assert_true(keel_optimizer_bytes(r.optimizer) >= 2 * r.numel * sizeof(float));
    free(w);
    free(m);
    free(v);
    rig_close(&r);
}

static void expect_bad_group(const char *pattern, const char *text) {
    rig r;
    char mlp[] = "mlp", copy[64];
    snprintf(copy, sizeof copy, "%s", pattern);
    keel_param_group_config list[] = {
        {.params = mlp, .lr_scale = 1, .weight_decay = 0, .max_grad_norm = NAN},
        {.params = copy, .lr_scale = 1, .weight_decay = NAN, .max_grad_norm = NAN},
    };
    keel_optimizer_config config = simple;
    config.groups = list;
    config.group_count = 2;
    assert_int_equal(rig_open(&model, 1, &config, NULL, 0, false, &r), KEEL_ERR_CONFIG);
    if (!strstr(keel_error(), text)) fail_msg("%s", keel_error());
    rig_close(&r);
}

static void test_bad_groups(void **state) {
    (void)state;
    expect_bad_group("layers.(0", "missing closing parenthesis");
    expect_bad_group("nothing_like_it", "'nothing_like_it' matches no parameter");
    expect_bad_group("mlp.up", "no parameter that is in no earlier group");
}

static void test_norm_is_the_same_for_any_threads(void **state) {
    (void)state;
    double first = 0;
    for (int threads = 1; threads <= 5; threads++) {
        rig r;
        omp_set_num_threads(threads);
        assert_int_equal(rig_open(&model, 1, &simple, NULL, 0, false, &r), KEEL_OK);
        random_gradient(&r, 9);
        double norm = rig_norm(&r);
        if (threads == 1) first = norm;
        assert_memory_equal(&norm, &first, sizeof norm);
        r.grad[r.numel / 2] = NAN;
        assert_true(isnan(rig_norm(&r)));
        r.grad[r.numel / 2] = -INFINITY;
        assert_true(isinf(rig_norm(&r)));
        // Beyond what float32 can square.
        for (size_t i = 0; i < r.numel; i++) r.grad[i] = 1e30f;
        assert_true(fabs(rig_norm(&r) / (1e30 * sqrt((double)r.numel)) - 1) < 1e-6);
        rig_close(&r);
    }
    omp_set_num_threads(omp_get_num_procs());
}

// ---- what is seen ----

// Counts exactly, sums to float64: the blocks are those of the threads.
static void assert_record(const rig *r, const char *name, keel_quantity quantity, const float *data, size_t n) {
    const keel_stats *seen = rig_stats(r, name, quantity);
    assert_non_null(seen);
    keel_stats all;
    const keel_stats_params params = {.fields = KEEL_FIELDS_ALL, .eps = 1e-8, .scale = 1};
    keel_stats_clear(&all);
    keel_stats_observe(&all, &params, KEEL_F32, data, n);
    assert_int_equal(seen->n, n);
    assert_int_equal(seen->zeros, all.zeros);
    assert_int_equal(seen->nans, all.nans);
    assert_int_equal(seen->checksum, all.checksum);
    assert_true(seen->min == all.min && seen->max == all.max);
    assert_true(fabs(seen->sum_sq - all.sum_sq) <= 1e-12 * all.sum_sq);
}

static void check_observed(int threads) {
    rig r;
    size_t count, n;
    omp_set_num_threads(threads);
    assert_int_equal(rig_open(&model, 1, &grouped, NULL, 0, true, &r), KEEL_OK);
    const keel_param *params = keel_model_params(r.model, &count);
    float *weights = keel_model_weights(r.model);
    const keel_optimizer_state *states = keel_optimizer_states(r.optimizer, &n);
    float *change = calloc(r.numel, sizeof *change);
    assert_non_null(change);
    random_gradient(&r, 4);
    memcpy(change, weights, r.numel * sizeof *change);
    keel_step_begin(r.probe, 1);
    rig_norm(&r);
    keel_optimizer_step(r.optimizer, r.grad, &(keel_update){.lr = 0.01, .clip_factor = 0.5, .update = 1});
    keel_step_end(r.probe, &(keel_step){.step = 1});
    for (size_t i = 0; i < r.numel; i++) change[i] = weights[i] - change[i];
    for (size_t p = 0; p < count; p++) {
        size_t at = params[p].offset;
        assert_record(&r, params[p].name, KEEL_GRAD_REDUCED, r.grad + at, params[p].numel);
        assert_record(&r, params[p].name, KEEL_WEIGHT, weights + at, params[p].numel);
        assert_record(&r, params[p].name, KEEL_EXP_AVG, states[0].data + at, params[p].numel);
        assert_record(&r, params[p].name, KEEL_EXP_AVG_SQ, states[1].data + at, params[p].numel);
        assert_record(&r, params[p].name, KEEL_UPDATE, change + at, params[p].numel);
        // The first second moment is the gradient's square, so that all elements but those below eps count as 1.
        const keel_stats *rms = rig_stats(&r, params[p].name, KEEL_ADAM_RMS);
        assert_int_equal(rms->n, 1);
        assert_true(fabs(rms->max - 1) < 1e-3);
        // The first direction is the gradient's sign, but for eps.
        const keel_stats *direction = rig_stats(&r, params[p].name, KEEL_ADAM_DIRECTION);
        assert_int_equal(direction->n, params[p].numel);
        assert_true(direction->max <= 1.000001 && direction->sum_sq > 0.99 * (double)params[p].numel);
    }
    free(change);
    rig_close(&r);
}

static void test_observed(void **state) {
    (void)state;
    for (int threads = 1; threads <= 4; threads++) check_observed(threads);
    omp_set_num_threads(omp_get_num_procs());
}

static void assert_flags(const rig *r, const keel_param *p, keel_quantity quantity, const float *flat) {
    const keel_stats *seen = rig_stats(r, p->name, quantity);
    keel_stats all;
    const keel_stats_params params = {.fields = KEEL_FIELDS_FLAGS};
    keel_stats_clear(&all);
    keel_stats_observe(&all, &params, KEEL_F32, flat + p->offset, p->numel);
    assert_int_equal(seen->fields, KEEL_FIELDS_FLAGS);
    assert_int_equal(seen->n, p->numel);
    assert_int_equal(seen->nans, all.nans);
    assert_int_equal(seen->pos_infs, all.pos_infs);
    assert_int_equal(seen->neg_infs, all.neg_infs);
}

// What is not finite shows in each tensor that has it, and in no other, though most blocks are known to be finite.
static void test_flags(void **state) {
    (void)state;
    static const float bad[] = {0, NAN, INFINITY, -INFINITY};
    for (size_t k = 0; k < 4 * sizeof bad / sizeof *bad; k++) {
        rig r;
        size_t count, n;
        assert_int_equal(rig_open(&model, 1, &simple, NULL, 0, true, &r), KEEL_OK);
        const keel_param *params = keel_model_params(r.model, &count);
        float *weights = keel_model_weights(r.model), *change = malloc(r.numel * sizeof *change);
        const keel_optimizer_state *states = keel_optimizer_states(r.optimizer, &n);
        float *const at[] = {r.grad, weights, states[0].data, states[1].data};
        assert_non_null(change);
        random_gradient(&r, 4);
        at[k % 4][params[0].offset + params[0].numel - 3] = bad[k / 4];
        at[k % 4][params[1].offset + 5] = bad[k / 4];
        memcpy(change, weights, r.numel * sizeof *change);
        keel_step_begin(r.probe, 0); // the schedule begins with step 1: flags alone
        rig_norm(&r);
        keel_optimizer_step(r.optimizer, r.grad, &(keel_update){.lr = 0.01, .clip_factor = 0.5, .update = 1});
        keel_step_end(r.probe, &(keel_step){.step = 0});
        for (size_t i = 0; i < r.numel; i++) change[i] = weights[i] - change[i];
        for (size_t p = 0; p < count; p++) {
            assert_flags(&r, &params[p], KEEL_GRAD_REDUCED, r.grad);
            assert_flags(&r, &params[p], KEEL_WEIGHT, weights);
            assert_flags(&r, &params[p], KEEL_EXP_AVG, states[0].data);
            assert_flags(&r, &params[p], KEEL_EXP_AVG_SQ, states[1].data);
            assert_flags(&r, &params[p], KEEL_UPDATE, change);
        }
        // The direction is finite whatever the weight, and 0 of an infinite exp_avg_sq.
        const bool direction =
            isfinite(bad[k / 4]) || k % 4 == 1 || (k % 4 == 3 && isinf(bad[k / 4]) && bad[k / 4] > 0);
        assert_int_equal(keel_stats_nonfinite(rig_stats(&r, params[0].name, KEEL_ADAM_DIRECTION)), !direction);
        free(change);
        rig_close(&r);
    }
}

// After many steps with a gradient of size 1, one of size 5: RMS_t = 5 / sqrt(v_hat), the same for any threads.
static void test_rms(void **state) {
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        rig r;
        omp_set_num_threads(threads);
        assert_int_equal(rig_open(&model, 1, &simple, NULL, 0, true, &r), KEEL_OK);
        double v = 0;
        for (uint64_t t = 1; t <= 21; t++) {
            const float g = t < 21 ? 1 : 5;
            for (size_t i = 0; i < r.numel; i++) r.grad[i] = i % 2 ? g : -g;
            v = simple.beta2 * v + (1 - simple.beta2) * 0.25 * (double)g * (double)g;
            keel_step_begin(r.probe, t);
            rig_norm(&r);
            keel_optimizer_step(r.optimizer, r.grad, &(keel_update){.lr = 1e-3, .clip_factor = 0.5, .update = t});
            keel_step_end(r.probe, &(keel_step){.step = t});
            const double expected = 0.5 * (double)g / sqrt(v / (1 - pow(simple.beta2, (double)t)));
            const keel_stats *rms = rig_stats(&r, "embedding.weight", KEEL_ADAM_RMS);
            if (fabs(rms->max - expected) > 1e-5 * expected)
                fail_msg("step %d: %g, not %g", (int)t, rms->max, expected);
        }
        rig_close(&r);
    }
    omp_set_num_threads(omp_get_num_procs());
}

static void test_skip(void **state) {
    (void)state;
    rig r;
    size_t count, n;
    assert_int_equal(rig_open(&model, 1, &simple, NULL, 0, true, &r), KEEL_OK);
    const keel_param *params = keel_model_params(r.model, &count);
    const keel_optimizer_state *states = keel_optimizer_states(r.optimizer, &n);
    float *before = malloc(3 * r.numel * sizeof *before);
    assert_non_null(before);
    random_gradient(&r, 4);
    keel_step_begin(r.probe, 1);
    rig_norm(&r);
    keel_optimizer_step(r.optimizer, r.grad, &(keel_update){.lr = 0.01, .clip_factor = 1, .update = 1});
    keel_step_end(r.probe, &(keel_step){.step = 1});
    memcpy(before, keel_model_weights(r.model), r.numel * sizeof *before);
    memcpy(before + r.numel, states[0].data, r.numel * sizeof *before);
    memcpy(before + 2 * r.numel, states[1].data, r.numel * sizeof *before);
    r.grad[17] = NAN;
    keel_step_begin(r.probe, 2);
    assert_true(isnan(rig_norm(&r)));
    keel_optimizer_skip(r.optimizer);
    keel_step_end(r.probe, &(keel_step){.step = 2, .flags = KEEL_STEP_SKIPPED});
    assert_memory_equal(before, keel_model_weights(r.model), r.numel * sizeof *before);
    assert_memory_equal(before + r.numel, states[0].data, r.numel * sizeof *before);
    assert_memory_equal(before + 2 * r.numel, states[1].data, r.numel * sizeof *before);
    assert_int_equal(rig_stats(&r, "embedding.weight", KEEL_GRAD_REDUCED)->nans, 1);
    for (size_t p = 0; p < count; p++) {
        assert_record(&r, params[p].name, KEEL_WEIGHT, before + params[p].offset, params[p].numel);
        assert_record(&r, params[p].name, KEEL_EXP_AVG, before + r.numel + params[p].offset, params[p].numel);
        assert_record(&r, params[p].name, KEEL_EXP_AVG_SQ, before + 2 * r.numel + params[p].offset, params[p].numel);
        const keel_stats *update = rig_stats(&r, params[p].name, KEEL_UPDATE);
        assert_int_equal(update->n, params[p].numel);
        assert_int_equal(update->zeros, params[p].numel);
        assert_int_equal(rig_stats(&r, params[p].name, KEEL_ADAM_DIRECTION)->n, 0);
    }
    free(before);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups_against_plain),
        cmocka_unit_test(test_bad_groups),
        cmocka_unit_test(test_norm_is_the_same_for_any_threads),
        cmocka_unit_test(test_observed),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_rms),
        cmocka_unit_test(test_skip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
