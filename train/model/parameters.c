#include "train/model/parameters.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct builder {
    const keel_context *context;
    keel_parameters *out;
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
    return context->formats.compute;
}

// Appends a parameter [rows, cols], or [cols] if ROWS is 0; gives its offset.
static size_t add(builder *b, int32_t layer, const char *module, const char *name, size_t rows, size_t cols) {
    keel_parameters *p = b->out;
    p->list = grow(b, p->list, p->count, &p->capacity, sizeof *p->list);
    if (b->status != KEEL_OK) return KEEL_NO_PARAM;
    keel_param *param = &p->list[p->count++];
    *param = (keel_param){.layer = layer, .offset = p->numel, .ndim = rows ? 2 : 1, .decay = rows > 0};
    if (layer < 0)
        snprintf(param->name, sizeof param->name, "%s", name);
    else
        snprintf(param->name, sizeof param->name, "layers.%d.%s", layer, name);
    snprintf(param->module, sizeof param->module, "%s", module);
    param->precision = precision_of(b->context, module);
    param->shape[0] = rows ? rows : cols;
    if (rows) param->shape[1] = cols;
    param->numel = (rows ? rows : 1) * cols;
    p->numel += param->numel;
    return param->offset;
}

// What Hugging Face calls the piece of [rows, cols] at OFFSET.
KEEL_PRINTF(5, 6) static void name_hf(builder *b, size_t offset, size_t rows, size_t cols, const char *format, ...) {
    keel_parameters *p = b->out;
    p->hf = grow(b, p->hf, p->hf_count, &p->hf_capacity, sizeof *p->hf);
    if (b->status != KEEL_OK) return;
    keel_hf_tensor *t = &p->hf[p->hf_count++];
    *t = (keel_hf_tensor){.offset = offset, .ndim = rows ? 2 : 1, .shape = {rows ? rows : cols, rows ? cols : 0}};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(t->name, sizeof t->name, format, arguments);
    va_end(arguments);
}

static keel_norm add_norm(builder *b, int32_t layer, const char *name) {
    char full[64];
    keel_norm norm = {.bias = KEEL_NO_PARAM};
    snprintf(full, sizeof full, "%s.weight", name);
    norm.weight = add(b, layer, "norm", full, 0, b->context->hidden);
    if (!b->context->gpt2) return norm;
    snprintf(full, sizeof full, "%s.bias", name);
    norm.bias = add(b, layer, "norm", full, 0, b->context->hidden);
    return norm;
}

static keel_linear add_linear(builder *b, int32_t layer, const char *module, const char *name, size_t in, size_t out) {
    char full[64];
    bool gpt2 = b->context->gpt2;
    keel_linear linear = {.in = in, .out = out, .out_in = !gpt2, .bias = KEEL_NO_PARAM};
    snprintf(full, sizeof full, "%s.weight", name);
    linear.weight = add(b, layer, module, full, gpt2 ? in : out, gpt2 ? out : in);
    if (!gpt2) return linear;
    snprintf(full, sizeof full, "%s.bias", name);
    linear.bias = add(b, layer, module, full, 0, out);
    return linear;
}

static void name_gpt2_norm(builder *b, const keel_norm *norm, const char *prefix) {
    name_hf(b, norm->weight, 0, b->context->hidden, "%s.weight", prefix);
    name_hf(b, norm->bias, 0, b->context->hidden, "%s.bias", prefix);
}

static void name_gpt2_linear(builder *b, const keel_linear *linear, int layer, const char *name) {
    name_hf(b, linear->weight, linear->in, linear->out, "h.%d.%s.weight", layer, name);
    name_hf(b, linear->bias, 0, linear->out, "h.%d.%s.bias", layer, name);
}

static void name_gpt2_layer(builder *b, const keel_layer_params *p, int layer) {
    char prefix[64];
    snprintf(prefix, sizeof prefix, "h.%d.ln_1", layer);
    name_gpt2_norm(b, &p->norm1, prefix);
    name_gpt2_linear(b, &p->qkv, layer, "attn.c_attn");
    name_gpt2_linear(b, &p->out, layer, "attn.c_proj");
    snprintf(prefix, sizeof prefix, "h.%d.ln_2", layer);
    name_gpt2_norm(b, &p->norm2, prefix);
    name_gpt2_linear(b, &p->up, layer, "mlp.c_fc");
    name_gpt2_linear(b, &p->down, layer, "mlp.c_proj");
}

