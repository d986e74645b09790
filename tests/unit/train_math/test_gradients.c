// Every layer forward and backward against the plain model in float64, whose slopes are central differences: each
// module alone, from what its taps show of its input, output and gradients, and the whole model for every parameter.
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

// Norms of differences, relative to the norm of what they are compared with. Of one module the trainer's float32 may
// differ by a few roundings, of the whole model by what they become on the way; the slopes themselves, by what twice
// the step makes of them.
static const double module_bound = 2e-6, model_bound = 5e-6, slope_bound = 1e-8;
static const double scale = 0.25; // of the loss

static const keel_optimizer_config adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

// ---- what the taps show ----

enum { VIEWS = 256 };
typedef struct view { // of an activation or its gradient, by the site's id
    float *data;
    size_t n, shown;
} view;
static view views[VIEWS];

void __real_keel_tap_piece_active(keel_tap *tap, int thread, float *data, size_t offset, size_t n);
void __wrap_keel_tap_piece_active(keel_tap *tap, int thread, float *data, size_t offset, size_t n);
void __real_keel_tap_tile_active(keel_tap *tap, int thread, float *data, size_t offset, size_t stride, size_t rows,
                                 size_t cols);
void __wrap_keel_tap_tile_active(keel_tap *tap, int thread, float *data, size_t offset, size_t stride, size_t rows,
                                 size_t cols);

static void show(const keel_tap *tap, const float *data, size_t offset, size_t n) {
    view *to = &views[keel_site_get_info(tap->site)->id];
    if (!to->data) return;
    assert_true(offset + n <= to->n);
    memcpy(to->data + offset, data, n * sizeof *data);
#pragma omp atomic
    to->shown += n;
}

void __wrap_keel_tap_piece_active(keel_tap *tap, int thread, float *data, size_t offset, size_t n) {
    show(tap, data, offset, n);
    __real_keel_tap_piece_active(tap, thread, data, offset, n);
}

void __wrap_keel_tap_tile_active(keel_tap *tap, int thread, float *data, size_t offset, size_t stride, size_t rows,
                                 size_t cols) {
    for (size_t r = 0; r < rows; r++) show(tap, data + r * stride, offset + r * stride, cols);
    __real_keel_tap_tile_active(tap, thread, data, offset, stride, rows, cols);
}

static void views_open(const keel_probe *probe) {
    assert_true(keel_probe_site_count(probe) <= VIEWS);
    for (uint32_t i = 0; i < keel_probe_site_count(probe); i++) {
        const keel_site_info *info = keel_probe_site_info(probe, i);
        if (info->quantity != KEEL_ACTIVATION && info->quantity != KEEL_ACTIVATION_GRAD) continue;
        views[i] = (view){.data = calloc(info->numel, sizeof(float)), .n = info->numel};
        assert_non_null(views[i].data);
    }
}

static void views_close(void) {
    for (size_t i = 0; i < VIEWS; i++) {
        free(views[i].data);
        views[i] = (view){0};
    }
}

// ---- a model, its taps and its plain twin ----

typedef struct checked {
    const char *label;
    rig rig;
    plain_model plain;
    size_t batch, rows;
    double *w, *dw;   // flat: the weights, and their slopes as the modules give them
    uint32_t *tokens; // [B, T + 1]
} checked;

