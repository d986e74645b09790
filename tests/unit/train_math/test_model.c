// The whole model against a plain one in float64: the loss, and gradients by central differences.
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/unit/train_math/plain_model.h"
#include "tests/unit/train_math/watcher.h"

static const keel_optimizer_config adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

// ---- the checks ----

static void check_config(const char *label, const keel_model_config *config, size_t batch) {
    enum { TRIES = 4 }; // elements of every parameter
    rig r;
    if (rig_open(config, batch, &adamw, NULL, 0, false, &r) != KEEL_OK) fail_msg("%s: %s", label, keel_error());
    float *weights = keel_model_weights(r.model);
    uint32_t state = 3, tokens[512];
    size_t width = (size_t)config->seq_length + 1, count;
    random_tokens(tokens, batch * width, (uint32_t)config->vocab_size, 5);
    // Every parameter away from the symmetric values of the start.
    for (size_t i = 0; i < r.numel; i++) weights[i] += 0.3f * random_float(&state);
    double *w = calloc(r.numel + 1, sizeof *w);
    assert_non_null(w);
    for (size_t i = 0; i < r.numel; i++) w[i] = (double)weights[i];
    const plain_model m = plain_of(config, r.model, w);
    const double scale = 0.25;

    double loss, expected = plain_batch_loss(&m, tokens, batch, NULL);
    assert_int_equal(keel_model_forward(r.model, tokens, 1, NULL, &loss), KEEL_OK);
    if (fabs(loss - expected) > 1e-5 * expected) fail_msg("%s: loss %.9g, expected %.9g", label, loss, expected);
    // What is not written stays NaN.
    for (size_t i = 0; i < r.numel; i++) r.grad[i] = NAN;
    assert_int_equal(keel_model_forward(r.model, tokens, scale, r.grad, &loss), KEEL_OK);
    if (fabs(loss - expected) > 1e-5 * expected) fail_msg("%s: loss %.9g, expected %.9g", label, loss, expected);
    double rows = 0;
    for (size_t i = 0; i < batch * (width - 1); i++) rows += (double)keel_model_losses(r.model)[i];
    assert_true(fabs(rows - loss) <= 1e-5 * loss);
    assert_int_equal(keel_model_backward(r.model, NULL, NULL), KEEL_OK);
    for (size_t i = 0; i < r.numel; i++)
        if (!isfinite(r.grad[i])) fail_msg("%s: gradient %zu is %g", label, i, (double)r.grad[i]);

    const keel_param *params = keel_model_params(r.model, &count);
    for (size_t p = 0; p < count; p++) {
        double square = 0;
        for (size_t i = 0; i < params[p].numel; i++)
            square += pow((double)r.grad[params[p].offset + i], 2) / (double)params[p].numel;
        for (int k = 0; k < TRIES; k++) {
            size_t i =
                params[p].offset + (size_t)((double)params[p].numel * (0.5 + 0.5 * (double)random_float(&state)));
            double before = w[i], h = 1e-4;
            w[i] = before + h;
            double above = plain_batch_loss(&m, tokens, batch, NULL);
            w[i] = before - h;
            double below = plain_batch_loss(&m, tokens, batch, NULL);
            w[i] = before;
            double slope = scale * (above - below) / (2 * h);
            if (fabs(slope - (double)r.grad[i]) > 2e-4 * (sqrt(square) + fabs(slope)) + 2e-6)
                fail_msg("%s: gradient of %s[%zu] is %.7g, by differences %.7g", label, params[p].name,
                         i - params[p].offset, (double)r.grad[i], slope);
        }
    }
    free(w);
    rig_close(&r);
}

static keel_model_config gpt2(int64_t vocab, int64_t seq, int64_t hidden, int64_t heads, int64_t intermediate) {
    return (keel_model_config){.model_type = KEEL_MODEL_GPT2,
                               .vocab_size = vocab,
                               .seq_length = seq,
                               .hidden_size = hidden,
                               .num_layers = 2,
                               .num_heads = heads,
                               .intermediate_size = intermediate,
                               .layer_norm_epsilon = 1e-5,
                               .tie_word_embeddings = true,
                               .initializer_range = 0.1};
}

static keel_model_config llama(int64_t vocab, int64_t seq, int64_t hidden, int64_t heads, int64_t kv,
                               int64_t intermediate) {
    return (keel_model_config){.model_type = KEEL_MODEL_LLAMA,
                               .vocab_size = vocab,
                               .seq_length = seq,
                               .hidden_size = hidden,
                               .num_layers = 2,
                               .num_heads = heads,
                               .n_kv_heads = kv,
                               .intermediate_size = intermediate,
                               .rms_norm_eps = 1e-6,
                               .theta = 10000,
                               .initializer_range = 0.1};
}

