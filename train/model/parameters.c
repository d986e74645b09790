#include "train/model/parameters.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "train/model/places.h"

typedef struct whole_sizes { // over all tensor ranks
    size_t queries, keys;    // H D and H_k D
    size_t intermediate, vocab;
} whole_sizes;

typedef struct builder {
    const keel_context *context;
    whole_sizes whole;
    keel_parameters *out;
    bool elsewhere;     // what follows belongs to another stage: it is counted only
    keel_status status; // of the first failure; what follows does nothing
} builder;

static void *grow(builder *b, void *list, size_t count, size_t *capacity, size_t item) {
    if (b->status != KEEL_OK || count < *capacity) return list;
    size_t more = *capacity ? 2 * *capacity : 64;
    void *memory = realloc(list, more * item);
    if (!memory) {
        b->status = keel_fail(KEEL_ERR_MEMORY, "no memory for the list of parameters");
        return list;
    }
    *capacity = more;
    return memory;
}

static keel_precision precision_of(const keel_context *context, const char *module) {
    if (!strcmp(module, "norm")) return context->formats.norm;
    if (!strcmp(module, "embedding")) return context->formats.embedding;
    if (!strcmp(module, "head")) return context->formats.head;
    if (!strcmp(module, "router")) return KEEL_FLOAT32;
    return context->formats.compute;
}

// How a parameter is shared out over the tensor ranks: along its rows or its columns, each block of them (queries, keys
// and values lie side by side) for itself. SIZE: of the whole blocks. EXPERTS: of so many such matrices, one after
// another, which are shared out over the expert-parallel ranks; 0: it is one.
typedef enum axis { UNCUT, ROWS, COLS } axis;
typedef struct share {
    axis axis;
    size_t count;
    size_t size[3];
    size_t experts;
} share;
static const share whole = {.axis = UNCUT, .count = 1};

// The pieces of PARAM, a matrix [ROWS, COLS] or several, that this rank holds, and by them its local shape.
static void cut(builder *b, keel_param *param, size_t rows, size_t cols, const share *by) {
    const keel_comm *tensor = &b->context->mesh->model_parallel;
    const size_t ranks = by->axis == UNCUT ? 1 : (size_t)tensor->size, rank = ranks > 1 ? (size_t)tensor->rank : 0;
    const keel_comm *expert = &b->context->mesh->expert_parallel;
    const bool shared = by->experts && expert->size > 1;
    const size_t matrices = by->experts ? b->context->local_experts : 1;
    const size_t first = by->experts ? matrices * (size_t)expert->rank : 0;
    param->cut =
        ranks > 1 ? (shared ? KEEL_CUT_EXPERT_TENSOR : KEEL_CUT_TENSOR) : (shared ? KEEL_CUT_EXPERT : KEEL_CUT_NONE);
    param->piece_count = ranks > 1 ? matrices * by->count : 1;
    param->pieces = calloc(param->piece_count, sizeof *param->pieces);
    if (!param->pieces) {
        b->status = keel_fail(KEEL_ERR_MEMORY, "no memory for the pieces of %s", param->name);
        return;
    }
    const size_t local_rows = by->axis == ROWS ? rows / ranks : rows,
                 local_cols = by->axis == COLS ? cols / ranks : cols;
    param->numel = matrices * local_rows * local_cols;
    param->shape[0] = matrices;
    param->shape[param->ndim - 1] = local_cols;
    if (param->ndim > 1) param->shape[param->ndim - 2] = local_rows;
    param->pieces[0] =
        (keel_piece){.local_stride = local_cols, .row = first * rows, .rows = matrices * rows, .cols = cols};
    for (size_t i = 0, begin = 0, local = 0; ranks > 1 && i < param->piece_count; i++) {
        const size_t block = i % by->count, matrix = i / by->count, row = (first + matrix) * rows;
        if (block == 0) begin = local = 0;
        const size_t size = by->size[block] / ranks, at = begin + rank * size, here = matrix * local_rows * local_cols;
        param->pieces[i] = by->axis == ROWS ? (keel_piece){here + local * cols, cols, row + at, 0, size, cols}
                                            : (keel_piece){here + local, local_cols, row, at, rows, size};
        begin += by->size[block];
        local += size;
    }
}

