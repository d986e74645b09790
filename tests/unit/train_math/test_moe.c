// Router, dispatch and experts against plain loops in float64.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/train_math/watcher.h"
#include "train/model/model_state.h"
#include "train/tensor/grouped.h"
#include "train/tensor/precision.h"

static const keel_optimizer_config adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

enum { BATCH = 3, SEQ = 13, HIDDEN = 16, INNER = 20, VOCAB = 40, EXPERTS = 5, CHOSEN = 2, ROWS = BATCH * SEQ };

static keel_model_config small(const keel_moe_config *moe) {
    keel_model_config config = {.model_type = KEEL_MODEL_LLAMA,
                                .vocab_size = VOCAB,
                                .seq_length = SEQ,
                                .hidden_size = HIDDEN,
                                .num_layers = 2,
                                .num_heads = 2,
                                .intermediate_size = INNER,
                                .rms_norm_eps = 1e-6,
                                .theta = 10000,
                                .initializer_range = 0.3,
                                .moe = *moe};
    config.moe.expert_num = EXPERTS;
    config.moe.num_experts_chosen = CHOSEN;
    return config;
}

static const keel_moe_config plain_moe = {.aux_loss_factor = 0.1,
                                          .z_loss_factor = 0.01,
                                          .norm_topk_prob = true,
                                          .use_gmm = true,
                                          .use_fused_ops_permute = true};

// One pass over random tokens; the gradient is in RIG->grad. Gives the mean loss.
static double pass(const keel_moe_config *moe, rig *r) {
    const keel_model_config config = small(moe);
    uint32_t tokens[BATCH * (SEQ + 1)];
    double sum;
    assert_int_equal(rig_open(&config, BATCH, &adamw, NULL, 0, true, r), KEEL_OK);
    random_tokens(tokens, BATCH * (SEQ + 1), VOCAB, 3);
    keel_step_begin(r->probe, 1);
    assert_int_equal(keel_model_forward(r->model, tokens, 1.0 / ROWS, r->grad, &sum), KEEL_OK);
    assert_int_equal(keel_model_backward(r->model, NULL, NULL), KEEL_OK);
    keel_step_end(r->probe, &(keel_step){.step = 1, .update = 1});
    return sum / ROWS;
}

// ---- the router ----

typedef struct plain_routing {
    double probs[ROWS][EXPERTS], logsumexp[ROWS], weights[ROWS][CHOSEN];
    size_t chosen[ROWS][CHOSEN];
} plain_routing;

static void route(const float *x, const float *w, bool norm, plain_routing *out) {
    for (size_t t = 0; t < ROWS; t++) {
        double logits[EXPERTS], total = 0, sum = 0;
        for (size_t e = 0; e < EXPERTS; e++) {
            logits[e] = 0;
            for (size_t i = 0; i < HIDDEN; i++) logits[e] += (double)x[t * HIDDEN + i] * (double)w[e * HIDDEN + i];
            total += exp(logits[e]);
        }
        out->logsumexp[t] = log(total);
        for (size_t e = 0; e < EXPERTS; e++) out->probs[t][e] = exp(logits[e]) / total;
        for (size_t j = 0; j < CHOSEN; j++) {
            size_t best = EXPERTS;
            for (size_t e = 0; e < EXPERTS; e++) {
                bool taken = false;
                for (size_t i = 0; i < j; i++) taken |= out->chosen[t][i] == e;
                if (!taken && (best == EXPERTS || out->probs[t][e] > out->probs[t][best])) best = e;
            }
            out->chosen[t][j] = best;
            sum += out->weights[t][j] = out->probs[t][best];
        }
        for (size_t j = 0; j < CHOSEN && norm; j++) out->weights[t][j] /= sum;
    }
}

