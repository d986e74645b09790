#include "train/model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/model/attention.h"
#include "train/model/embedding.h"
#include "train/model/head.h"
#include "train/model/mlp.h"
#include "train/model/model_state.h"
#include "train/model/norm.h"
#include "train/model/parameters.h"
#include "train/model/places.h"
#include "train/model/random.h"

// The format in which products take a parameter. The embedding rounds the rows it looks up; a tied table is the head's.
static keel_precision taken_as(const keel_model *m, const keel_param *p) {
    if (strcmp(p->module, "embedding") != 0) return p->precision;
    return m->context.tied && p->offset == m->parameters.head.weight ? m->context.formats.head : KEEL_FLOAT32;
}

static bool rounds_weights(const keel_model *m) {
    for (size_t i = 0; i < m->parameters.count; i++)
        if (taken_as(m, &m->parameters.list[i]) != KEEL_FLOAT32) return true;
    return false;
}

// Every piece of memory. Runs twice: to count and to give.
static void plan(keel_model *m, keel_arena *arena) {
    keel_context *c = &m->context;
    size_t n = c->rows * c->hidden;
    c->master = keel_arena_take(arena, m->parameters.numel);
    c->weights = rounds_weights(m) ? keel_arena_take(arena, m->parameters.numel) : c->master;
    keel_context_plan(c, arena);
    keel_attention_plan(c, arena, &m->attention);
    for (size_t l = 0; l < c->layers; l++) {
        keel_layer *layer = &m->layers[l];
        keel_join_plan(c, arena, &layer->join1.state);
        keel_attention_plan_state(c, arena, &layer->attention.state);
        keel_join_plan(c, arena, &layer->join2.state);
        keel_mlp_plan_state(c, arena, &layer->mlp.state);
    }
    keel_join_plan(c, arena, &m->last.state);
    keel_head_plan(c, arena, &m->head);
    m->branch = keel_arena_take(arena, n);
    m->dstream = keel_arena_take(arena, n);
    m->dnarrow = keel_arena_take(arena, n);
    m->dwide = keel_arena_take(arena, c->rows * c->sum_width);
    m->dact = c->gpt2 ? m->dwide : keel_arena_take(arena, c->rows * c->intermediate);
}

// Layer L's first join takes in the MLP of the layer below, the last join that of the last layer.
static void connect(keel_model *m) {
    const keel_parameters *p = &m->parameters;
    size_t layers = m->context.layers;
    for (size_t l = 0; l <= layers; l++) {
        keel_join *join = l < layers ? &m->layers[l].join1 : &m->last;
        const keel_place_taps *norm = l < layers ? &m->places.layers[l][KEEL_PLACE_NORM1] : &m->places.final_norm;
        join->norm = l < layers ? &p->layers[l].norm1 : &p->final_norm;
        join->taken_as = l < layers ? m->context.formats.compute : m->context.formats.head;
        join->norm_tap = norm->value;
        join->norm_grad_tap = norm->grad;
        if (l == 0) {
            join->stream_grad_tap = m->places.embedding.grad;
            continue;
        }
        const keel_place_taps *below = m->places.layers[l - 1];
        join->branch = &p->layers[l - 1].down;
        join->branch_tap = below[KEEL_PLACE_DOWN].value;
        join->branch_grad_tap = below[KEEL_PLACE_DOWN].grad;
        join->stream_tap = below[KEEL_PLACE_BLOCK].value;
        join->stream_grad_tap = below[KEEL_PLACE_BLOCK].grad;
        keel_taps_pair(join->branch_grad_tap, join->stream_grad_tap);
    }
    for (size_t l = 0; l < layers; l++) {
        keel_layer *layer = &m->layers[l];
        const keel_place_taps *taps = m->places.layers[l];
        layer->params = &p->layers[l];
        layer->join2.norm = &layer->params->norm2;
        layer->join2.taken_as = m->context.formats.compute;
        layer->join2.branch = &layer->params->out;
        layer->join2.branch_tap = taps[KEEL_PLACE_OUT].value;
        layer->join2.branch_grad_tap = taps[KEEL_PLACE_OUT].grad;
        layer->join2.norm_tap = taps[KEEL_PLACE_NORM2].value;
        layer->join2.norm_grad_tap = taps[KEEL_PLACE_NORM2].grad;
        layer->attention.qkv = &layer->params->qkv;
        layer->attention.qkv_tap = taps[KEEL_PLACE_QKV].value;
        layer->attention.qkv_grad_tap = taps[KEEL_PLACE_QKV].grad;
        layer->attention.core_tap = taps[KEEL_PLACE_CORE].value;
        layer->attention.logit_tap = m->places.logits[l];
        layer->attention.core_grad_tap = taps[KEEL_PLACE_CORE].grad;
        layer->mlp.up = &layer->params->up;
        layer->mlp.up_tap = taps[KEEL_PLACE_UP].value;
        layer->mlp.up_grad_tap = taps[KEEL_PLACE_UP].grad;
        layer->mlp.act_tap = taps[KEEL_PLACE_ACT].value;
        layer->mlp.act_grad_tap = taps[KEEL_PLACE_ACT].grad;
    }
    m->embedding.token = p->token_embedding;
    m->embedding.position = p->position_embedding;
    m->embedding.tap = m->places.embedding.value;
    m->head.linear = &p->head;
    m->head.tap = m->places.head.value;
    m->head.grad_tap = m->places.head.grad;
}

