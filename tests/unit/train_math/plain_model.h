// The model in float64, one row and one sequence at a time, no tricks: what the trainer's is compared with.
#ifndef KEEL_TESTS_UNIT_TRAIN_MATH_PLAIN_MODEL_H
#define KEEL_TESTS_UNIT_TRAIN_MATH_PLAIN_MODEL_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/model/model.h"

// At most: positions of a sequence; widths and vocabulary; experts; layers.
enum { PLAIN_ROWS = 96, PLAIN_WIDTH = 512, PLAIN_EXPERTS = 8, PLAIN_LAYERS = 4 };

// Parameters; NULL: there is none.
typedef struct plain_layer {
    const double *norm1, *norm1_bias, *qkv, *qkv_bias, *out, *out_bias, *norm2, *norm2_bias;
    const double *up, *up_bias, *down, *down_bias; // of the mlp, or of all experts one after another
    const double *router;
} plain_layer;

typedef struct plain_model {
    const keel_model_config *config;
    const keel_model *model;
    const double *w; // flat
    plain_layer layers[PLAIN_LAYERS];
    const double *embedding, *position, *final_norm, *final_norm_bias, *head;
    size_t c, d, heads, kv, f, v, t;
    size_t e; // of qkv
    size_t u; // of what the activation function takes
    size_t experts, chosen;
    bool gpt2;
} plain_model;

// Of a layer and a micro-batch.
typedef struct plain_routing {
    double load[PLAIN_EXPERTS], probability[PLAIN_EXPERTS], z, tokens; // sums over tokens
} plain_routing;

// NULL if there is no such parameter.
static inline const double *plain_outer(const plain_model *m, const char *name) {
    size_t count;
    const keel_param *params = keel_model_params(m->model, &count);
    for (size_t i = 0; i < count; i++)
        if (!strcmp(params[i].name, name)) return m->w + params[i].offset;
    return NULL;
}

static inline const double *plain_inner(const plain_model *m, size_t layer, const char *name) {
    char full[KEEL_SITE_NAME_BYTES];
    snprintf(full, sizeof full, "layers.%zu.%s", layer, name);
    return plain_outer(m, full);
}

static inline plain_layer plain_layer_of(const plain_model *m, size_t layer) {
    const char *const up = m->experts ? "mlp.experts.gate_up.weight" : m->gpt2 ? "mlp.up.weight" : "mlp.gate_up.weight";
    return (plain_layer){
        .norm1 = plain_inner(m, layer, "norm1.weight"),
        .norm1_bias = plain_inner(m, layer, "norm1.bias"),
        .qkv = plain_inner(m, layer, "attention.qkv.weight"),
        .qkv_bias = plain_inner(m, layer, "attention.qkv.bias"),
        .out = plain_inner(m, layer, "attention.out.weight"),
        .out_bias = plain_inner(m, layer, "attention.out.bias"),
        .norm2 = plain_inner(m, layer, "norm2.weight"),
        .norm2_bias = plain_inner(m, layer, "norm2.bias"),
        .up = plain_inner(m, layer, up),
        .up_bias = plain_inner(m, layer, "mlp.up.bias"),
        .down = plain_inner(m, layer, m->experts ? "mlp.experts.down.weight" : "mlp.down.weight"),
        .down_bias = plain_inner(m, layer, "mlp.down.bias"),
        .router = plain_inner(m, layer, "mlp.router.weight"),
    };
}