static void test_router(void **state) {
    (void)state;
    for (int norm = 0; norm < 2; norm++) {
        keel_moe_config moe = plain_moe;
        moe.norm_topk_prob = norm;
        rig r;
        pass(&moe, &r);
        keel_routing_totals totals[2];
        keel_model_take_routing(r.model, totals);
        for (size_t l = 0; l < 2; l++) {
            const keel_layer *layer = &r.model->slots[0].layers[l];
            const keel_router_state *s = &layer->moe.router.state;
            static plain_routing expected;
            route(layer->join2.state.normed, keel_model_weights(r.model) + layer->params->router.weight, norm,
                  &expected);
            double load[EXPERTS] = {0}, mean[EXPERTS] = {0}, z = 0, balance = 0;
            for (size_t t = 0; t < ROWS; t++) {
                z += expected.logsumexp[t] * expected.logsumexp[t] / ROWS;
                for (size_t e = 0; e < EXPERTS; e++) {
                    mean[e] += expected.probs[t][e] / ROWS;
                    assert_true(fabs((double)s->probs[t * EXPERTS + e] - expected.probs[t][e]) < 1e-6);
                }
                for (size_t j = 0; j < CHOSEN; j++) {
                    load[expected.chosen[t][j]]++;
                    assert_int_equal(s->chosen[t * CHOSEN + j], expected.chosen[t][j]);
                    assert_true(fabs((double)s->weights[t * CHOSEN + j] - expected.weights[t][j]) < 1e-6);
                }
            }
            for (size_t e = 0; e < EXPERTS; e++) balance += EXPERTS * load[e] / (ROWS * CHOSEN) * mean[e];
            assert_true(fabs(totals[l].balance - balance) < 1e-6 * balance);
            assert_true(fabs(totals[l].z - z) < 1e-5 * z);
            assert_true(totals[l].drop_rate == 0);
            assert_int_equal(totals[l].micro_batches, 1);
            const keel_stats *seen = rig_stats(
                &r, l ? "layers.1.mlp.router.expert_load" : "layers.0.mlp.router.expert_load", KEEL_ACTIVATION);
            assert_int_equal(seen->n, EXPERTS);
            assert_true(seen->sum == ROWS * CHOSEN);
        }
        rig_close(&r);
    }
}

// ---- gradients ----

enum { UP = 2 * INNER };

typedef struct plain_layer { // a layer's mixture, and what its output is weighed by
    double x[ROWS * HIDDEN], router[EXPERTS * HIDDEN], up[EXPERTS * UP * HIDDEN], down[EXPERTS * HIDDEN * INNER];
    double dy[ROWS * HIDDEN];
    const keel_moe_layer *layer; // of which experts have which tokens, which no small step changes
    const keel_moe_config *config;
} plain_layer;

static double dot(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double expert_output(const plain_layer *p, size_t t, size_t e) { // times DY
    const double *x = p->x + t * HIDDEN, *up = p->up + e * UP * HIDDEN, *down = p->down + e * HIDDEN * INNER;
    double act[INNER], sum = 0;
    for (size_t i = 0; i < INNER; i++) {
        const double gate = dot(up + i * HIDDEN, x, HIDDEN);
        act[i] = gate / (1 + exp(-gate)) * dot(up + (INNER + i) * HIDDEN, x, HIDDEN);
    }
    for (size_t i = 0; i < HIDDEN; i++) sum += p->dy[t * HIDDEN + i] * dot(down + i * INNER, act, INNER);
    return sum;
}

// Sum of DY y, and both losses over all tokens.
static double value_of(const plain_layer *p) {
    const double *load = keel_routed_load(p->layer->router.state.routed);
    double total = 0;
    for (size_t t = 0; t < ROWS; t++) {
        const uint32_t *chosen = p->layer->router.state.chosen + t * CHOSEN;
        double probs[EXPERTS], sum = 0, taken = 0;
        for (size_t e = 0; e < EXPERTS; e++)
            sum += probs[e] = exp(dot(p->router + e * HIDDEN, p->x + t * HIDDEN, HIDDEN));
        for (size_t e = 0; e < EXPERTS; e++)
            total += p->config->aux_loss_factor * EXPERTS * load[e] / (ROWS * CHOSEN) * (probs[e] / sum);
        total += p->config->z_loss_factor * log(sum) * log(sum);
        for (size_t j = 0; j < CHOSEN; j++) taken += probs[chosen[j]];
        for (size_t j = 0; j < CHOSEN; j++)
            if (p->layer->dispatch.slot[t * CHOSEN + j] != KEEL_DROPPED)
                total += probs[chosen[j]] / (p->config->norm_topk_prob ? taken : sum) * expert_output(p, t, chosen[j]);
    }
    return total;
}

static void check_slopes(const char *what, const plain_layer *p, double *x, const float *got, size_t n) {
    double apart = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        const double before = x[i], h = 1e-5;
        x[i] = before + h;
        const double above = value_of(p);
        x[i] = before - h;
        const double by = (above - value_of(p)) / (2 * h);
        x[i] = before;
        apart += (by - (double)got[i]) * (by - (double)got[i]);
        all += by * by;
    }
    if (!(sqrt(apart) <= 5e-6 * sqrt(all))) fail_msg("%s: apart by %.3g of its norm", what, sqrt(apart / all));
}