static keel_status check_mesh(const keel_mesh *mesh) {
    if (mesh->tp == 1 && mesh->pp == 1 && mesh->ep == 1) return KEEL_OK;
    return keel_fail(KEEL_ERR_CONFIG,
                     "parallel_config: model_parallel %u, pipeline_stage %u, expert_parallel %u: this trainer is data "
                     "parallel, all must be 1",
                     mesh->tp, mesh->pp, mesh->ep);
}

keel_status keel_model_open(const keel_model_plan *given, keel_model **model) {
    const keel_model_config *config = given->config;
    keel_taps *taps = given->taps;
    keel_status status = check_mesh(given->mesh);
    if (status) return status;
    keel_model *m = calloc(1, sizeof *m);
    if (!m) return keel_fail(KEEL_ERR_MEMORY, "no memory for the model");
    m->probe = keel_taps_probe(taps);
    m->initializer_range = config->initializer_range;
    status = keel_context_init(config, given->micro_batch, keel_taps_threads(taps), given->mesh, &m->context);
    if (status == KEEL_OK) status = keel_parameters_build(&m->context, &m->parameters);
    if (status == KEEL_OK) status = keel_places_open(&m->context, taps, &m->places);
    if (status != KEEL_OK) goto failed;
    m->layers = calloc(m->context.layers, sizeof *m->layers);
    m->tokens = calloc(m->context.batch * (m->context.seq + 1), sizeof *m->tokens);
    if (!m->layers || !m->tokens) {
        status = keel_fail(KEEL_ERR_MEMORY, "no memory for %zu layers", m->context.layers);
        goto failed;
    }
    plan(m, &m->arena);
    status = keel_arena_allocate(&m->arena);
    if (status != KEEL_OK) goto failed;
    plan(m, &m->arena);
    m->context.clock = &m->clock;
    connect(m);
    keel_position_init(&m->context, &m->attention.position);
    *model = m;
    return KEEL_OK;
failed:
    keel_model_close(m);
    return status;
}

void keel_model_close(keel_model *model) {
    if (!model) return;
    keel_parameters_free(&model->parameters);
    keel_places_close(&model->places);
    keel_arena_free(&model->arena);
    free(model->layers);
    free(model->tokens);
    free(model);
}

const keel_param *keel_model_params(const keel_model *model, size_t *count) {
    *count = model->parameters.count;
    return model->parameters.list;
}

const keel_hf_tensor *keel_model_hf_tensors(const keel_model *model, size_t *count) {
    *count = model->parameters.hf_count;
    return model->parameters.hf;
}

size_t keel_model_numel(const keel_model *model) {
    return model->parameters.numel;
}
float *keel_model_weights(keel_model *model) {
    return model->context.master;
}

void keel_model_take_weights(keel_model *model) {
    const keel_context *c = &model->context;
    enum { PIECE = 16 << 10 };
    for (size_t i = 0; c->weights != c->master && i < model->parameters.count; i++) {
        const keel_param *p = &model->parameters.list[i];
        const keel_precision precision = taken_as(model, p);
#pragma omp parallel for schedule(static) num_threads(c->threads) if (p->numel > PIECE)
        for (size_t at = 0; at < p->numel; at += PIECE)
            keel_round_copy(precision, c->weights + p->offset + at, c->master + p->offset + at,
                            p->numel - at < PIECE ? p->numel - at : PIECE);
    }
}

