#include "train/model/attention.h"

#include <math.h>
#include <string.h>

#include "train/tensor/ops.h"
#include "train/tensor/rounded_ops.h"
#include "train/tensor/tile.h"
#include "train/tensor/vector.h"

// Rows of queries and columns of keys of a tile: the tile and what it is made from fit in L1 and L2.
enum { QUERIES = 48, KEYS = 64 };

// One thread's memory. What the products run over stands here side by side: rows of one head that lie as far apart as
// those of qkv do would meet in few sets of the first cache.
typedef struct scratch {
    float *keys_t, *values_t; // tiles [D, KEYS] of the transposes, one after another; values_t backward only
    float *keys, *values;     // [T, Dp]; keys backward only, values forward only
    float *q, *dout;          // [QUERIES, Dp]; dout backward only
    float *out;               // [QUERIES, Dp]; forward only
    float *p, *ds;            // [QUERIES, KEYS]; ds backward only
} scratch;

typedef struct sizes {
    size_t t, d;
    size_t tp, dp; // in whole tiles of keys, in whole vectors
} sizes;

static sizes sizes_of(const keel_context *context) {
    size_t t = context->seq;
    size_t tp = (t + KEYS - 1) / KEYS * KEYS;
    return (sizes){.t = t, .d = context->head_size, .tp = tp, .dp = keel_vec_round_up(context->head_size)};
}

static size_t scratch_take(const sizes *s, float *base, scratch *out) {
    size_t cols = s->d * s->tp, rows = s->t * s->dp, tile = QUERIES * s->dp, square = (size_t)QUERIES * KEYS;
    const struct {
        float **place;
        size_t length;
    } pieces[] = {
        {&out->keys_t, cols}, {&out->values_t, cols}, {&out->keys, rows}, {&out->values, rows}, {&out->q, tile},
        {&out->dout, tile},   {&out->out, tile},      {&out->p, square},  {&out->ds, square},
    };
    size_t used = 0;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        *pieces[i].place = base ? base + used : NULL;
        used += (pieces[i].length + 15) / 16 * 16;
    }
    return used;
}

// Rows of a head, STRIDE apart, as tiles [D, KEYS] of their transpose.
static void transpose_tiles(const sizes *s, const float *from, size_t stride, float *to) {
    for (size_t j = 0; j < s->t; j += KEYS)
        keel_tile_transpose(s->t - j < KEYS ? s->t - j : KEYS, s->d, from + j * stride, stride, to + j * s->d, KEYS,
                            KEYS);
}

void keel_attention_plan(const keel_context *context, keel_arena *arena, keel_attention *attention) {
    sizes s = sizes_of(context);
    scratch unused;
    keel_position_plan(context, arena, &attention->position);
    attention->scratch_size = scratch_take(&s, NULL, &unused);
    attention->scratch = keel_arena_take(arena, (size_t)context->threads * attention->scratch_size);
    attention->greatest = keel_arena_take(arena, context->batch * context->heads);
    size_t n = context->rows * context->heads * s.dp;
    attention->dq = keel_arena_take(arena, n);
    attention->dk = keel_arena_take(arena, n);
    attention->dv = keel_arena_take(arena, n);
}

void keel_attention_plan_qkv(const keel_context *context, keel_arena *arena, keel_attention_state *state) {
    state->qkv = keel_arena_take(arena, context->rows * context->qkv_size);
}

void keel_attention_plan_core(const keel_context *context, keel_arena *arena, keel_attention_state *state) {
    state->core = keel_arena_take(arena, context->rows * context->core_size);
    state->lse = keel_arena_take(arena, context->rows * context->heads);
}

static void prepare_qkv(const keel_context *context, const keel_attention *attention,
                        const keel_attention_layer *layer) {
    size_t e = context->qkv_size, d = context->head_size, half = d / 2;
    const float *bias = keel_linear_bias(context, layer->qkv);
    const keel_position *position = &attention->position;
    const keel_precision compute = context->formats.compute;
    float *qkv = layer->state.qkv;
    keel_tap_begin(layer->qkv_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->blocks; b++) {
            size_t begin = keel_block_begin_row(b), rows = keel_block_rows(context, b), at = begin * e;
            if (bias) keel_add_bias(qkv + at, bias, rows, e);
            keel_round(compute, qkv + at, rows * e);
            keel_tap_piece(layer->qkv_tap, thread, qkv + at, at, rows * e);
            for (size_t r = 0; position->cosine && r < rows; r++) {
                size_t t = (begin + r) % context->seq;
                keel_rope(qkv + at + r * e, context->heads + context->kv_heads, d, position->cosine + t * half,
                          position->sine + t * half);
            }
            if (position->cosine) keel_round(compute, qkv + at, rows * e);
        }
    }
    keel_tap_end(layer->qkv_tap);
}