static void widen(double *to, const float *from, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = (double)from[i];
}

// A layer alone, forward and backward, against central differences of a float64 twin.
static void test_gradients(void **state) {
    (void)state;
    static plain_layer plain;
    for (int way = 0; way < 4; way++) {
        keel_moe_config moe = plain_moe;
        moe.capacity_factor = way & 1 ? 0.8 : 0;
        moe.norm_topk_prob = way & 2;
        moe.use_gmm = moe.use_fused_ops_permute = way != 1;
        rig r;
        pass(&moe, &r);
        keel_context *c = &r.model->context;
        keel_layer *layer = &r.model->slots[0].layers[0];
        float x[ROWS * HIDDEN], y[ROWS * HIDDEN], dy[ROWS * HIDDEN], dx[ROWS * HIDDEN];
        uint32_t random = 9;
        for (size_t i = 0; i < ROWS * HIDDEN; i++) {
            x[i] = 2 * random_float(&random);
            dy[i] = random_float(&random);
        }
        c->grad = r.grad;
        c->scale = 1;
        assert_int_equal(keel_moe_forward(c, &r.model->work.moe, &layer->moe, x, y), KEEL_OK);
        assert_int_equal(keel_moe_backward(c, &r.model->work.moe, &layer->moe, x, dy, dx), KEEL_OK);
        const float *w = keel_model_weights(r.model);
        const keel_layer_params *params = layer->params;
        plain.layer = &layer->moe;
        plain.config = &moe;
        widen(plain.x, x, ROWS * HIDDEN);
        widen(plain.dy, dy, ROWS * HIDDEN);
        widen(plain.router, w + params->router.weight, EXPERTS * HIDDEN);
        widen(plain.up, w + params->up.weight, EXPERTS * UP * HIDDEN);
        widen(plain.down, w + params->down.weight, EXPERTS * HIDDEN * INNER);
        check_slopes("input", &plain, plain.x, dx, ROWS * HIDDEN);
        check_slopes("router", &plain, plain.router, r.grad + params->router.weight, EXPERTS * HIDDEN);
        check_slopes("gate and up", &plain, plain.up, r.grad + params->up.weight, EXPERTS * UP * HIDDEN);
        check_slopes("down", &plain, plain.down, r.grad + params->down.weight, EXPERTS * HIDDEN * INNER);
        rig_close(&r);
    }
}

// ---- bfloat16 ----