static void open_checked(const char *label, const keel_model_config *config, size_t batch, checked *c) {
    *c = (checked){.label = label, .batch = batch, .rows = batch * (size_t)config->seq_length};
    if (rig_open(config, batch, &adamw, NULL, 0, true, &c->rig) != KEEL_OK) fail_msg("%s: %s", label, keel_error());
    rig *r = &c->rig;
    float *weights = keel_model_weights(r->model);
    uint32_t state = 3;
    const size_t token_count = c->rows + batch;
    c->w = calloc(r->numel, sizeof *c->w);
    c->dw = calloc(r->numel, sizeof *c->dw);
    c->tokens = calloc(token_count, sizeof *c->tokens);
    assert_true(c->w && c->dw && c->tokens);
    // Every parameter away from the symmetric values of the start.
    for (size_t i = 0; i < r->numel; i++) {
        weights[i] += 0.3f * random_float(&state);
        c->w[i] = (double)weights[i];
        r->grad[i] = NAN; // what is not written
    }
    random_tokens(c->tokens, token_count, (uint32_t)config->vocab_size, 5);
    c->plain = plain_of(config, r->model, c->w);
    views_open(r->probe);
    double loss;
    keel_step_begin(r->probe, 1);
    assert_int_equal(keel_model_forward(r->model, c->tokens, scale, r->grad, &loss), KEEL_OK);
    assert_int_equal(keel_model_backward(r->model, NULL, NULL), KEEL_OK);
    keel_step_end(r->probe, &(keel_step){.step = 1});
    const double expected = plain_batch_loss(&c->plain, c->tokens, batch, NULL);
    if (!(fabs(loss - expected) <= module_bound * expected))
        fail_msg("%s: loss %.9g, expected %.9g", label, loss, expected);
}

static void close_checked(checked *c) {
    views_close();
    rig_close(&c->rig);
    free(c->w);
    free(c->dw);
    free(c->tokens);
}

static const view *view_of(const checked *c, const char *name, keel_quantity quantity) {
    for (uint32_t i = 0; i < keel_probe_site_count(c->rig.probe); i++) {
        const keel_site_info *info = keel_probe_site_info(c->rig.probe, i);
        if (info->quantity != quantity || strcmp(info->name, name) != 0) continue;
        if (views[i].shown != views[i].n)
            fail_msg("%s: %s %s: %zu of %zu were shown", c->label, name, keel_quantity_name(quantity), views[i].shown,
                     views[i].n);
        return &views[i];
    }
    fail_msg("%s: no site %s %s", c->label, name, keel_quantity_name(quantity));
    return NULL;
}

static double relative_distance(const float *got, const double *expected, size_t n) {
    double apart = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        apart += ((double)got[i] - expected[i]) * ((double)got[i] - expected[i]);
        all += expected[i] * expected[i];
    }
    return sqrt(apart / all);
}

static void compare(const checked *c, const char *what, const char *name, const float *got, const double *expected,
                    size_t n, double bound) {
    const double distance = relative_distance(got, expected, n);
    if (!(distance <= bound)) fail_msg("%s: %s %s: apart by %.3g of its norm", c->label, name, what, distance);
}

// ---- slopes ----

typedef double value_at(void *context);

// d VALUE / d *X by central differences at two steps, the error of the second order taken out; *DOUBT: what that was.
static double slope(value_at *value, void *context, double *x, double *doubt) {
    const double before = *x, h = 3e-5;
    double by[2];
    for (int k = 0; k < 2; k++) {
        const double step = (k + 1) * h;
        *x = before + step;
        const double above = value(context);
        *x = before - step;
        by[k] = (above - value(context)) / (2 * step);
    }
    *x = before;
    *doubt = fabs(by[0] - by[1]) / 3;
    return (4 * by[0] - by[1]) / 3;
}

// OUT [n] += slopes by X [n].
static void add_slopes(const checked *c, const char *name, value_at *value, void *context, double *x, size_t n,
                       double *out) {
    double doubts = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        double doubt;
        const double by = slope(value, context, &x[i], &doubt);
        doubts += doubt * doubt;
        all += by * by;
        out[i] += by;
    }
    if (!(sqrt(doubts) <= slope_bound * sqrt(all)))
        fail_msg("%s: %s: slopes are known to %.3g only", c->label, name, sqrt(doubts / all));
}

// ---- the modules ----

enum { MATRICES = 3 };

// Y [N, out] of X [N, in] and W, the module's parameters. Returns what the module adds to the loss by itself.
typedef double forward(const checked *c, double *y, const double *x, double *const w[MATRICES], size_t in, size_t out);

static double forward_embedding(const checked *c, double *y, const double *x, double *const w[MATRICES], size_t in,
                                size_t out) {
    (void)x, (void)in;
    const plain_model *m = &c->plain;
    for (size_t row = 0; row < c->rows; row++)
        plain_embed(m, y + row * out, c->tokens[row / m->t * (m->t + 1) + row % m->t], row % m->t, w[0], w[1]);
    return 0;
}

