#include "train/model/attention.h"

#include <math.h>
#include <string.h>

#include "train/tensor/ops.h"
#include "train/tensor/tile.h"
#include "train/tensor/vector.h"

// Rows of queries and columns of keys of a tile: the tile and what it is made from fit in L1 and L2.
enum { QUERIES = 48, KEYS = 64 };

// One thread's memory.
typedef struct scratch {
    float *keys_t;   // [D, Tp] transposed keys
    float *values_t; // [D, Tp] transposed values; backward only
    float *keys;     // [T, Dp]; backward only
    float *values;   // [T, Dp]; forward only
    float *dkeys;    // [T, Dp]; backward only
    float *dvalues;  // [T, Dp]; backward only
    float *q;        // [QUERIES, Dp]
    float *dout;     // [QUERIES, Dp]; forward: the sums of the output
    float *dq;       // [QUERIES, Dp]; forward: the output tile [QUERIES, D]
    float *p;        // [QUERIES, KEYS]
    float *ds;       // [QUERIES, KEYS]
} scratch;

typedef struct sizes {
    size_t t, d;
    size_t tp, dp; // rounded up: columns of tiles are whole vectors
} sizes;

static sizes sizes_of(const keel_context *context) {
    size_t t = context->seq;
    size_t tp = (t + KEYS - 1) / KEYS * KEYS;
    return (sizes){.t = t, .d = context->head_size, .tp = tp, .dp = keel_vec_round_up(context->head_size)};
}

static size_t scratch_take(const sizes *s, float *base, scratch *out) {
    size_t rows = s->t * s->dp, cols = s->d * s->tp, tile = QUERIES * s->dp, square = (size_t)QUERIES * KEYS;
    const size_t lengths[] = {cols, cols, rows, rows, rows, rows, tile, tile, tile, square, square};
    float **places[] = {&out->keys_t, &out->values_t, &out->keys, &out->values, &out->dkeys, &out->dvalues,
                        &out->q,      &out->dout,     &out->dq,   &out->p,      &out->ds};
    size_t used = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        *places[i] = base ? base + used : NULL;
        used += (lengths[i] + 15) / 16 * 16;
    }
    return used;
}

void keel_attention_plan(const keel_context *context, keel_arena *arena, keel_attention *attention) {
    sizes s = sizes_of(context);
    scratch unused;
    keel_position_plan(context, arena, &attention->position);
    attention->scratch_size = scratch_take(&s, NULL, &unused);
    attention->scratch = keel_arena_take(arena, (size_t)context->threads * attention->scratch_size);
    size_t n = context->rows * context->hidden;
    attention->dq = keel_arena_take(arena, n);
    attention->dk = keel_arena_take(arena, n);
    attention->dv = keel_arena_take(arena, n);
}

void keel_attention_plan_state(const keel_context *context, keel_arena *arena, keel_attention_state *state) {
    state->qkv = keel_arena_take(arena, context->rows * context->qkv_size);
    state->core = keel_arena_take(arena, context->rows * context->hidden);
    state->lse = keel_arena_take(arena, context->rows * context->heads);
}

static void prepare_qkv(const keel_context *context, const keel_attention *attention,
                        const keel_attention_layer *layer) {
    size_t e = context->qkv_size, d = context->head_size, half = d / 2;
    const float *bias = keel_linear_bias(context, layer->qkv);
    const keel_position *position = &attention->position;
    float *qkv = layer->state.qkv;
    keel_tap_begin(layer->qkv_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->blocks; b++) {
            size_t begin = keel_block_begin_row(b), rows = keel_block_rows(context, b), at = begin * e;
            if (bias) keel_add_bias(qkv + at, bias, rows, e);
            keel_tap_piece(layer->qkv_tap, thread, qkv + at, at, rows * e);
            for (size_t r = 0; position->cosine && r < rows; r++) {
                size_t t = (begin + r) % context->seq;
                keel_rope(qkv + at + r * e, context->heads + context->kv_heads, d, position->cosine + t * half,
                          position->sine + t * half);
            }
        }
    }
    keel_tap_end(layer->qkv_tap);
}