// A tile: rows [i0, i0 + queries) by keys [j0, j0 + keys), keys being what its last row sees.
typedef struct tile {
    size_t i0, queries;
    size_t j0, keys, width; // width: keys in whole vectors
} tile;

static bool next_tile(tile *t) {
    size_t end = t->i0 + t->queries;
    if (t->j0 >= end) return false;
    t->keys = end - t->j0 < KEYS ? end - t->j0 : KEYS;
    t->width = keel_vec_round_up(t->keys);
    return true;
}

// Keys of the tile that its row R sees.
static size_t visible(const tile *t, size_t r) {
    size_t i = t->i0 + r;
    size_t n = i + 1 > t->j0 ? i + 1 - t->j0 : 0;
    return n < t->keys ? n : t->keys;
}

static void clear_rest(float *row, size_t seen, size_t width) {
    if (seen < width) memset(row + seen, 0, (width - seen) * sizeof(float));
}

typedef struct running { // of a row, over the tiles so far
    float greatest;      // score
    double total;        // of exponentials, relative to it
} running;

// One row of a tile: scores become exponentials, and what was summed before is scaled to the new greatest score.
static void softmax_row(const keel_formats *formats, float *p, size_t seen, size_t width, float scale, running *row,
                        float *out, size_t dp) {
    const bool rounded = formats->softmax != KEEL_FLOAT32;
    if (seen) {
        keel_round(formats->compute, p, seen);
        if (rounded) {
            keel_scale(p, scale, seen);
            keel_round(formats->softmax, p, seen);
            scale = 1;
        }
        float m = keel_row_max(p, seen) * scale;
        if (m > row->greatest) {
            float shrink = keel_round_one(formats->softmax, expf(row->greatest - m));
            row->total *= (double)shrink;
            keel_scale(out, shrink, dp);
            row->greatest = m;
        }
        row->total += rounded ? keel_row_exp_rounded(formats->softmax, p, seen, row->greatest)
                              : keel_row_exp(p, seen, scale, row->greatest);
        keel_round(formats->value, p, seen);
    }
    clear_rest(p, seen, width);
}

// Rows of a tile within rows of STRIDE.
static void round_tile(keel_precision precision, float *x, size_t stride, size_t rows, size_t cols) {
    for (size_t r = 0; r < rows && precision != KEEL_FLOAT32; r++) keel_round(precision, x + r * stride, cols);
}

// A head of a sequence.
typedef struct head_data {
    size_t row0;            // of the sequence among N
    size_t head;            // of the queries
    const float *q, *k, *v; // rows of the sequence, qkv_size apart
    float *lse;             // [T]
} head_data;

static head_data head_of(const keel_context *context, const keel_attention_layer *layer, size_t item) {
    size_t heads = context->heads, d = context->head_size, sequence = item / heads, head = item % heads;
    const float *rows_begin = layer->state.qkv + sequence * context->seq * context->qkv_size;
    const float *k = rows_begin + (heads + head / (heads / context->kv_heads)) * d;
    return (head_data){
        .row0 = sequence * context->seq,
        .head = head,
        .q = rows_begin + head * d,
        .k = k,
        .v = k + context->kv_heads * d,
        .lse = layer->state.lse + item * context->seq,
    };
}

// The greatest magnitude of what the rows of a tile of products see.
static float greatest_product(const float *p, const tile *t) {
    float greatest = 0;
    for (size_t r = 0; r < t->queries; r++) {
        const float *row = p + r * KEYS;
        const size_t seen = visible(t, r);
#pragma omp simd reduction(max : greatest)
        for (size_t j = 0; j < seen; j++) greatest = fmaxf(greatest, fabsf(row[j]));
    }
    return greatest;
}