static double forward_norm(const checked *c, double *y, const double *x, double *const w[MATRICES], size_t in,
                           size_t out) {
    for (size_t row = 0; row < c->rows; row++) plain_norm(&c->plain, y + row * out, x + row * in, w[0], w[1]);
    return 0;
}

static double forward_linear(const checked *c, double *y, const double *x, double *const w[MATRICES], size_t in,
                             size_t out) {
    for (size_t row = 0; row < c->rows; row++)
        plain_linear(&c->plain, y + row * out, x + row * in, in, out, w[0], w[1]);
    return 0;
}

static double forward_attention(const checked *c, double *y, const double *x, double *const w[MATRICES], size_t in,
                                size_t out) {
    (void)w;
    for (size_t b = 0; b < c->batch; b++) plain_attend(&c->plain, y + b * c->plain.t * out, x + b * c->plain.t * in);
    return 0;
}

static double forward_activation(const checked *c, double *y, const double *x, double *const w[MATRICES], size_t in,
                                 size_t out) {
    (void)w;
    for (size_t row = 0; row < c->rows; row++) plain_activate(&c->plain, y + row * out, x + row * in);
    return 0;
}

static double forward_mixture(const checked *c, double *y, const double *x, double *const w[MATRICES], size_t in,
                              size_t out) {
    const plain_model *m = &c->plain;
    plain_routing routing = {0};
    for (size_t b = 0; b < c->batch; b++)
        plain_mixture(m, y + b * m->t * out, x + b * m->t * in, w[0], w[1], w[2], &routing);
    return plain_routing_loss(m, &routing);
}

static double forward_head(const checked *c, double *y, const double *x, double *const w[MATRICES], size_t in,
                           size_t out) {
    for (size_t row = 0; row < c->rows; row++) plain_logits(&c->plain, y + row * out, x + row * in, w[0]);
    return 0;
}

static double forward_loss(const checked *c, double *y, const double *x, double *const w[MATRICES], size_t in,
                           size_t out) {
    (void)w, (void)out;
    const plain_model *m = &c->plain;
    for (size_t row = 0; row < c->rows; row++)
        y[row] = plain_cross_entropy(m, x + row * in, c->tokens[row / m->t * (m->t + 1) + row % m->t + 1]);
    return 0;
}

// Names: * is "layers.L", < what comes into that layer, ^ "up" or "gate_up".
typedef struct module_row {
    const char *name; // the site of what it gives
    forward *forward;
    const char *grad;              // the site whose activation_grad is by what it gives
    const char *from;              // the site of what it takes, the tokens where NULL
    const char *joined;            // what is added to that first
    const char *from_grad;         // the site whose activation_grad is by what it takes
    const char *past;              // the site whose activation_grad reaches what it takes past this module
    const char *weights[MATRICES]; // the parameters it has; what a kind of model lacks is skipped, but never the first
} module_row;

static const module_row first = {.name = "embedding",
                                 .forward = forward_embedding,
                                 .grad = "embedding",
                                 .weights = {"embedding.weight", "position.weight"}};