// Keys of the tile from J0 on that row I sees, of at most KEYS.
static size_t visible(size_t i, size_t j0) {
    size_t n = i + 1 > j0 ? i + 1 - j0 : 0;
    return n < KEYS ? n : KEYS;
}

// One head of one sequence. Q, K, V: rows of stride E.
static void forward_head(const keel_context *context, const sizes *s, const scratch *w, const float *q, const float *k,
                         const float *v, const keel_attention_layer *layer, size_t row0, size_t head, float *lse,
                         int thread) {
    size_t e = context->qkv_size, c = context->hidden, d = s->d, dp = s->dp;
    const float scale = 1.0f / sqrtf((float)d);
    keel_tile_transpose(s->t, d, k, e, w->keys_t, s->tp, s->tp);
    keel_tile_copy(s->t, d, v, e, w->values, dp);
    for (size_t i0 = 0; i0 < s->t; i0 += QUERIES) {
        size_t rows = s->t - i0 < QUERIES ? s->t - i0 : QUERIES;
        float greatest[QUERIES];
        double total[QUERIES];
        for (size_t r = 0; r < rows; r++) greatest[r] = -INFINITY, total[r] = 0;
        memset(w->dout, 0, rows * dp * sizeof(float));
        for (size_t j0 = 0; j0 < i0 + rows; j0 += KEYS) {
            size_t keys = s->t - j0 < KEYS ? s->t - j0 : KEYS;
            keel_tile_mul(rows, KEYS, d, q + i0 * e, e, w->keys_t + j0, s->tp, false, w->p, KEYS);
            for (size_t r = 0; r < rows; r++) {
                size_t seen = visible(i0 + r, j0);
                float *p = w->p + r * KEYS, *out = w->dout + r * dp;
                if (seen) {
                    float m = keel_row_max(p, seen) * scale;
                    if (m > greatest[r]) {
                        float shrink = expf(greatest[r] - m);
                        total[r] *= (double)shrink;
                        keel_scale(out, shrink, dp);
                        greatest[r] = m;
                    }
                    total[r] += keel_row_exp(p, seen, scale, greatest[r]);
                }
                memset(p + seen, 0, (KEYS - seen) * sizeof(float));
            }
            keel_tile_mul(rows, dp, keys, w->p, KEYS, w->values + j0 * dp, dp, true, w->dout, dp);
        }
        for (size_t r = 0; r < rows; r++) {
            float inverse = (float)(1.0 / total[r]);
            for (size_t j = 0; j < d; j++) w->dq[r * d + j] = w->dout[r * dp + j] * inverse;
            lse[i0 + r] = greatest[r] + (float)log(total[r]);
        }
        size_t at = (row0 + i0) * c + head * d;
        keel_tap_tile(layer->core_tap, thread, w->dq, at, c, rows, d);
        for (size_t r = 0; r < rows; r++) memcpy(layer->state.core + at + r * c, w->dq + r * d, d * sizeof(float));
    }
}

void keel_attention_forward(const keel_context *context, const keel_attention *attention,
                            const keel_attention_layer *layer) {
    prepare_qkv(context, attention, layer);
    const sizes s = sizes_of(context);
    size_t heads = context->heads, group = heads / context->kv_heads, d = s.d, e = context->qkv_size;
    keel_tap_begin(layer->core_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
        scratch w;
        scratch_take(&s, attention->scratch + (size_t)thread * attention->scratch_size, &w);
#pragma omp for schedule(static)
        for (size_t item = 0; item < context->batch * heads; item++) {
            size_t sequence = item / heads, h = item % heads;
            const float *rows = layer->state.qkv + sequence * s.t * e;
            const float *k = rows + (heads + h / group) * d, *v = k + context->kv_heads * d;
            forward_head(context, &s, &w, rows + h * d, k, v, layer, sequence * s.t, h, layer->state.lse + item * s.t,
                         thread);
        }
    }
    keel_tap_end(layer->core_tap);
    keel_lap(context, KEEL_PART_ATTENTION);
}