static inline plain_model plain_of(const keel_model_config *config, const keel_model *model, const double *w) {
    plain_model m = {.config = config, .model = model, .w = w, .gpt2 = config->model_type == KEEL_MODEL_GPT2};
    m.c = (size_t)config->hidden_size;
    m.heads = (size_t)config->num_heads;
    m.kv = config->n_kv_heads ? (size_t)config->n_kv_heads : m.heads;
    m.d = m.c / m.heads;
    m.f = (size_t)config->intermediate_size;
    m.v = (size_t)config->vocab_size;
    m.t = (size_t)config->seq_length;
    m.e = (m.heads + 2 * m.kv) * m.d;
    m.u = m.gpt2 ? m.f : 2 * m.f;
    m.experts = config->moe.expert_num > 1 ? (size_t)config->moe.expert_num : 0;
    m.chosen = (size_t)config->moe.num_experts_chosen;
    for (size_t l = 0; l < (size_t)config->num_layers && l < PLAIN_LAYERS; l++) m.layers[l] = plain_layer_of(&m, l);
    m.embedding = plain_outer(&m, "embedding.weight");
    m.position = plain_outer(&m, "position.weight");
    m.final_norm = plain_outer(&m, "final_norm.weight");
    m.final_norm_bias = plain_outer(&m, "final_norm.bias");
    m.head = config->tie_word_embeddings ? m.embedding : plain_outer(&m, "head.weight");
    return m;
}

// POSITION NULL: none. Y [C] of one token.
static inline void plain_embed(const plain_model *m, double *y, uint32_t token, size_t t, const double *table,
                               const double *position) {
    for (size_t i = 0; i < m->c; i++) y[i] = table[token * m->c + i] + (position ? position[t * m->c + i] : 0);
}

static inline void plain_norm(const plain_model *m, double *y, const double *x, const double *weight,
                              const double *bias) {
    double mean = 0, square = 0;
    if (m->gpt2)
        for (size_t i = 0; i < m->c; i++) mean += x[i] / (double)m->c;
    for (size_t i = 0; i < m->c; i++) square += (x[i] - mean) * (x[i] - mean) / (double)m->c;
    double eps = m->gpt2 ? m->config->layer_norm_epsilon : m->config->rms_norm_eps;
    for (size_t i = 0; i < m->c; i++) y[i] = (x[i] - mean) / sqrt(square + eps) * weight[i] + (bias ? bias[i] : 0);
}

static inline void plain_linear(const plain_model *m, double *y, const double *x, size_t in, size_t out,
                                const double *w, const double *b) {
    for (size_t o = 0; o < out; o++) {
        y[o] = b ? b[o] : 0;
        for (size_t i = 0; i < in; i++) y[o] += x[i] * (m->gpt2 ? w[i * out + o] : w[o * in + i]);
    }
}

static inline void plain_rotate(const plain_model *m, double *x, size_t t) {
    for (size_t i = 0; i < m->d / 2; i++) {
        double angle = (double)t * pow(m->config->theta, -2.0 * (double)i / (double)m->d);
        double a = x[i], b = x[i + m->d / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + m->d / 2] = b * cos(angle) + a * sin(angle);
    }
}

// CORE [T, C] of a sequence's QKV [T, E], not yet rotated.
static inline void plain_attend(const plain_model *m, double *core, const double *qkv) {
    static double turned[PLAIN_ROWS * PLAIN_WIDTH];
    double score[PLAIN_ROWS];
    memcpy(turned, qkv, m->t * m->e * sizeof *turned);
    for (size_t t = 0; t < m->t && !m->gpt2; t++)
        for (size_t h = 0; h < m->heads + m->kv; h++) plain_rotate(m, turned + t * m->e + h * m->d, t);
    for (size_t h = 0; h < m->heads; h++)
        for (size_t t = 0; t < m->t; t++) {
            const double *q = turned + t * m->e + h * m->d;
            size_t k_at = (m->heads + h / (m->heads / m->kv)) * m->d, v_at = k_at + m->kv * m->d;
            double sum = 0;
            for (size_t s = 0; s <= t; s++) {
                double dot = 0;
                for (size_t i = 0; i < m->d; i++) dot += q[i] * turned[s * m->e + k_at + i];
                score[s] = exp(dot / sqrt((double)m->d));
                sum += score[s];
            }
            for (size_t i = 0; i < m->d; i++) {
                double out = 0;
                for (size_t s = 0; s <= t; s++) out += score[s] / sum * turned[s * m->e + v_at + i];
                core[t * m->c + h * m->d + i] = out;
            }
        }
}