static const module_row attention_half[] = {
    {"*.norm1", forward_norm, "*.norm1", "<", NULL, "<", "*.attention.out", {"*.norm1.weight", "*.norm1.bias"}},
    {"*.attention.qkv",
     forward_linear,
     "*.attention.qkv",
     "*.norm1",
     NULL,
     "*.norm1",
     NULL,
     {"*.attention.qkv.weight", "*.attention.qkv.bias"}},
    {"*.attention.core", forward_attention, "*.attention.core", "*.attention.qkv", NULL, "*.attention.qkv", NULL, {0}},
    {"*.attention.out",
     forward_linear,
     "*.attention.out",
     "*.attention.core",
     NULL,
     "*.attention.core",
     NULL,
     {"*.attention.out.weight", "*.attention.out.bias"}},
    {"*.norm2",
     forward_norm,
     "*.norm2",
     "<",
     "*.attention.out",
     "*.attention.out",
     "*",
     {"*.norm2.weight", "*.norm2.bias"}},
};
// By the branch and by the stream it joins the gradient is the same: where both are asked it is shown once, at *.
static const module_row dense_half[] = {
    {"*.mlp.^", forward_linear, "*.mlp.^", "*.norm2", NULL, "*.norm2", NULL, {"*.mlp.^.weight", "*.mlp.^.bias"}},
    {"*.mlp.act", forward_activation, "*.mlp.act", "*.mlp.^", NULL, "*.mlp.^", NULL, {0}},
    {"*.mlp.down", forward_linear, "*", "*.mlp.act", NULL, "*.mlp.act", NULL, {"*.mlp.down.weight", "*.mlp.down.bias"}},
};
static const module_row mixture_half[] = {
    {"*.mlp",
     forward_mixture,
     "*",
     "*.norm2",
     NULL,
     "*.norm2",
     NULL,
     {"*.mlp.router.weight", "*.mlp.experts.gate_up.weight", "*.mlp.experts.down.weight"}},
};
static const module_row last[] = {
    {"final_norm", forward_norm, "final_norm", "<", NULL, "<", NULL, {"final_norm.weight", "final_norm.bias"}},
    {"head", forward_head, "head", "final_norm", NULL, "final_norm", NULL, {"head.weight"}},
    {NULL, forward_loss, NULL, "head", NULL, "head", NULL, {0}},
};
#define COUNT(rows) (sizeof(rows) / sizeof *(rows))

// A pattern's name in LAYER; for what follows the layers LAYER is their number.
static const char *name_of(const checked *c, const char *pattern, size_t layer, char name[KEEL_SITE_NAME_BYTES]) {
    if (!pattern) return NULL;
    char *to = name;
    const char *end = name + KEEL_SITE_NAME_BYTES;
    for (; *pattern; pattern++) {
        const size_t left = (size_t)(end - to);
        if (*pattern == '*' || (*pattern == '<' && layer > 0))
            to += snprintf(to, left, "layers.%zu", *pattern == '<' ? layer - 1 : layer);
        else if (*pattern == '<')
            to += snprintf(to, left, "embedding");
        else if (*pattern == '^')
            to += snprintf(to, left, "%s", c->plain.gpt2 ? "up" : "gate_up");
        else
            to += snprintf(to, left, "%c", *pattern);
    }
    return name;
}

typedef struct pass { // of one module
    const checked *c;
    const module_row *module;
    size_t in, out;
    double *x, *y, *dy;
    double *w[MATRICES]; // in the flat weights
} pass;

// Sum of DY times what the module gives, and its own part of the loss.
static double pass_value(void *context) {
    pass *p = context;
    double sum = scale * p->module->forward(p->c, p->y, p->x, p->w, p->in, p->out);
    for (size_t i = 0; i < p->c->rows * p->out; i++) sum += p->dy[i] * p->y[i];
    return sum;
}

static double *copy_of(const view *v) {
    double *copy = calloc(v->n, sizeof *copy);
    assert_non_null(copy);
    for (size_t i = 0; i < v->n; i++) copy[i] = (double)v->data[i];
    return copy;
}

static void add_view(double *to, const view *v) {
    for (size_t i = 0; i < v->n; i++) to[i] += (double)v->data[i];
}

// What is tied is one parameter: its slopes add up in DW.
static const keel_param *param_of(const checked *c, const char *name) {
    if (name && !strcmp(name, "head.weight") && c->plain.config->tie_word_embeddings) name = "embedding.weight";
    return name ? rig_param(&c->rig, name) : NULL;
}