// dout . out of every row of a tile: what the softmax's gradient subtracts.
static void row_dots(const sizes *s, const float *dout, const float *out, size_t stride, size_t rows, float *dots) {
    for (size_t r = 0; r < rows; r++) {
        keel_vec lanes = {0};
        size_t j = 0;
        for (; j + KEEL_LANES <= s->d; j += KEEL_LANES)
            lanes += keel_vec_load(dout + r * s->dp + j) * keel_vec_load(out + r * stride + j);
        float sum = keel_vec_sum(lanes);
        for (; j < s->d; j++) sum += dout[r * s->dp + j] * out[r * stride + j];
        dots[r] = sum;
    }
}

// P = exp(S scale - lse), DS = P (DS - dot) scale over the visible part of a row, zeros behind it.
static void tile_row(float *p, float *ds, size_t seen, float scale, float lse, float dot) {
    for (size_t j = 0; j < seen; j += KEEL_LANES) {
        keel_vec e = keel_vec_exp(keel_vec_load(p + j) * scale - lse);
        keel_vec_store(p + j, e);
        keel_vec_store(ds + j, e * (keel_vec_load(ds + j) - dot) * scale);
    }
    memset(p + seen, 0, (KEYS - seen) * sizeof(float));
    memset(ds + seen, 0, (KEYS - seen) * sizeof(float));
}

static void backward_head(const keel_context *context, const keel_attention *attention, const sizes *s,
                          const scratch *w, const float *q, const float *k, const float *v,
                          const keel_attention_layer *layer, const float *dcore, size_t item, int thread) {
    size_t e = context->qkv_size, c = context->hidden, d = s->d, dp = s->dp, heads = context->heads;
    size_t row0 = item / heads * s->t, head = item % heads;
    const float *lse = layer->state.lse + item * s->t;
    const float scale = 1.0f / sqrtf((float)d);
    keel_tile_transpose(s->t, d, k, e, w->keys_t, s->tp, s->tp);
    keel_tile_transpose(s->t, d, v, e, w->values_t, s->tp, s->tp);
    keel_tile_copy(s->t, d, k, e, w->keys, dp);
    memset(w->dkeys, 0, s->t * dp * sizeof(float));
    memset(w->dvalues, 0, s->t * dp * sizeof(float));
    for (size_t i0 = 0; i0 < s->t; i0 += QUERIES) {
        size_t rows = s->t - i0 < QUERIES ? s->t - i0 : QUERIES;
        size_t at = (row0 + i0) * c + head * d;
        float dots[QUERIES];
        keel_tile_copy(rows, d, dcore + at, c, w->dq, d);
        keel_tap_tile(layer->core_grad_tap, thread, w->dq, at, c, rows, d);
        keel_tile_copy(rows, d, w->dq, d, w->dout, dp);
        keel_tile_copy(rows, d, q + i0 * e, e, w->q, dp);
        row_dots(s, w->dout, layer->state.core + at, c, rows, dots);
        memset(w->dq, 0, rows * dp * sizeof(float));
        for (size_t j0 = 0; j0 < i0 + rows; j0 += KEYS) {
            size_t keys = s->t - j0 < KEYS ? s->t - j0 : KEYS;
            keel_tile_mul(rows, KEYS, d, w->q, dp, w->keys_t + j0, s->tp, false, w->p, KEYS);
            keel_tile_mul(rows, KEYS, d, w->dout, dp, w->values_t + j0, s->tp, false, w->ds, KEYS);
            for (size_t r = 0; r < rows; r++)
                tile_row(w->p + r * KEYS, w->ds + r * KEYS, visible(i0 + r, j0), scale, lse[i0 + r], dots[r]);
            keel_tile_mul_transposed(keys, dp, rows, w->p, KEYS, w->dout, dp, true, w->dvalues + j0 * dp, dp);
            keel_tile_mul(rows, dp, keys, w->ds, KEYS, w->keys + j0 * dp, dp, true, w->dq, dp);
            keel_tile_mul_transposed(keys, dp, rows, w->ds, KEYS, w->q, dp, true, w->dkeys + j0 * dp, dp);
        }
        float *dq = attention->dq + (item * s->t + i0) * d;
        for (size_t r = 0; r < rows; r++) memcpy(dq + r * d, w->dq + r * dp, d * sizeof(float));
    }
    for (size_t t = 0; t < s->t; t++) {
        memcpy(attention->dk + (item * s->t + t) * d, w->dkeys + t * dp, d * sizeof(float));
        memcpy(attention->dv + (item * s->t + t) * d, w->dvalues + t * dp, d * sizeof(float));
    }
}