static void test_gpt2_sizes(void **state) {
    (void)state;
    keel_model_config config = gpt2(23, 9, 15, 3, 37); // heads of 5, nothing a multiple of anything
    check_config("gpt2 odd", &config, 3);
    config = gpt2(33, 1, 16, 2, 64);
    check_config("gpt2 one token", &config, 1);
    config = gpt2(33, 5, 16, 1, 64);
    check_config("gpt2 one head", &config, 1);
    config = gpt2(40, 60, 64, 2, 96); // several tiles of queries
    check_config("gpt2 tiles", &config, 2);
    config = gpt2(17, 6, 12, 2, 20);
    config.tie_word_embeddings = false;
    config.max_position_embeddings = 11;
    check_config("gpt2 untied", &config, 2);
}

static void test_llama_sizes(void **state) {
    (void)state;
    keel_model_config config = llama(23, 9, 18, 3, 1, 29); // heads of 6, one for keys and values
    check_config("llama odd", &config, 3);
    config = llama(33, 1, 16, 2, 2, 24);
    check_config("llama one token", &config, 1);
    config = llama(40, 60, 64, 4, 2, 96);
    check_config("llama tiles", &config, 2);
    config = llama(17, 6, 12, 2, 1, 20);
    config.tie_word_embeddings = true;
    check_config("llama tied", &config, 2);
}

static void test_bad_input(void **state) {
    (void)state;
    keel_model_config config = gpt2(23, 9, 16, 2, 32);
    rig r;
    double loss = -1;
    uint32_t tokens[20];
    assert_int_equal(rig_open(&config, 2, &adamw, NULL, 0, false, &r), KEEL_OK);
    assert_int_equal(keel_model_backward(r.model, NULL, NULL), KEEL_ERR_USAGE);
    random_tokens(tokens, 20, 23, 1);
    assert_int_equal(keel_model_forward(r.model, tokens, 1, NULL, &loss), KEEL_OK);
    assert_int_equal(keel_model_backward(r.model, NULL, NULL), KEEL_ERR_USAGE);
    loss = -1;
    tokens[13] = 23;
    assert_int_equal(keel_model_forward(r.model, tokens, 1, r.grad, &loss), KEEL_ERR_FORMAT);
    assert_non_null(strstr(keel_error(), "token 23 at sequence 1, position 3"));
    assert_true(loss == -1);
    rig_close(&r);

    keel_model_config bad = config;
    bad.num_heads = 3;
    assert_int_equal(rig_open(&bad, 2, &adamw, NULL, 0, false, &r), KEEL_ERR_CONFIG);
    rig_close(&r);
    bad = llama(23, 9, 16, 4, 3, 32);
    assert_int_equal(rig_open(&bad, 2, &adamw, NULL, 0, false, &r), KEEL_ERR_CONFIG);
    rig_close(&r);
    bad = llama(23, 9, 15, 3, 3, 32);
    assert_int_equal(rig_open(&bad, 2, &adamw, NULL, 0, false, &r), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "even"));
    rig_close(&r);
    bad = config;
    bad.max_position_embeddings = 5;
    assert_int_equal(rig_open(&bad, 2, &adamw, NULL, 0, false, &r), KEEL_ERR_CONFIG);
    rig_close(&r);
}

// ---- reproducibility ----

typedef struct trajectory {
    double losses[3], norms[3];
    float *weights;
    size_t numel;
} trajectory;

static trajectory train(const keel_model_config *config, size_t batch, bool watched, int threads) {
    trajectory out = {0};
    rig r;
    uint32_t tokens[2048];
    omp_set_num_threads(threads);
    assert_int_equal(rig_open(config, batch, &adamw, NULL, 0, watched, &r), KEEL_OK);
    for (uint64_t step = 1; step <= 3; step++) {
        double *loss = &out.losses[step - 1], *norm_value = &out.norms[step - 1];
        random_tokens(tokens, batch * ((size_t)config->seq_length + 1), (uint32_t)config->vocab_size, (uint32_t)step);
        keel_step_begin(r.probe, step);
        assert_int_equal(keel_model_forward(r.model, tokens, 0.01, r.grad, loss), KEEL_OK);
        assert_int_equal(keel_model_backward(r.model, NULL, NULL), KEEL_OK);
        *norm_value = rig_norm(&r);
        const keel_update update = {.lr = 1e-3, .clip_factor = keel_clip_factor(*norm_value, 0.5), .update = step};
        keel_optimizer_step(r.optimizer, r.grad, &update);
        keel_step_end(r.probe, &(keel_step){.step = step, .update = step});
    }
    out.numel = r.numel;
    out.weights = malloc(r.numel * sizeof *out.weights);
    assert_non_null(out.weights);
    memcpy(out.weights, keel_model_weights(r.model), r.numel * sizeof *out.weights);
    rig_close(&r);
    return out;
}

static void assert_same_bits(const trajectory *a, const trajectory *b) {
    assert_memory_equal(a->losses, b->losses, sizeof a->losses);
    assert_memory_equal(a->norms, b->norms, sizeof a->norms);
    assert_memory_equal(a->weights, b->weights, a->numel * sizeof *a->weights);
}