// GREATEST: the logit of greatest magnitude so far, or NULL where nobody asks for it.
static void forward_head(const keel_context *context, const sizes *s, const scratch *w, const head_data *h,
                         const keel_attention_layer *layer, int thread, float *greatest) {
    size_t e = context->qkv_size, c = context->core_size, d = s->d, dp = s->dp;
    const keel_formats *formats = &context->formats;
    const float scale = 1.0f / sqrtf((float)d);
    transpose_tiles(s, h->k, e, w->keys_t);
    keel_tile_copy(s->t, d, h->v, e, w->values, dp);
    keel_round(formats->value, w->values, s->t * dp);
    for (size_t i0 = 0; i0 < s->t; i0 += QUERIES) {
        tile t = {.i0 = i0, .queries = s->t - i0 < QUERIES ? s->t - i0 : QUERIES};
        running row[QUERIES];
        for (size_t r = 0; r < t.queries; r++) row[r] = (running){.greatest = -INFINITY};
        memset(w->out, 0, t.queries * dp * sizeof(float));
        keel_tile_copy(t.queries, d, h->q + i0 * e, e, w->q, dp);
        for (; next_tile(&t); t.j0 += KEYS) {
            keel_tile_mul(t.queries, t.width, d, w->q, dp, w->keys_t + t.j0 * d, KEYS, false, w->p, KEYS);
            if (greatest) *greatest = fmaxf(*greatest, scale * greatest_product(w->p, &t));
            for (size_t r = 0; r < t.queries; r++)
                softmax_row(formats, w->p + r * KEYS, visible(&t, r), t.width, scale, &row[r], w->out + r * dp, dp);
            keel_tile_mul(t.queries, dp, t.keys, w->p, KEYS, w->values + t.j0 * dp, dp, true, w->out, dp);
        }
        size_t at = (h->row0 + i0) * c + h->head * d;
        float *core = layer->state.core + at;
        for (size_t r = 0; r < t.queries; r++) {
            memcpy(core + r * c, w->out + r * dp, d * sizeof(float));
            keel_scale(core + r * c, (float)(1.0 / row[r].total), d);
            h->lse[i0 + r] = row[r].greatest + (float)log(row[r].total);
        }
        round_tile(formats->value, core, c, t.queries, d);
        round_tile(formats->compute, core, c, t.queries, d);
        keel_tap_tile(layer->core_tap, thread, core, at, c, t.queries, d);
    }
}

void keel_attention_core(const keel_context *context, const keel_attention *attention,
                         const keel_attention_layer *layer) {
    const sizes s = sizes_of(context);
    // Flags alone are those of the core.
    const bool asked = layer->logit_tap->site->active & KEEL_FIELDS_BASE;
    const size_t items = context->batch * context->heads;
    keel_tap_begin(layer->core_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
        scratch w;
        scratch_take(&s, attention->scratch + (size_t)thread * attention->scratch_size, &w);
#pragma omp for schedule(static)
        for (size_t item = 0; item < items; item++) {
            const head_data h = head_of(context, layer, item);
            float greatest = 0;
            forward_head(context, &s, &w, &h, layer, thread, asked ? &greatest : NULL);
            attention->greatest[item] = greatest;
        }
    }
    if (asked) keel_tap_at(layer->logit_tap, attention->greatest, items);
    keel_tap_end(layer->core_tap);
    keel_lap(context, KEEL_PART_ATTENTION);
}

void keel_attention_forward(const keel_context *context, const keel_attention *attention,
                            const keel_attention_layer *layer) {
    prepare_qkv(context, attention, layer);
    keel_attention_core(context, attention, layer);
}

// dout . out of every row of a tile: what the softmax's gradient subtracts.
static void row_dots(const float *dout, const float *out, size_t stride, size_t n, size_t d, float *dots) {
    for (size_t r = 0; r < n; r++, dout += stride, out += stride) {
        keel_vec lanes = {0};
        size_t j = 0;
        for (; j + KEEL_LANES <= d; j += KEEL_LANES) lanes += keel_vec_load(dout + j) * keel_vec_load(out + j);
        dots[r] = keel_vec_sum(lanes);
        for (; j < d; j++) dots[r] += dout[j] * out[j];
    }
}

// The softmax's part of the next function with every operation's result in PRECISION.
static void softmax_row_backward_rounded(keel_precision precision, float *p, float *ds, size_t seen, float scale,
                                         float lse, float dot) {
    keel_scale(p, scale, seen);
    keel_round(precision, p, seen);
    (void)keel_row_exp_rounded(precision, p, seen, lse);
    for (size_t j = 0; j < seen; j++) {
        const float d = keel_round_one(precision, p[j] * keel_round_one(precision, ds[j] - dot));
        ds[j] = keel_round_one(precision, d * scale);
    }
}

// P = exp(P scale - lse), DS = P (DS - dot) scale over what the row sees, zeros behind it.
static void softmax_row_backward(const keel_formats *formats, float *p, float *ds, size_t seen, size_t width,
                                 float scale, float lse, float dot) {
    keel_round(formats->compute, p, seen);
    keel_round(formats->value, ds, seen);
    if (formats->softmax != KEEL_FLOAT32) softmax_row_backward_rounded(formats->softmax, p, ds, seen, scale, lse, dot);
    for (size_t j = 0; j < seen && formats->softmax == KEEL_FLOAT32; j += KEEL_LANES) {
        keel_vec e = keel_vec_exp(keel_vec_load(p + j) * scale - lse);
        keel_vec_store(p + j, e);
        keel_vec_store(ds + j, e * (keel_vec_load(ds + j) - dot) * scale);
    }
    keel_round(formats->value, p, seen);
    keel_round(formats->compute, ds, seen);
    clear_rest(p, seen, width);
    clear_rest(ds, seen, width);
}