// ACT [F] of UP [U]: GELU (tanh), or SwiGLU of gate and up side by side.
static inline void plain_activate(const plain_model *m, double *act, const double *up) {
    for (size_t i = 0; i < m->f; i++)
        act[i] = m->gpt2 ? 0.5 * up[i] * (1 + tanh(sqrt(2 / M_PI) * (up[i] + 0.044715 * up[i] * up[i] * up[i])))
                         : up[i] / (1 + exp(-up[i])) * up[m->f + i];
}

// LOGITS [V] of the last norm's output. HEAD [V, C].
static inline void plain_logits(const plain_model *m, double *logits, const double *x, const double *head) {
    for (size_t o = 0; o < m->v; o++) {
        logits[o] = 0;
        for (size_t i = 0; i < m->c; i++) logits[o] += x[i] * head[o * m->c + i];
    }
}

static inline double plain_cross_entropy(const plain_model *m, const double *logits, uint32_t target) {
    double sum = 0;
    for (size_t o = 0; o < m->v; o++) sum += exp(logits[o]);
    return log(sum) - logits[target];
}

// A token's K experts of greatest probability, their weights, and what the losses of routing need.
static inline void plain_route(const plain_model *m, const double *x, const double *router, size_t *chosen,
                               double *weights, plain_routing *routing) {
    double p[PLAIN_EXPERTS] = {0}, total = 0, sum = 0;
    plain_linear(m, p, x, m->c, m->experts, router, NULL);
    for (size_t e = 0; e < m->experts; e++) total += p[e] = exp(p[e]);
    for (size_t e = 0; e < m->experts; e++) routing->probability[e] += p[e] /= total;
    routing->z += log(total) * log(total);
    routing->tokens++;
    for (size_t j = 0; j < m->chosen; j++) {
        size_t best = m->experts;
        for (size_t e = 0; e < m->experts; e++) {
            bool taken = false;
            for (size_t i = 0; i < j; i++) taken |= chosen[i] == e;
            if (!taken && (best == m->experts || p[e] > p[best])) best = e;
        }
        chosen[j] = best;
        routing->load[best]++;
        sum += weights[j] = p[best];
    }
    for (size_t j = 0; j < m->chosen && m->config->moe.norm_topk_prob; j++) weights[j] /= sum;
}

// Y [T, C] of a sequence's X [T, C]: a SwiGLU of each expert, [2 F, C] and [C, F] one after another.
static inline void plain_mixture(const plain_model *m, double *y, const double *x, const double *router,
                                 const double *gate_up, const double *down, plain_routing *routing) {
    const keel_moe_config *moe = &m->config->moe;
    const double room = ceil(moe->capacity_factor * (double)(m->chosen * m->t) / (double)m->experts);
    size_t chosen[PLAIN_ROWS][PLAIN_EXPERTS];
    double weights[PLAIN_ROWS][PLAIN_EXPERTS], used[PLAIN_EXPERTS] = {0};
    double up[PLAIN_WIDTH] = {0}, act[PLAIN_WIDTH], out[PLAIN_WIDTH];
    memset(y, 0, m->t * m->c * sizeof *y);
    for (size_t t = 0; t < m->t; t++) plain_route(m, x + t * m->c, router, chosen[t], weights[t], routing);
    for (size_t j = 0; j < m->chosen; j++) // first choices before second ones
        for (size_t t = 0; t < m->t; t++) {
            const size_t e = chosen[t][j];
            if (moe->capacity_factor > 0 && used[e]++ >= room) continue;
            plain_linear(m, up, x + t * m->c, m->c, m->u, gate_up + e * m->u * m->c, NULL);
            plain_activate(m, act, up);
            plain_linear(m, out, act, m->f, m->c, down + e * m->c * m->f, NULL);
            for (size_t i = 0; i < m->c; i++) y[t * m->c + i] += weights[t][j] * out[i];
        }
}