// The experts' products take and give bfloat16, the router knows nothing of it.
static void test_bf16(void **state) {
    (void)state;
    keel_model_config config = small(&plain_moe);
    config.compute_dtype = KEEL_BFLOAT16;
    rig r;
    uint32_t tokens[BATCH * (SEQ + 1)];
    double sum;
    assert_int_equal(rig_open(&config, BATCH, &adamw, NULL, 0, true, &r), KEEL_OK);
    random_tokens(tokens, BATCH * (SEQ + 1), VOCAB, 3);
    keel_model_take_weights(r.model);
    keel_step_begin(r.probe, 1);
    assert_int_equal(keel_model_forward(r.model, tokens, 1.0 / ROWS, r.grad, &sum), KEEL_OK);
    assert_int_equal(keel_model_backward(r.model, NULL, NULL), KEEL_OK);
    assert_true(rig_stats(&r, "layers.1.mlp.router", KEEL_ACTIVATION)->not_bf16 > 0);
    assert_true(rig_stats(&r, "layers.1.mlp.router", KEEL_ACTIVATION_GRAD)->not_bf16 > 0);
    assert_int_equal(rig_stats(&r, "layers.1.mlp.experts.gate_up", KEEL_ACTIVATION)->not_bf16, 0);
    assert_int_equal(rig_stats(&r, "layers.1.mlp.experts.act", KEEL_ACTIVATION)->not_bf16, 0);
    const keel_moe_layer *layer = &r.model->slots[0].layers[1].moe;
    const float *out = layer->experts.out;
    for (size_t i = 0; i < layer->experts.rows * HIDDEN; i++) assert_true(keel_round_to_bf16(out[i]) == out[i]);
    assert_int_equal(rig_param(&r, "layers.1.mlp.router.weight")->precision, KEEL_FLOAT32);
    assert_int_equal(rig_param(&r, "layers.1.mlp.experts.down.weight")->precision, KEEL_BFLOAT16);
    assert_true(isfinite(sum));
    for (size_t i = 0; i < r.numel; i++) assert_true(isfinite(r.grad[i]));
    rig_close(&r);
}

// ---- capacity ----

static void test_capacity(void **state) {
    (void)state;
    keel_moe_config moe = plain_moe;
    moe.capacity_factor = 0.8;
    rig r;
    pass(&moe, &r);
    const size_t capacity = (size_t)ceil(0.8 * CHOSEN * SEQ / EXPERTS);
    for (size_t l = 0; l < 2; l++) {
        const keel_moe_layer *layer = &r.model->slots[0].layers[l].moe;
        const uint32_t *chosen = layer->router.state.chosen;
        size_t dropped = 0, kept[EXPERTS] = {0};
        for (size_t b = 0; b < BATCH; b++) {
            size_t used[EXPERTS] = {0};
            for (size_t j = 0; j < CHOSEN; j++)
                for (size_t t = 0; t < SEQ; t++) {
                    const size_t a = (b * SEQ + t) * CHOSEN + j, e = chosen[a], slot = layer->dispatch.slot[a];
                    const bool full = used[e] == capacity;
                    assert_int_equal(slot == KEEL_DROPPED, full);
                    dropped += full;
                    used[e] += !full;
                    kept[e] += !full;
                    if (!full) assert_int_equal(layer->dispatch.source[slot], a);
                }
        }
        assert_true(dropped > 0);
        for (size_t e = 0; e < EXPERTS; e++) assert_int_equal(layer->dispatch.counts[e], kept[e]);
        assert_int_equal(layer->dispatch.rows, ROWS * CHOSEN - dropped);
        const keel_stats *rate =
            rig_stats(&r, l ? "layers.1.mlp.router.drop_rate" : "layers.0.mlp.router.drop_rate", KEEL_ACTIVATION);
        assert_true(rate->max == (double)((float)dropped / (ROWS * CHOSEN)));
    }
    rig_close(&r);
}

// ---- experts ----

// All tokens go to experts 0 and 1, whatever they are.
static void starve(rig *r) {
    for (size_t l = 0; l < 2; l++) {
        const keel_layer *layer = &r->model->slots[0].layers[l];
        float *router = keel_model_weights(r->model) + layer->params->router.weight;
        memset(router, 0, (size_t)EXPERTS * HIDDEN * sizeof *router); // of equal probabilities the first are taken
    }
}