// One row of dqkv from the heads' shares: dk and dv are sums over the query heads of a group.
static void gather_row(const keel_context *context, const keel_attention *attention, size_t row, float *out) {
    size_t heads = context->heads, group = heads / context->kv_heads, d = context->head_size, t = context->seq;
    size_t first = row / t * heads; // item of the sequence's head 0
    size_t step = t * d, at = row % t * d;
    float *dk = out + heads * d, *dv = dk + context->kv_heads * d;
    for (size_t h = 0; h < heads; h++) {
        size_t from = (first + h) * step + at, to = h / group * d;
        memcpy(out + h * d, attention->dq + from, d * sizeof(float));
        if (h % group == 0) {
            memcpy(dk + to, attention->dk + from, d * sizeof(float));
            memcpy(dv + to, attention->dv + from, d * sizeof(float));
        } else {
            keel_add(dk + to, attention->dk + from, d);
            keel_add(dv + to, attention->dv + from, d);
        }
    }
    const keel_position *position = &attention->position;
    if (position->cosine)
        keel_rope_back(out, heads + context->kv_heads, d, position->cosine + row % t * (d / 2),
                       position->sine + row % t * (d / 2));
}

static void gather_dqkv(const keel_context *context, const keel_attention *attention, const keel_attention_layer *layer,
                        float *dqkv) {
    size_t e = context->qkv_size;
    float *partial = keel_context_partial(context, 0);
    bool has_bias = layer->qkv->bias != KEEL_NO_PARAM;
    keel_tap_begin(layer->qkv_grad_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->blocks; b++) {
            size_t begin = keel_block_begin_row(b), rows = keel_block_rows(context, b), at = begin * e;
            for (size_t r = 0; r < rows; r++) gather_row(context, attention, begin + r, dqkv + at + r * e);
            keel_tap_piece(layer->qkv_grad_tap, thread, dqkv + at, at, rows * e);
            if (has_bias) {
                memset(partial + b * e, 0, e * sizeof(float));
                keel_add_rows(partial + b * e, dqkv + at, rows, e);
            }
        }
    }
    keel_tap_end(layer->qkv_grad_tap);
    if (!has_bias) return;
    float *dbias = context->grad + layer->qkv->bias;
    keel_context_sum_partials(context, partial, e, dbias);
    // A softmax does not change when all keys move by one vector: without rotation the gradient of their bias is zero,
    // and what the sum leaves of it is rounding, which Adam would blow up to steps.
    size_t d = context->head_size;
    if (!attention->position.cosine) memset(dbias + context->heads * d, 0, context->kv_heads * d * sizeof(float));
}

void keel_attention_backward(const keel_context *context, const keel_attention *attention,
                             const keel_attention_layer *layer, const float *dcore, float *dqkv) {
    const sizes s = sizes_of(context);
    size_t heads = context->heads, group = heads / context->kv_heads, d = s.d, e = context->qkv_size;
    keel_tap_begin(layer->core_grad_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
        scratch w;
        scratch_take(&s, attention->scratch + (size_t)thread * attention->scratch_size, &w);
#pragma omp for schedule(static)
        for (size_t item = 0; item < context->batch * heads; item++) {
            const float *rows = layer->state.qkv + item / heads * s.t * e;
            const float *k = rows + (heads + item % heads / group) * d, *v = k + context->kv_heads * d;
            backward_head(context, attention, &s, &w, rows + item % heads * d, k, v, layer, dcore, item, thread);
        }
    }
    keel_tap_end(layer->core_grad_tap);
    gather_dqkv(context, attention, layer, dqkv);
    keel_lap(context, KEEL_PART_ATTENTION);
}
