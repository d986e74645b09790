#include "train/model/context.h"

#include <math.h>
#include <string.h>

#include "train/tensor/ops.h"

static size_t greater(size_t a, size_t b) {
    return a > b ? a : b;
}

// Sizes of the whole become this rank's.
static keel_status share_out(keel_context *c) {
    const size_t ranks = (size_t)c->mesh->model_parallel.size, rank = (size_t)c->mesh->model_parallel.rank;
    const struct {
        const char *name;
        size_t *size;
    } sizes[] = {{"num_heads", &c->heads},
                 {"n_kv_heads", &c->kv_heads},
                 {"intermediate_size", &c->intermediate},
                 {"vocab_size", &c->vocab}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (*sizes[i].size % ranks)
            return keel_yaml_fail_key(c->mesh->settings, "model_parallel", "%zu does not divide %s %zu", ranks,
                                      sizes[i].name, *sizes[i].size);
        *sizes[i].size /= ranks;
    }
    c->first_token = rank * c->vocab;
    c->own_rows = c->rows;
    if (!c->mesh->sequence) return KEEL_OK;
    if (c->rows % ranks)
        return keel_yaml_fail_key(c->mesh->settings, "use_seq_parallel",
                                  "model_parallel %zu does not divide the %zu rows of a "
                                  "micro-batch, batch_size %zu x seq_length %zu",
                                  ranks, c->rows, c->batch, c->seq);
    c->own_rows /= ranks;
    c->own_first = rank * c->own_rows;
    return KEEL_OK;
}

static size_t blocks_of(size_t rows) {
    return (rows + KEEL_BLOCK_ROWS - 1) / KEEL_BLOCK_ROWS;
}

static keel_status count_experts(const keel_moe_config *moe, keel_context *c) {
    const bool any = moe->expert_num > 1;
    c->moe = *moe;
    c->experts = any ? (size_t)moe->expert_num : 0;
    c->local_experts = c->experts / (size_t)c->mesh->expert_parallel.size;
    c->chosen = any ? (size_t)moe->num_experts_chosen : 0;
    if (any && (c->gpt2 || c->chosen < 1 || c->chosen > c->experts))
        return keel_fail(KEEL_ERR_CONFIG, "moe_config: %zu of %zu experts for each token, of a llama", c->chosen,
                         c->experts);
    if (c->local_experts * (size_t)c->mesh->expert_parallel.size != c->experts || (!any && c->mesh->ep > 1))
        return keel_yaml_fail_key(c->mesh->settings, "expert_parallel", "%u does not divide %zu experts", c->mesh->ep,
                                  c->experts);
    if (any && (double)c->rows * (double)c->chosen >= 0x1p32)
        return keel_fail(KEEL_ERR_CONFIG, "moe_config: %zu tokens with %zu experts each are more than 2^32", c->rows,
                         c->chosen);
    if (any && moe->capacity_factor > 0) {
        const double capacity = ceil(moe->capacity_factor * (double)(c->chosen * c->seq) / (double)c->experts);
        c->capacity = capacity < (double)c->seq ? (size_t)capacity : c->seq;
    }
    return KEEL_OK;
}

keel_status keel_context_init(const keel_model_config *config, size_t batch, int threads, const keel_mesh *mesh,
                              keel_context *context) {
    const keel_model_config *m = config;
    if (batch < 1 || m->vocab_size < 1 || m->seq_length < 1 || m->hidden_size < 1 || m->num_layers < 1 ||
        m->num_heads < 1)
        return keel_fail(KEEL_ERR_CONFIG, "model_config: every size must be at least 1");
    keel_context c = {.mesh = mesh, .gpt2 = m->model_type == KEEL_MODEL_GPT2, .tied = m->tie_word_embeddings};
    c.batch = batch;
    c.seq = (size_t)m->seq_length;
    c.rows = c.batch * c.seq;
    c.hidden = (size_t)m->hidden_size;
    c.heads = (size_t)m->num_heads;
    c.kv_heads = m->n_kv_heads ? (size_t)m->n_kv_heads : c.heads;
    if (c.hidden % c.heads) return keel_fail(KEEL_ERR_CONFIG, "model_config: num_heads must divide hidden_size");
    if (c.heads % c.kv_heads) return keel_fail(KEEL_ERR_CONFIG, "model_config: n_kv_heads must divide num_heads");
    c.head_size = c.hidden / c.heads;
    if (!c.gpt2 && c.head_size % 2)
        return keel_fail(KEEL_ERR_CONFIG, "model_config: rotary positions need an even hidden_size / num_heads");
    c.intermediate = (size_t)m->intermediate_size;
    if (!c.intermediate && c.gpt2) c.intermediate = 4 * c.hidden;
    if (!c.intermediate) return keel_fail(KEEL_ERR_CONFIG, "model_config: intermediate_size is missing");
    c.vocab = (size_t)m->vocab_size;
    keel_status status = share_out(&c);
    if (!status) status = count_experts(&m->moe, &c);
    if (status) return status;
    c.core_size = c.heads * c.head_size;
    c.qkv_size = c.core_size + 2 * c.kv_heads * c.head_size;
    c.up_size = c.gpt2 ? c.intermediate : 2 * c.intermediate;
    c.layers = (size_t)m->num_layers;
    c.stage = (keel_stage){.count = 1, .layers = c.layers};
    c.positions = m->max_position_embeddings ? (size_t)m->max_position_embeddings : c.seq;
    if (c.gpt2 && c.positions < c.seq)
        return keel_fail(KEEL_ERR_CONFIG, "model_config: max_position_embeddings must be at least seq_length");
    c.norm_eps = (float)(c.gpt2 ? m->layer_norm_epsilon : m->rms_norm_eps);
    c.theta = m->theta;
    c.formats = (keel_formats){.compute = (keel_precision)m->compute_dtype,
                               .softmax = (keel_precision)m->softmax_compute_dtype,
                               .norm = (keel_precision)m->layernorm_compute_dtype,
                               .loss = (keel_precision)m->loss_compute_dtype,
                               .value = (keel_precision)m->attention_value_dtype,
                               .embedding = (keel_precision)m->embedding_compute_dtype,
                               .head = (keel_precision)m->head_compute_dtype};
    c.threads = threads;
    c.blocks = blocks_of(c.rows);
    c.own_blocks = blocks_of(c.own_rows);
    c.sum_width = greater(c.hidden, greater(c.qkv_size, c.up_size));
    *context = c;
    return KEEL_OK;
}

void keel_context_plan(keel_context *context, keel_arena *arena) {
    context->partials = keel_arena_take(arena, 3 * context->blocks * context->sum_width);
    if (context->mesh->sequence) context->vectors = keel_arena_take(arena, KEEL_JOIN_VECTORS * context->hidden);
}

void keel_context_sum_partials(const keel_context *context, const float *partial, size_t blocks, size_t n, float *out) {
    enum { STRIP = 256 };
    size_t strips = (n + STRIP - 1) / STRIP;
#pragma omp parallel for schedule(static) num_threads(context->threads)
    for (size_t s = 0; s < strips; s++) {
        size_t begin = s * STRIP, width = n - begin < STRIP ? n - begin : STRIP;
        memset(out + begin, 0, width * sizeof(float));
        for (size_t b = 0; b < blocks; b++) keel_add(out + begin, partial + b * n + begin, width);
    }
}