static void backward_head(const keel_context *context, const keel_attention *attention, const sizes *s,
                          const scratch *w, const head_data *h, const keel_attention_layer *layer, float *dcore,
                          size_t item, int thread) {
    size_t e = context->qkv_size, c = context->core_size, d = s->d, dp = s->dp;
    const float scale = 1.0f / sqrtf((float)d);
    const keel_formats *formats = &context->formats;
    float *dk = attention->dk + item * s->t * dp, *dv = attention->dv + item * s->t * dp;
    transpose_tiles(s, h->k, e, w->keys_t);
    transpose_tiles(s, h->v, e, w->values_t);
    keel_round(formats->value, w->values_t, d * s->tp);
    keel_tile_copy(s->t, d, h->k, e, w->keys, dp);
    memset(dk, 0, s->t * dp * sizeof(float));
    memset(dv, 0, s->t * dp * sizeof(float));
    for (size_t i0 = 0; i0 < s->t; i0 += QUERIES) {
        tile t = {.i0 = i0, .queries = s->t - i0 < QUERIES ? s->t - i0 : QUERIES};
        size_t at = (h->row0 + i0) * c + h->head * d;
        float *dq = attention->dq + (item * s->t + i0) * dp;
        float dots[QUERIES];
        keel_tap_tile(layer->core_grad_tap, thread, dcore + at, at, c, t.queries, d);
        round_tile(formats->compute, dcore + at, c, t.queries, d);
        row_dots(dcore + at, layer->state.core + at, c, t.queries, d, dots);
        keel_tile_copy(t.queries, d, h->q + i0 * e, e, w->q, dp);
        keel_tile_copy(t.queries, d, dcore + at, c, w->dout, dp);
        keel_round(formats->value, w->dout, t.queries * dp);
        for (; next_tile(&t); t.j0 += KEYS) {
            keel_tile_mul(t.queries, t.width, d, w->q, dp, w->keys_t + t.j0 * d, KEYS, false, w->p, KEYS);
            keel_tile_mul(t.queries, t.width, d, w->dout, dp, w->values_t + t.j0 * d, KEYS, false, w->ds, KEYS);
            for (size_t r = 0; r < t.queries; r++)
                softmax_row_backward(formats, w->p + r * KEYS, w->ds + r * KEYS, visible(&t, r), t.width, scale,
                                     h->lse[i0 + r], dots[r]);
            keel_tile_mul_transposed(t.keys, dp, t.queries, w->p, KEYS, w->dout, dp, true, dv + t.j0 * dp, dp);
            keel_tile_mul_transposed(t.keys, dp, t.queries, w->ds, KEYS, w->q, dp, true, dk + t.j0 * dp, dp);
            keel_tile_mul(t.queries, dp, t.keys, w->ds, KEYS, w->keys + t.j0 * dp, dp, t.j0 > 0, dq, dp);
        }
    }
}

// One row of dqkv from the heads' shares: dk and dv are sums over the query heads of a group.
static void gather_row(const keel_context *context, const keel_attention *attention, size_t row, float *out) {
    size_t heads = context->heads, group = heads / context->kv_heads, d = context->head_size, t = context->seq;
    size_t first = row / t * heads; // item of the sequence's head 0
    size_t dp = keel_vec_round_up(d), step = t * dp, at = row % t * dp;
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
            keel_round(context->formats.compute, dqkv + at, rows * e);
            if (has_bias) {
                memset(partial + b * e, 0, e * sizeof(float));
                keel_add_rows(partial + b * e, dqkv + at, rows, e);
            }
        }
    }
    keel_tap_end(layer->qkv_grad_tap);
    if (!has_bias) return;
    float *dbias = context->grad + layer->qkv->bias;
    keel_context_sum_partials(context, partial, context->blocks, e, dbias);
    // A softmax does not change when all keys move by one vector: without rotation the gradient of their bias is zero,
    // and what the sum leaves of it is rounding, which Adam would blow up to steps.
    size_t d = context->head_size;
    if (!attention->position.cosine) memset(dbias + context->heads * d, 0, context->kv_heads * d * sizeof(float));
}

void keel_attention_backward(const keel_context *context, const keel_attention *attention,
                             const keel_attention_layer *layer, float *dcore, float *dqkv) {
    const sizes s = sizes_of(context);
    keel_tap_begin(layer->core_grad_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
        scratch w;
        scratch_take(&s, attention->scratch + (size_t)thread * attention->scratch_size, &w);
#pragma omp for schedule(static)
        for (size_t item = 0; item < context->batch * context->heads; item++) {
            const head_data h = head_of(context, layer, item);
            backward_head(context, attention, &s, &w, &h, layer, dcore, item, thread);
        }
    }
    keel_tap_end(layer->core_grad_tap);
    gather_dqkv(context, attention, layer, dqkv);
    keel_lap(context, KEEL_PART_ATTENTION);
}