size_t keel_model_bytes(const keel_model *model) {
    return model->arena.size;
}
const float *keel_model_losses(const keel_model *model) {
    return model->head.losses;
}

const char *keel_part_name(keel_part part) {
    static const char *const names[KEEL_PART_COUNT] = {
        [KEEL_PART_EMBEDDING] = "embedding",
        [KEEL_PART_NORM] = "norm",
        [KEEL_PART_PRODUCTS] = "products",
        [KEEL_PART_ATTENTION] = "attention",
        [KEEL_PART_ACTIVATION] = "activation",
        [KEEL_PART_HEAD] = "head",
        [KEEL_PART_LOSS] = "loss",
    };
    return names[part];
}

void keel_model_seconds(const keel_model *model, double seconds[KEEL_PART_COUNT]) {
    memcpy(seconds, model->clock.seconds, sizeof model->clock.seconds);
}

double keel_model_flops(const keel_model *model) {
    const keel_context *c = &model->context;
    double rows = (double)c->rows, width = (double)(c->heads * c->head_size);
    double weights = (double)c->hidden * (double)(c->qkv_size + c->hidden + c->up_size + c->intermediate);
    double attention = (double)c->batch * (double)c->seq * (double)(c->seq + 1) / 2 * width * 2;
    double products = rows * weights + attention;
    double forward = (double)c->layers * products + rows * (double)c->hidden * (double)c->vocab;
    return 3 * 2 * forward;
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

// A parameter's values depend on nothing but the seed, its place in the whole model and theirs in the whole parameter.
static void init_random(const keel_model *model, const keel_param *p, uint64_t seed, double deviation) {
    const uint64_t stream = keel_random_stream(seed, p->place);
    const size_t cols = keel_param_cols(p);
    for (size_t i = 0; i < p->piece_count; i++) {
        const keel_piece *piece = &p->pieces[i];
        float *to = model->context.master + p->offset + piece->local_offset;
        const bool contiguous = piece->cols == cols && piece->local_stride == cols;
        const size_t rows = contiguous ? 1 : piece->rows, n = contiguous ? piece->rows * cols : piece->cols;
#pragma omp parallel for schedule(static) if (rows > 1)
        for (size_t r = 0; r < rows; r++)
            keel_random_normal(stream, (piece->row + r) * cols + piece->col, deviation, to + r * piece->local_stride,
                               n);
    }
}

void keel_model_init(keel_model *model, uint64_t seed) {
    double range = model->initializer_range;
    for (size_t i = 0; i < model->parameters.count; i++) {
        const keel_param *p = &model->parameters.list[i];
        float *w = model->context.master + p->offset;
        bool residual = ends_with(p->name, ".attention.out.weight") || ends_with(p->name, ".mlp.down.weight");
        double deviation = residual ? range / sqrt(2.0 * (double)model->context.layers) : range;
        float constant = !strcmp(p->module, "norm") && ends_with(p->name, ".weight") ? 1.0f : 0.0f;
        for (size_t k = 0; p->ndim == 1 && k < p->numel; k++) w[k] = constant;
        if (p->ndim > 1) init_random(model, p, seed, deviation);
    }
}

static keel_status check_tokens(const keel_model *m, const uint32_t *tokens) {
    size_t width = m->context.seq + 1;
    for (size_t i = 0; i < m->context.batch * width; i++)
        if (tokens[i] >= m->context.vocab)
            return keel_fail(KEEL_ERR_FORMAT, "token %u at sequence %zu, position %zu is not below vocab_size %zu",
                             tokens[i], i / width, i % width, m->context.vocab);
    return KEEL_OK;
}

keel_status keel_model_forward(keel_model *model, const uint32_t *tokens, double scale, float *grad, double *loss_sum) {
    keel_status status = check_tokens(model, tokens);
    if (status != KEEL_OK) return status;
    keel_context *c = &model->context;
    c->grad = grad;
    memcpy(model->tokens, tokens, c->batch * (c->seq + 1) * sizeof *tokens);
    keel_lap_begin(c);
    keel_embedding_forward(c, &model->embedding, model->tokens, &model->layers[0].join1);
    for (size_t l = 0; l < c->layers; l++) {
        const keel_layer *layer = &model->layers[l];
        const keel_layer_params *p = layer->params;
        const keel_join *next = l + 1 < c->layers ? &model->layers[l + 1].join1 : &model->last;
        keel_linear_forward(c, &p->qkv, c->rows, layer->join1.state.normed, layer->attention.state.qkv);
        keel_lap(c, KEEL_PART_PRODUCTS);
        keel_attention_forward(c, &model->attention, &layer->attention);
        keel_linear_forward(c, &p->out, c->rows, layer->attention.state.core, model->branch);
        keel_lap(c, KEEL_PART_PRODUCTS);
        keel_join_forward(c, &layer->join2, model->branch, layer->join1.state.stream);
        keel_linear_forward(c, &p->up, c->rows, layer->join2.state.normed, layer->mlp.state.up);
        keel_lap(c, KEEL_PART_PRODUCTS);
        keel_mlp_activate(c, &layer->mlp);
        keel_linear_forward(c, &p->down, c->rows, layer->mlp.state.act, model->branch);
        keel_lap(c, KEEL_PART_PRODUCTS);
        keel_join_forward(c, next, model->branch, layer->join2.state.stream);
        keel_poll(model->probe);
    }
    *loss_sum = keel_head_run(c, &model->head, model->last.state.normed, model->tokens, scale);
    keel_poll(model->probe);
    return KEEL_OK;
}

// The receiver's time is not the model's.
static void tell(const keel_context *c, keel_grad_ready *ready, void *context, size_t begin) {
    if (!ready) return;
    ready(context, begin);
    keel_lap_begin(c);
}

static void backward_layer(keel_model *model, const keel_layer *layer, keel_grad_ready *ready, void *context) {
    const keel_context *c = &model->context;
    const keel_layer_params *p = layer->params;
    size_t n = c->rows;
    keel_linear_backward_weight(c, &p->down, n, layer->mlp.state.act, model->dstream, false);
    keel_lap(c, KEEL_PART_PRODUCTS);
    tell(c, ready, context, p->down.weight);
    keel_linear_backward_input(c, &p->down, n, model->dstream, model->dact);
    keel_lap(c, KEEL_PART_PRODUCTS);
    keel_mlp_activate_backward(c, &layer->mlp, model->dact, model->dwide);
    keel_linear_backward_weight(c, &p->up, n, layer->join2.state.normed, model->dwide, false);
    keel_lap(c, KEEL_PART_PRODUCTS);
    tell(c, ready, context, p->up.weight);
    keel_linear_backward_input(c, &p->up, n, model->dwide, model->dnarrow);
    keel_lap(c, KEEL_PART_PRODUCTS);
    keel_join_backward(c, &layer->join2, model->dnarrow, model->dstream, false);
    keel_linear_backward_weight(c, &p->out, n, layer->attention.state.core, model->dstream, false);
    keel_lap(c, KEEL_PART_PRODUCTS);
    tell(c, ready, context, p->out.weight);
    keel_linear_backward_input(c, &p->out, n, model->dstream, model->dnarrow);
    keel_lap(c, KEEL_PART_PRODUCTS);
    keel_attention_backward(c, &model->attention, &layer->attention, model->dnarrow, model->dwide);
    keel_linear_backward_weight(c, &p->qkv, n, layer->join1.state.normed, model->dwide, false);
    keel_lap(c, KEEL_PART_PRODUCTS);
    tell(c, ready, context, p->qkv.weight);
    keel_linear_backward_input(c, &p->qkv, n, model->dwide, model->dnarrow);
    keel_lap(c, KEEL_PART_PRODUCTS);
    keel_join_backward(c, &layer->join1, model->dnarrow, model->dstream, false);
    tell(c, ready, context, p->norm1.weight);
    keel_poll(model->probe);
}

keel_status keel_model_backward(keel_model *model, keel_grad_ready *ready, void *context) {
    keel_context *c = &model->context;
    if (!c->grad)
        return keel_fail(KEEL_ERR_USAGE, "keel_model_backward without a forward pass that was given gradients");
    keel_lap_begin(c);
    if (!c->tied) tell(c, ready, context, model->parameters.head.weight);
    keel_join_backward(c, &model->last, model->head.dnormed, model->dstream, true);
    tell(c, ready, context, model->parameters.final_norm.weight);
    for (size_t l = c->layers; l-- > 0;) backward_layer(model, &model->layers[l], ready, context);
    keel_embedding_backward(c, &model->embedding, model->tokens, model->dstream);
    tell(c, ready, context, 0);
    c->grad = NULL;
    return KEEL_OK;
}