// Appends a parameter that is [rows, cols] in the whole, [cols] if ROWS is 0, or such a matrix for each expert; gives
// its offset, KEEL_NO_PARAM if it is elsewhere. ORDER: forward, of the place that its module's output is.
static size_t add(builder *b, int32_t layer, size_t order, const char *module, const char *name, size_t rows,
                  size_t cols, const share *by) {
    keel_parameters *p = b->out;
    const size_t numel = (by->experts ? by->experts : 1) * (rows ? rows : 1) * cols, place = p->whole_numel;
    const uint32_t number = p->whole_count++;
    p->whole_numel += numel;
    if (b->elsewhere) return KEEL_NO_PARAM;
    p->list = grow(b, p->list, p->count, &p->capacity, sizeof *p->list);
    if (b->status != KEEL_OK) return KEEL_NO_PARAM;
    keel_param *param = &p->list[p->count++];
    *param = (keel_param){.layer = layer,
                          .offset = p->numel,
                          .place = place,
                          .number = number,
                          .order = keel_places_back(b->context->layers, order),
                          .stage = (int32_t)b->context->stage.index,
                          .holders = 1,
                          .ndim = by->experts ? 3
                                  : rows      ? 2
                                              : 1,
                          .decay = rows > 0};
    if (layer < 0)
        snprintf(param->name, sizeof param->name, "%s", name);
    else
        snprintf(param->name, sizeof param->name, "layers.%d.%s", layer, name);
    snprintf(param->module, sizeof param->module, "%s", module);
    param->precision = precision_of(b->context, module);
    param->whole[0] = by->experts;
    param->whole[param->ndim - 1] = cols;
    if (rows) param->whole[param->ndim - 2] = rows;
    param->whole_numel = numel;
    cut(b, param, rows ? rows : 1, cols, by);
    p->numel += param->numel;
    return param->offset;
}

static size_t index_of(const keel_parameters *p, size_t offset) {
    size_t i = 0;
    while (i + 1 < p->count && p->list[i].offset != offset) i++;
    return i;
}

// What Hugging Face calls rows [ROW, ROW + ROWS) of the whole parameter at OFFSET; a vector if ROWS is 0.
KEEL_PRINTF(5, 6)
static void name_hf(builder *b, size_t offset, size_t row, size_t rows, const char *format, ...) {
    keel_parameters *p = b->out;
    if (b->elsewhere) return;
    p->hf = grow(b, p->hf, p->hf_count, &p->hf_capacity, sizeof *p->hf);
    if (b->status != KEEL_OK) return;
    keel_hf_tensor *t = &p->hf[p->hf_count++];
    *t = (keel_hf_tensor){
        .param = index_of(p, offset), .row = row, .rows = rows ? rows : 1, .ndim = rows ? 2 : 1, .shape = {rows}};
    t->shape[t->ndim - 1] = keel_param_cols(&p->list[t->param]);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(t->name, sizeof t->name, format, arguments);
    va_end(arguments);
}

static keel_norm add_norm(builder *b, int32_t layer, size_t order, const char *name) {
    char full[64];
    keel_norm norm = {.bias = KEEL_NO_PARAM};
    snprintf(full, sizeof full, "%s.weight", name);
    norm.weight = add(b, layer, order, "norm", full, 0, b->context->hidden, &whole);
    if (!b->context->gpt2) return norm;
    snprintf(full, sizeof full, "%s.bias", name);
    norm.bias = add(b, layer, order, "norm", full, 0, b->context->hidden, &whole);
    return norm;
}

// A product of the whole [IN, OUT]. BY cuts its outputs (COLS, and the bias with them) or its inputs (ROWS); LLaMA
// stores the transpose.
static keel_linear add_linear(builder *b, int32_t layer, size_t order, const char *module, const char *name, size_t in,
                              size_t out, const share *by) {
    char full[64];
    const bool gpt2 = b->context->gpt2;
    const size_t ranks = (size_t)b->context->mesh->model_parallel.size;
    keel_linear linear = {.in = by->axis == ROWS ? in / ranks : in,
                          .out = by->axis == COLS ? out / ranks : out,
                          .out_in = !gpt2,
                          .bias = KEEL_NO_PARAM};
    share stored = *by;
    if (!gpt2 && by->axis != UNCUT) stored.axis = by->axis == ROWS ? COLS : ROWS;
    snprintf(full, sizeof full, "%s.weight", name);
    linear.weight = add(b, layer, order, module, full, gpt2 ? in : out, gpt2 ? out : in, &stored);
    if (!gpt2) return linear;
    snprintf(full, sizeof full, "%s.bias", name);
    linear.bias = add(b, layer, order, module, full, 0, out, by->axis == COLS ? by : &whole);
    return linear;
}

static void name_gpt2_norm(builder *b, const keel_norm *norm, const char *prefix) {
    name_hf(b, norm->weight, 0, 0, "%s.weight", prefix);
    name_hf(b, norm->bias, 0, 0, "%s.bias", prefix);
}