static void check_module(checked *c, const module_row *module, size_t layer) {
    char name_text[KEEL_SITE_NAME_BYTES], text[KEEL_SITE_NAME_BYTES];
    const char *name = name_of(c, module->name, layer, name_text);
    if (!name) name = "loss";
    pass p = {.c = c, .module = module};
    const keel_param *params[MATRICES];
    for (size_t k = 0; k < MATRICES; k++) {
        params[k] = param_of(c, name_of(c, module->weights[k], layer, text));
        if (params[k]) p.w[k] = c->w + params[k]->offset;
    }
    assert_true(params[0] || !module->weights[0]);
    if (module->from) {
        const view *from = view_of(c, name_of(c, module->from, layer, text), KEEL_ACTIVATION);
        p.x = copy_of(from);
        p.in = from->n / c->rows;
        assert_true(p.in > 0);
        if (module->joined) add_view(p.x, view_of(c, name_of(c, module->joined, layer, text), KEEL_ACTIVATION));
    }
    const float *given = keel_model_losses(c->rig.model);
    if (module->name) {
        const view *output = view_of(c, name, KEEL_ACTIVATION);
        const view *grad = view_of(c, name_of(c, module->grad, layer, text), KEEL_ACTIVATION_GRAD);
        given = output->data;
        p.out = output->n / c->rows;
        p.dy = copy_of(grad);
    } else {
        p.out = 1;
        p.dy = calloc(c->rows, sizeof *p.dy);
        assert_non_null(p.dy);
        for (size_t i = 0; i < c->rows; i++) p.dy[i] = scale;
    }
    p.y = calloc(c->rows * p.out, sizeof *p.y);
    assert_non_null(p.y);

    pass_value(&p);
    compare(c, "forward", name, given, p.y, c->rows * p.out, module_bound);
    if (p.x) {
        const size_t n = c->rows * p.in;
        double *dx = calloc(n, sizeof *dx);
        assert_non_null(dx);
        if (module->past) add_view(dx, view_of(c, name_of(c, module->past, layer, text), KEEL_ACTIVATION_GRAD));
        add_slopes(c, name, pass_value, &p, p.x, n, dx);
        const view *got = view_of(c, name_of(c, module->from_grad, layer, text), KEEL_ACTIVATION_GRAD);
        compare(c, "gradient by its input", name, got->data, dx, n, module_bound);
        free(dx);
    }
    for (size_t k = 0; k < MATRICES; k++)
        if (params[k]) add_slopes(c, name, pass_value, &p, p.w[k], params[k]->numel, c->dw + params[k]->offset);
    free(p.x);
    free(p.y);
    free(p.dy);
}

// What leaves a layer is what came in and both branches.
static void check_stream(const checked *c, size_t layer) {
    char text[KEEL_SITE_NAME_BYTES];
    double *stream = copy_of(view_of(c, name_of(c, "<", layer, text), KEEL_ACTIVATION));
    add_view(stream, view_of(c, name_of(c, "*.attention.out", layer, text), KEEL_ACTIVATION));
    add_view(stream, view_of(c, name_of(c, c->plain.experts ? "*.mlp" : "*.mlp.down", layer, text), KEEL_ACTIVATION));
    const view *got = view_of(c, name_of(c, "*", layer, text), KEEL_ACTIVATION);
    compare(c, "forward", text, got->data, stream, got->n, module_bound);
    free(stream);
}

static void compare_parameters(const checked *c, double bound) {
    size_t count;
    const keel_param *params = keel_model_params(c->rig.model, &count);
    for (size_t i = 0; i < count; i++)
        compare(c, "gradient", params[i].name, c->rig.grad + params[i].offset, c->dw + params[i].offset,
                params[i].numel, bound);
}

// Every module from what was seen of it: an error in one does not hide in another.
static void check_modules(const char *label, const keel_model_config *config, size_t batch) {
    checked c;
    open_checked(label, config, batch, &c);
    const size_t layers = (size_t)config->num_layers;
    const bool mixture = c.plain.experts > 0;
    check_module(&c, &first, 0);
    for (size_t l = 0; l < layers; l++) {
        for (size_t k = 0; k < COUNT(attention_half); k++) check_module(&c, &attention_half[k], l);
        for (size_t k = 0; k < COUNT(dense_half) && !mixture; k++) check_module(&c, &dense_half[k], l);
        for (size_t k = 0; k < COUNT(mixture_half) && mixture; k++) check_module(&c, &mixture_half[k], l);
        check_stream(&c, l);
    }
    for (size_t k = 0; k < COUNT(last); k++) check_module(&c, &last[k], layers);
    compare_parameters(&c, module_bound);
    close_checked(&c);
}