static void check_reproducible(const keel_model_config *config, size_t batch) {
    for (int threads = 1; threads <= 3; threads++) {
        trajectory plain_run = train(config, batch, false, threads), again = train(config, batch, false, threads);
        trajectory watched = train(config, batch, true, threads);
        assert_same_bits(&plain_run, &again);
        assert_same_bits(&plain_run, &watched);
        free(plain_run.weights);
        free(again.weights);
        free(watched.weights);
    }
    omp_set_num_threads(omp_get_num_procs());
}

static void test_reproducible(void **state) {
    (void)state;
    keel_model_config config = gpt2(101, 70, 48, 3, 100);
    check_reproducible(&config, 3);
    config = llama(101, 70, 48, 4, 2, 100);
    check_reproducible(&config, 3);
}

// ---- order of gradients, names, memory ----

typedef struct border {
    const rig *r;
    size_t at;
    float *seen; // copy of what was final at its time
} border;

static void on_ready(void *context, size_t begin) {
    border *b = context;
    assert_true(begin < b->at);
    memcpy(b->seen + begin, b->r->grad + begin, (b->at - begin) * sizeof *b->seen);
    b->at = begin;
}

static void check_ready(const keel_model_config *config) {
    rig r;
    uint32_t tokens[64];
    double loss;
    assert_int_equal(rig_open(config, 2, &adamw, NULL, 0, false, &r), KEEL_OK);
    random_tokens(tokens, 64, (uint32_t)config->vocab_size, 1);
    border b = {.r = &r, .at = r.numel, .seen = calloc(r.numel, sizeof(float))};
    assert_non_null(b.seen);
    assert_int_equal(keel_model_forward(r.model, tokens, 1, r.grad, &loss), KEEL_OK);
    assert_int_equal(keel_model_backward(r.model, on_ready, &b), KEEL_OK);
    assert_int_equal(b.at, 0);
    assert_memory_equal(b.seen, r.grad, r.numel * sizeof *r.grad);
    free(b.seen);
    rig_close(&r);
}

static void test_ready(void **state) {
    (void)state;
    keel_model_config config = gpt2(31, 9, 16, 2, 32);
    check_ready(&config);
    config.tie_word_embeddings = false;
    check_ready(&config);
    config = llama(31, 9, 16, 2, 1, 32);
    check_ready(&config);
}

static void test_parameters(void **state) {
    (void)state;
    keel_model_config config = llama(31, 9, 16, 2, 1, 24);
    rig r;
    size_t count, hf_count, at = 0, covered = 0;
    assert_int_equal(rig_open(&config, 2, &adamw, NULL, 0, false, &r), KEEL_OK);
    const keel_param *params = keel_model_params(r.model, &count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(params[i].offset, at);
        assert_int_equal(params[i].decay, params[i].ndim > 1);
        at += params[i].numel;
    }
    assert_int_equal(at, r.numel);
    const keel_hf_tensor *tensors = keel_model_hf_tensors(r.model, &hf_count);
    for (size_t i = 0; i < hf_count; i++)
        covered += tensors[i].shape[0] * (tensors[i].ndim > 1 ? tensors[i].shape[1] : 1);
    assert_int_equal(covered, r.numel);
    const keel_param *gate_up = rig_param(&r, "layers.1.mlp.gate_up.weight");
    assert_non_null(gate_up);
    assert_int_equal(gate_up->shape[0], 48);
    assert_int_equal(gate_up->layer, 1);
    assert_string_equal(gate_up->module, "mlp");
    assert_true(keel_model_bytes(r.model) >= r.numel * sizeof(float));
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    keel_model_print(r.model, out);
    fclose(out);
    assert_non_null(strstr(text, "mlp.gate_up.weight"));
    assert_non_null(strstr(text, "[48, 16]"));
    free(text);
    rig_close(&r);
}

static void test_initial_values(void **state) {
    (void)state;
    keel_model_config config = gpt2(200, 9, 64, 2, 256);
    config.initializer_range = 0.02;
    rig r;
    assert_int_equal(rig_open(&config, 2, &adamw, NULL, 0, false, &r), KEEL_OK);
    const struct {
        const char *name;
        double deviation;
    } cases[] = {{"embedding.weight", 0.02}, {"layers.0.mlp.up.weight", 0.02}, {"layers.1.mlp.down.weight", 0.01}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const keel_param *p = rig_param(&r, cases[k].name);
        const float *w = keel_model_weights(r.model) + p->offset;
        double sum = 0, square = 0, n = (double)p->numel;
        for (size_t i = 0; i < p->numel; i++) sum += (double)w[i], square += (double)w[i] * (double)w[i];
        assert_true(fabs(sum / n) < 5 * cases[k].deviation / sqrt(n));
        assert_true(fabs(sqrt(square / n) / cases[k].deviation - 1) < 5 / sqrt(2 * n));
    }
    assert_true(keel_model_weights(r.model)[rig_param(&r, "layers.0.norm1.weight")->offset] == 1.0f);
    assert_true(keel_model_weights(r.model)[rig_param(&r, "layers.0.norm1.bias")->offset] == 0.0f);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_sizes),     cmocka_unit_test(test_llama_sizes), cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_reproducible),   cmocka_unit_test(test_ready),       cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_initial_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