static void name_llama_layer(builder *b, const keel_layer_params *p, int layer) {
    const keel_context *c = b->context;
    size_t hidden = c->hidden, kv = c->kv_heads * c->head_size, f = c->intermediate;
    size_t q = p->qkv.weight, k = q + hidden * hidden, v = k + kv * hidden;
    name_hf(b, p->norm1.weight, 0, hidden, "model.layers.%d.input_layernorm.weight", layer);
    name_hf(b, q, hidden, hidden, "model.layers.%d.self_attn.q_proj.weight", layer);
    name_hf(b, k, kv, hidden, "model.layers.%d.self_attn.k_proj.weight", layer);
    name_hf(b, v, kv, hidden, "model.layers.%d.self_attn.v_proj.weight", layer);
    name_hf(b, p->out.weight, hidden, hidden, "model.layers.%d.self_attn.o_proj.weight", layer);
    name_hf(b, p->norm2.weight, 0, hidden, "model.layers.%d.post_attention_layernorm.weight", layer);
    name_hf(b, p->up.weight, f, hidden, "model.layers.%d.mlp.gate_proj.weight", layer);
    name_hf(b, p->up.weight + f * hidden, f, hidden, "model.layers.%d.mlp.up_proj.weight", layer);
    name_hf(b, p->down.weight, hidden, f, "model.layers.%d.mlp.down_proj.weight", layer);
}

static void add_layer(builder *b, int32_t layer, keel_layer_params *p) {
    const keel_context *c = b->context;
    p->norm1 = add_norm(b, layer, "norm1");
    p->qkv = add_linear(b, layer, "attention", "attention.qkv", c->hidden, c->qkv_size);
    p->out = add_linear(b, layer, "attention", "attention.out", c->hidden, c->hidden);
    p->norm2 = add_norm(b, layer, "norm2");
    p->up = add_linear(b, layer, "mlp", c->gpt2 ? "mlp.up" : "mlp.gate_up", c->hidden, c->up_size);
    p->down = add_linear(b, layer, "mlp", "mlp.down", c->intermediate, c->hidden);
    if (c->gpt2)
        name_gpt2_layer(b, p, layer);
    else
        name_llama_layer(b, p, layer);
}

keel_status keel_parameters_build(const keel_context *context, keel_parameters *parameters) {
    const keel_context *c = context;
    keel_parameters p = {.position_embedding = KEEL_NO_PARAM};
    builder b = {.context = c, .out = &p, .status = KEEL_OK};
    p.layers = calloc(c->layers, sizeof *p.layers);
    if (!p.layers) return keel_fail(KEEL_ERR_MEMORY, "no memory for %zu layers", c->layers);
    p.token_embedding = add(&b, -1, "embedding", "embedding.weight", c->vocab, c->hidden);
    name_hf(&b, p.token_embedding, c->vocab, c->hidden, c->gpt2 ? "wte.weight" : "model.embed_tokens.weight");
    if (c->gpt2) {
        p.position_embedding = add(&b, -1, "embedding", "position.weight", c->positions, c->hidden);
        name_hf(&b, p.position_embedding, c->positions, c->hidden, "wpe.weight");
    }
    for (size_t l = 0; l < c->layers; l++) add_layer(&b, (int32_t)l, &p.layers[l]);
    p.final_norm = add_norm(&b, -1, "final_norm");
    if (c->gpt2)
        name_gpt2_norm(&b, &p.final_norm, "ln_f");
    else
        name_hf(&b, p.final_norm.weight, 0, c->hidden, "model.norm.weight");
    p.head = (keel_linear){.in = c->hidden, .out = c->vocab, .out_in = true, .bias = KEEL_NO_PARAM};
    p.head.weight = c->tied ? p.token_embedding : add(&b, -1, "head", "head.weight", c->vocab, c->hidden);
    if (!c->tied) name_hf(&b, p.head.weight, c->vocab, c->hidden, "lm_head.weight");
    if (b.status != KEEL_OK) {
        keel_parameters_free(&p);
        return b.status;
    }
    *parameters = p;
    return KEEL_OK;
}

void keel_parameters_free(keel_parameters *parameters) {
    free(parameters->list);
    free(parameters->hf);
    free(parameters->layers);
    *parameters = (keel_parameters){0};
}