static double model_value(void *context) {
    const checked *c = context;
    double routed;
    const double loss = plain_batch_loss(&c->plain, c->tokens, c->batch, &routed);
    return scale * (loss + routed);
}

// Every parameter of the whole model.
static void check_model(const char *label, const keel_model_config *config, size_t batch) {
    checked c;
    size_t count;
    open_checked(label, config, batch, &c);
    const keel_param *params = keel_model_params(c.rig.model, &count);
    for (size_t i = 0; i < count; i++)
        add_slopes(&c, params[i].name, model_value, &c, c.w + params[i].offset, params[i].numel,
                   c.dw + params[i].offset);
    compare_parameters(&c, model_bound);
    close_checked(&c);
}

// ---- the models ----

static const keel_model_config gpt2 = {
    .model_type = KEEL_MODEL_GPT2,
    .vocab_size = 19,
    .seq_length = 7,
    .hidden_size = 15, // heads of 5: nothing a multiple of anything
    .num_layers = 2,
    .num_heads = 3,
    .intermediate_size = 21,
    .layer_norm_epsilon = 1e-5,
    .tie_word_embeddings = true,
    .initializer_range = 0.1,
};
static const keel_model_config llama = {
    .model_type = KEEL_MODEL_LLAMA,
    .vocab_size = 19,
    .seq_length = 7,
    .hidden_size = 16, // heads of 4, two of them to each of keys and values
    .num_layers = 2,
    .num_heads = 4,
    .n_kv_heads = 2,
    .intermediate_size = 13,
    .rms_norm_eps = 1e-6,
    .theta = 100, // turns all pairs within the sequence
    .initializer_range = 0.1,
};

static keel_model_config with_experts(double capacity_factor, bool norm_topk_prob) {
    keel_model_config config = llama;
    config.moe = (keel_moe_config){.expert_num = 5,
                                   .num_experts_chosen = 2,
                                   .capacity_factor = capacity_factor,
                                   .aux_loss_factor = 0.3,
                                   .z_loss_factor = 0.1,
                                   .norm_topk_prob = norm_topk_prob,
                                   .use_gmm = true,
                                   .use_fused_ops_permute = true};
    return config;
}

static keel_model_config untied(keel_model_config config, bool tied) {
    config.tie_word_embeddings = tied;
    return config;
}

// As long as several tiles of queries and of keys.
static keel_model_config several_tiles(keel_model_config config) {
    config.seq_length = 70;
    config.hidden_size = 8;
    config.num_heads = 2;
    if (config.n_kv_heads) config.n_kv_heads = 1;
    config.num_layers = 1;
    config.intermediate_size = 6;
    return config;
}

static void test_modules(void **state) {
    (void)state;
    const keel_model_config gpt2_untied = untied(gpt2, false), llama_tied = untied(llama, true);
    check_modules("gpt2", &gpt2, 2);
    check_modules("gpt2 untied", &gpt2_untied, 1);
    check_modules("llama", &llama, 2);
    check_modules("llama tied", &llama_tied, 1);
}

static void test_experts(void **state) {
    (void)state;
    const keel_model_config dropless = with_experts(0, true), capacity = with_experts(0.8, false);
    check_modules("experts", &dropless, 2);
    check_modules("experts with a capacity", &capacity, 2);
    check_model("experts", &dropless, 1);
    check_model("experts with a capacity", &capacity, 1);
}

static void test_tiles(void **state) {
    (void)state;
    const keel_model_config long_gpt2 = several_tiles(gpt2), long_llama = several_tiles(llama);
    check_modules("gpt2 tiles", &long_gpt2, 1);
    check_modules("llama tiles", &long_llama, 1);
}

static void test_models(void **state) {
    (void)state;
    const keel_model_config gpt2_untied = untied(gpt2, false), llama_tied = untied(llama, true);
    check_model("gpt2", &gpt2, 2);
    check_model("gpt2 untied", &gpt2_untied, 1);
    check_model("llama", &llama, 2);
    check_model("llama tied", &llama_tied, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modules),
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