// IN: rows of the whole product.
static void name_gpt2_linear(builder *b, const keel_linear *linear, size_t in, int layer, const char *name) {
    name_hf(b, linear->weight, 0, in, "h.%d.%s.weight", layer, name);
    name_hf(b, linear->bias, 0, 0, "h.%d.%s.bias", layer, name);
}

static void name_gpt2_layer(builder *b, const keel_layer_params *p, int layer) {
    char prefix[64];
    snprintf(prefix, sizeof prefix, "h.%d.ln_1", layer);
    name_gpt2_norm(b, &p->norm1, prefix);
    name_gpt2_linear(b, &p->qkv, b->context->hidden, layer, "attn.c_attn");
    name_gpt2_linear(b, &p->out, b->context->hidden, layer, "attn.c_proj");
    snprintf(prefix, sizeof prefix, "h.%d.ln_2", layer);
    name_gpt2_norm(b, &p->norm2, prefix);
    name_gpt2_linear(b, &p->up, b->context->hidden, layer, "mlp.c_fc");
    name_gpt2_linear(b, &p->down, b->whole.intermediate, layer, "mlp.c_proj");
}

// As Mixtral has it: w1 is the gate, w3 goes up, w2 down.
static void name_experts(builder *b, const keel_layer_params *p, int layer) {
    const size_t hidden = b->context->hidden, f = b->whole.intermediate, experts = b->context->experts;
    name_hf(b, p->router.weight, 0, experts, "model.layers.%d.block_sparse_moe.gate.weight", layer);
    for (size_t e = 0; e < experts; e++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "model.layers.%d.block_sparse_moe.experts.%zu", layer, e);
        name_hf(b, p->up.weight, 2 * e * f, f, "%s.w1.weight", prefix);
        name_hf(b, p->up.weight, (2 * e + 1) * f, f, "%s.w3.weight", prefix);
        name_hf(b, p->down.weight, e * hidden, hidden, "%s.w2.weight", prefix);
    }
}

static void name_llama_layer(builder *b, const keel_layer_params *p, int layer) {
    const size_t hidden = b->context->hidden, q = b->whole.queries, kv = b->whole.keys, f = b->whole.intermediate;
    name_hf(b, p->norm1.weight, 0, 0, "model.layers.%d.input_layernorm.weight", layer);
    name_hf(b, p->qkv.weight, 0, q, "model.layers.%d.self_attn.q_proj.weight", layer);
    name_hf(b, p->qkv.weight, q, kv, "model.layers.%d.self_attn.k_proj.weight", layer);
    name_hf(b, p->qkv.weight, q + kv, kv, "model.layers.%d.self_attn.v_proj.weight", layer);
    name_hf(b, p->out.weight, 0, hidden, "model.layers.%d.self_attn.o_proj.weight", layer);
    name_hf(b, p->norm2.weight, 0, 0, "model.layers.%d.post_attention_layernorm.weight", layer);
    if (b->context->experts) {
        name_experts(b, p, layer);
        return;
    }
    name_hf(b, p->up.weight, 0, f, "model.layers.%d.mlp.gate_proj.weight", layer);
    name_hf(b, p->up.weight, f, f, "model.layers.%d.mlp.up_proj.weight", layer);
    name_hf(b, p->down.weight, 0, hidden, "model.layers.%d.mlp.down_proj.weight", layer);
}

static void add_layer(builder *b, int32_t layer, keel_layer_params *p) {
    const keel_context *c = b->context;
    const size_t q = b->whole.queries, kv = b->whole.keys, f = b->whole.intermediate;
    const share qkv = {.axis = COLS, .count = 3, .size = {q, kv, kv}};
    const share up = {.axis = COLS, .count = c->gpt2 ? 1 : 2, .size = {f, f}, .experts = c->experts};
    const share out = {.axis = ROWS, .count = 1, .size = {q}};
    const share down = {.axis = ROWS, .count = 1, .size = {f}, .experts = c->experts};
    const char *const module = c->experts ? "expert" : "mlp";
    const char *const up_name = c->experts ? "mlp.experts.gate_up" : c->gpt2 ? "mlp.up" : "mlp.gate_up";
    const char *const down_name = c->experts ? "mlp.experts.down" : "mlp.down";
    const size_t first = keel_places_order((size_t)layer, 0);
    p->norm1 = add_norm(b, layer, first + KEEL_PLACE_NORM1, "norm1");
    p->qkv = add_linear(b, layer, first + KEEL_PLACE_QKV, "attention", "attention.qkv", c->hidden, q + 2 * kv, &qkv);
    p->out = add_linear(b, layer, first + KEEL_PLACE_OUT, "attention", "attention.out", q, c->hidden, &out);
    p->norm2 = add_norm(b, layer, first + KEEL_PLACE_NORM2, "norm2");
    if (c->experts)
        p->router =
            add_linear(b, layer, first + KEEL_PLACE_ROUTER, "router", "mlp.router", c->hidden, c->experts, &whole);
    p->up = add_linear(b, layer, first + KEEL_PLACE_UP, module, up_name, c->hidden, up.count * f, &up);
    p->down = add_linear(b, layer, first + KEEL_PLACE_DOWN, module, down_name, f, c->hidden, &down);
    if (c->gpt2)
        name_gpt2_layer(b, p, layer);
    else
        name_llama_layer(b, p, layer);
}