static void test_starved(void **state) {
    (void)state;
    keel_moe_config ways[4] = {plain_moe, plain_moe, plain_moe, plain_moe};
    ways[1].enable_gmm_safe_tokens = true;
    ways[2].use_fused_ops_permute = false;
    ways[3].use_gmm = false;
    float *first = NULL;
    double losses[4];
    for (size_t way = 0; way < 4; way++) {
        rig r;
        uint32_t tokens[BATCH * (SEQ + 1)];
        pass(&ways[way], &r);
        starve(&r);
        random_tokens(tokens, BATCH * (SEQ + 1), VOCAB, 8);
        memset(r.grad, 0xff, r.numel * sizeof *r.grad);
        assert_int_equal(keel_model_forward(r.model, tokens, 1.0 / ROWS, r.grad, &losses[way]), KEEL_OK);
        assert_int_equal(keel_model_backward(r.model, NULL, NULL), KEEL_OK);
        const keel_experts *experts = &r.model->slots[0].layers[1].moe.experts;
        assert_int_equal(experts->rows, ROWS * CHOSEN);
        assert_int_equal(experts->padding, ways[way].enable_gmm_safe_tokens ? EXPERTS - CHOSEN : 0);
        const keel_param *down = rig_param(&r, "layers.1.mlp.experts.down.weight");
        for (size_t k = down->numel / EXPERTS * CHOSEN; k < down->numel; k++)
            assert_true(r.grad[down->offset + k] == 0);
        if (!first) {
            first = malloc(r.numel * sizeof *first);
            memcpy(first, r.grad, r.numel * sizeof *first);
        }
        for (size_t k = 0; k < r.numel; k++) assert_true(fabsf(r.grad[k] - first[k]) <= 1e-6f * (1 + fabsf(first[k])));
        assert_true(fabs(losses[way] - losses[0]) < 1e-6 * losses[0]);
        rig_close(&r);
    }
    free(first);
}

static void test_grouped(void **state) {
    (void)state;
    enum { N = 300, K = 9, GROUPS = 4, LAST = 700 };
    static const keel_group groups[GROUPS] = {{0, 3}, {3, 0}, {3, 520}, {523, LAST - 523}};
    static float x[LAST * K], w[GROUPS * N * K], y[LAST * N], back[LAST * K], dw[GROUPS * N * K];
    uint32_t random = 5;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = random_float(&random);
    for (size_t i = 0; i < sizeof w / sizeof *w; i++) w[i] = random_float(&random);
    memset(dw, 0xff, sizeof dw);
    for (size_t alone = 0; alone < 2; alone++) {
        const size_t count = alone ? 1 : GROUPS;
        keel_grouped_rows(groups, count, N, K, x, w, true, y);
        keel_grouped_rows(groups, count, K, N, y, w, false, back);
        keel_grouped_weights(groups, count, N, K, y, x, dw);
    }
    for (size_t g = 0; g < GROUPS; g++) {
        const size_t first = groups[g].first, rows = groups[g].rows;
        for (size_t r = first; r < first + rows; r += 41) {
            for (size_t n = 0; n < N; n += 7) {
                double sum = 0;
                for (size_t k = 0; k < K; k++) sum += (double)x[r * K + k] * (double)w[(g * N + n) * K + k];
                assert_true(fabs(sum - (double)y[r * N + n]) < 1e-5);
            }
            for (size_t k = 0; k < K; k++) {
                double sum = 0;
                for (size_t n = 0; n < N; n++) sum += (double)y[r * N + n] * (double)w[(g * N + n) * K + k];
                assert_true(fabs(sum - (double)back[r * K + k]) < 1e-3);
            }
        }
        for (size_t n = 0; n < N; n += 11)
            for (size_t k = 0; k < K; k++) {
                double sum = 0;
                for (size_t r = first; r < first + rows; r++) sum += (double)y[r * N + n] * (double)x[r * K + k];
                assert_true(fabs(sum - (double)dw[(g * N + n) * K + k]) < 1e-3);
            }
    }
}

static void test_bad_input(void **state) {
    (void)state;
    const struct { int64_t experts, chosen; } bad[] = {{4, 5}, {4, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        keel_model_config config = small(&plain_moe);
        config.moe.expert_num = bad[i].experts;
        config.moe.num_experts_chosen = bad[i].chosen;
        rig r;
        assert_int_equal(rig_open(&config, BATCH, &adamw, NULL, 0, false, &r), KEEL_ERR_CONFIG);
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_router),    cmocka_unit_test(test_gradients), cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_capacity),  cmocka_unit_test(test_starved),   cmocka_unit_test(test_grouped),
        cmocka_unit_test(test_bad_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