// What a layer's routing adds to the sum of losses over tokens.
static inline double plain_routing_loss(const plain_model *m, const plain_routing *routing) {
    double balance = 0;
    for (size_t e = 0; e < m->experts; e++)
        balance += routing->load[e] / (routing->tokens * (double)m->chosen) * routing->probability[e];
    return m->config->moe.aux_loss_factor * (double)m->experts * balance + m->config->moe.z_loss_factor * routing->z;
}

// Y [T, C] of X [T, C], whatever the layer has.
static inline void plain_feed_forward(const plain_model *m, double *y, const double *x, const plain_layer *layer,
                                      plain_routing *routing) {
    double up[PLAIN_WIDTH] = {0}, act[PLAIN_WIDTH];
    if (m->experts) {
        plain_mixture(m, y, x, layer->router, layer->up, layer->down, routing);
        return;
    }
    for (size_t t = 0; t < m->t; t++) {
        plain_linear(m, up, x + t * m->c, m->c, m->u, layer->up, layer->up_bias);
        plain_activate(m, act, up);
        plain_linear(m, y + t * m->c, act, m->f, m->c, layer->down, layer->down_bias);
    }
}

// Sum of cross entropy of TOKENS [T + 1]. Adds to ROUTING [layers].
static inline double plain_sequence_loss(const plain_model *m, const uint32_t *tokens, plain_routing *routing) {
    static double x[PLAIN_ROWS * PLAIN_WIDTH], qkv[PLAIN_ROWS * PLAIN_WIDTH], core[PLAIN_ROWS * PLAIN_WIDTH];
    static double normed[PLAIN_ROWS * PLAIN_WIDTH], fed[PLAIN_ROWS * PLAIN_WIDTH];
    double n[PLAIN_WIDTH], y[PLAIN_WIDTH], logits[PLAIN_WIDTH], loss = 0;
    const size_t c = m->c;
    for (size_t t = 0; t < m->t; t++) plain_embed(m, x + t * c, tokens[t], t, m->embedding, m->position);
    for (size_t l = 0; l < (size_t)m->config->num_layers; l++) {
        const plain_layer *layer = &m->layers[l];
        for (size_t t = 0; t < m->t; t++) {
            plain_norm(m, n, x + t * c, layer->norm1, layer->norm1_bias);
            plain_linear(m, qkv + t * m->e, n, c, m->e, layer->qkv, layer->qkv_bias);
        }
        plain_attend(m, core, qkv);
        for (size_t t = 0; t < m->t; t++) {
            plain_linear(m, y, core + t * c, c, c, layer->out, layer->out_bias);
            for (size_t i = 0; i < c; i++) x[t * c + i] += y[i];
            plain_norm(m, normed + t * c, x + t * c, layer->norm2, layer->norm2_bias);
        }
        plain_feed_forward(m, fed, normed, layer, &routing[l]);
        for (size_t i = 0; i < m->t * c; i++) x[i] += fed[i];
    }
    for (size_t t = 0; t < m->t; t++) {
        plain_norm(m, n, x + t * c, m->final_norm, m->final_norm_bias);
        plain_logits(m, logits, n, m->head);
        loss += plain_cross_entropy(m, logits, tokens[t + 1]);
    }
    return loss;
}

// Sums over the tokens of a micro-batch; *ROUTED, unless NULL: what the losses of routing add.
static inline double plain_batch_loss(const plain_model *m, const uint32_t *tokens, size_t batch, double *routed) {
    plain_routing routing[PLAIN_LAYERS] = {0};
    double loss = 0;
    for (size_t b = 0; b < batch; b++) loss += plain_sequence_loss(m, tokens + b * (m->t + 1), routing);
    if (routed) *routed = 0;
    for (size_t l = 0; l < (size_t)m->config->num_layers && routed && m->experts; l++)
        *routed += plain_routing_loss(m, &routing[l]);
    return loss;
}

#endif