static whole_sizes whole_of(const keel_context *c) {
    const size_t ranks = (size_t)c->mesh->model_parallel.size;
    return (whole_sizes){.queries = c->core_size * ranks,
                         .keys = c->kv_heads * c->head_size * ranks,
                         .intermediate = c->intermediate * ranks,
                         .vocab = c->vocab * ranks};
}

// The tables before the first layer. A tied one is on the last stage as well, as the head's.
static void add_embedding(builder *b) {
    const keel_context *c = b->context;
    keel_parameters *p = b->out;
    const bool first = keel_stage_is_first(&c->stage), last = keel_stage_is_last(&c->stage),
               copy = !first && c->tied && last;
    const share words = {.axis = ROWS, .count = 1, .size = {b->whole.vocab}};
    b->elsewhere = !first && !copy;
    const size_t head = keel_places_order(c->layers, 0) + 1;
    p->token_embedding =
        add(b, -1, copy ? head : 0, "embedding", "embedding.weight", b->whole.vocab, c->hidden, &words);
    name_hf(b, p->token_embedding, 0, b->whole.vocab, c->gpt2 ? "wte.weight" : "model.embed_tokens.weight");
    if (b->status == KEEL_OK && c->tied && first != last) {
        p->list[0].stage = 0;
        p->list[0].holder = copy;
        p->list[0].holders = 2;
    }
    b->elsewhere = !first;
    if (!c->gpt2) return;
    p->position_embedding = add(b, -1, 0, "embedding", "position.weight", c->positions, c->hidden, &whole);
    name_hf(b, p->position_embedding, 0, c->positions, "wpe.weight");
}

static void add_layers(builder *b) {
    const keel_context *c = b->context;
    for (size_t l = 0; l < c->layers; l++) {
        keel_layer_params elsewhere;
        b->elsewhere = l < c->stage.first || l >= c->stage.first + c->stage.layers;
        add_layer(b, (int32_t)l, b->elsewhere ? &elsewhere : &b->out->layers[l - c->stage.first]);
    }
}

static void add_head(builder *b) {
    const keel_context *c = b->context;
    keel_parameters *p = b->out;
    const share words = {.axis = ROWS, .count = 1, .size = {b->whole.vocab}};
    const size_t behind = keel_places_order(c->layers, 0);
    b->elsewhere = !keel_stage_is_last(&c->stage);
    p->final_norm = add_norm(b, -1, behind, "final_norm");
    if (c->gpt2)
        name_gpt2_norm(b, &p->final_norm, "ln_f");
    else
        name_hf(b, p->final_norm.weight, 0, 0, "model.norm.weight");
    p->head = (keel_linear){.in = c->hidden, .out = c->vocab, .out_in = true, .bias = KEEL_NO_PARAM};
    p->head.weight =
        c->tied ? p->token_embedding : add(b, -1, behind + 1, "head", "head.weight", b->whole.vocab, c->hidden, &words);
    if (!c->tied) name_hf(b, p->head.weight, 0, b->whole.vocab, "lm_head.weight");
}

keel_status keel_parameters_build(const keel_context *context, keel_parameters *parameters) {
    keel_parameters p = {.position_embedding = KEEL_NO_PARAM};
    builder b = {.context = context, .whole = whole_of(context), .out = &p, .status = KEEL_OK};
    p.layers = calloc(context->stage.layers, sizeof *p.layers);
    if (!p.layers) return keel_fail(KEEL_ERR_MEMORY, "no memory for %zu layers", context->stage.layers);
    add_embedding(&b);
    add_layers(&b);
    add_head(&b);
    if (b.status != KEEL_OK) {
        keel_parameters_free(&p);
        return b.status;
    }
    *parameters = p;
    return KEEL_OK;
}

void keel_parameters_free(keel_parameters *parameters) {
    for (size_t i = 0; i < parameters->count; i++) free(parameters->list[i].pieces);
    free(parameters->list);
    free(parameters->hf);
    free(parameters->layers);
    *parameters = (keel_parameters){0};
}
