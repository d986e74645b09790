// AdamW (Loshchilov and Hutter 2019) over flat buffers: one pass over memory, in blocks that stay in cache while they
// are updated and observed.
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/optim/groups.h"
#include "train/optim/optimizer.h"
#include "train/tensor/arena.h"
#include "train/tensor/vector.h"

// Elements of a block: what one touches of weight, gradient, both states, update and direction, and the next one that
// is fetched meanwhile, fit in L1. LINE: of a cache line.
enum { BLOCK = 1024, LINE = 16 };

enum { EXP_AVG, EXP_AVG_SQ, DIRECTION, UPDATE, WEIGHT, STEP_TAPS }; // in the order of the data flow
static const keel_quantity quantities[STEP_TAPS] = {
    [EXP_AVG] = KEEL_EXP_AVG, [EXP_AVG_SQ] = KEEL_EXP_AVG_SQ, [DIRECTION] = KEEL_ADAM_DIRECTION,
    [UPDATE] = KEEL_UPDATE,   [WEIGHT] = KEEL_WEIGHT,
};

typedef struct param_taps {
    keel_tap *grad;
    keel_tap *step[STEP_TAPS];
    keel_tap *rms;
} param_taps;

typedef struct block {
    uint32_t param;
    uint32_t n;
    size_t offset; // in the flat buffers
} block;

// What a thread has seen of the parameter at hand. A parameter that lies in several threads' shares waits for the end
// of the pass, where the records are added in the threads' order.
typedef struct watch {
    // Threads write to their own all the time: they must not share a line, nor the neighbour that is fetched with it.
    _Alignas(2 * LINE * sizeof(float)) keel_block now[STEP_TAPS];
    keel_block waiting[2][STEP_TAPS]; // of the first and the last parameter of the share
    keel_tap *const *taps[2];         // of WAITING; NULL: none wait
    float *update, *direction;        // [BLOCK]
} watch;

struct keel_optimizer {
    keel_optimizer_config config;
    const keel_param *params;
    size_t param_count;
    size_t numel;
    float *weights;
    keel_groups groups;
    param_taps *taps; // [parameter]
    block *blocks;
    size_t block_count;
    double *block_sums;  // [block] of squares of the gradient, then of what RMS_t is the mean of
    double *group_sums;  // [group]
    float *group_clip;   // [group]
    size_t *first_block; // [threads + 1] shares of the threads
    int threads;
    watch *watches; // [threads]
    keel_arena arena;
    keel_optimizer_state states[2];
};

static keel_status add_taps(keel_optimizer *o, keel_taps *taps, const keel_mesh *mesh) {
    for (size_t i = 0; i < o->param_count; i++) {
        const keel_param *p = &o->params[i];
        keel_site_info info = {.dtype = KEEL_F32};
        keel_param_describe(p, mesh, &info);
        info.quantity = KEEL_GRAD_REDUCED;
        info.phase = KEEL_PHASE_REDUCTION;
        info.order = KEEL_ORDER_GRAD_REDUCED + (uint32_t)(o->param_count - 1 - i);
        keel_status status = keel_taps_add(taps, &info, &o->taps[i].grad);
        info.phase = KEEL_PHASE_OPTIMIZER;
        for (uint32_t q = 0; q < STEP_TAPS && status == KEEL_OK; q++) {
            info.quantity = quantities[q];
            info.order = (uint32_t)i * STEP_TAPS + q;
            status = keel_taps_add(taps, &info, &o->taps[i].step[q]);
        }
        if (status != KEEL_OK) return status;
        info.quantity = KEEL_ADAM_RMS;
        info.ndim = 1;
        info.shape[0] = info.numel = 1;
        status = keel_taps_add(taps, &info, &o->taps[i].rms);
        if (status != KEEL_OK) return status;
    }
    return KEEL_OK;
}

static void cut_blocks(keel_optimizer *o) {
    size_t k = 0;
    for (size_t i = 0; i < o->param_count; i++)
        for (size_t at = 0; at < o->params[i].numel; at += BLOCK, k++) {
            size_t rest = o->params[i].numel - at;
            o->blocks[k] = (block){(uint32_t)i, (uint32_t)(rest < BLOCK ? rest : BLOCK), o->params[i].offset + at};
        }
    // Shares of equal numbers of elements.
    size_t b = 0;
    for (size_t t = 0; t < (size_t)o->threads; t++) {
        size_t begin = o->numel / (size_t)o->threads * t;
        while (b < o->block_count && o->blocks[b].offset < begin) b++;
        o->first_block[t] = b;
    }
    o->first_block[o->threads] = o->block_count;
}

static void plan(keel_optimizer *o) {
    o->states[0] = (keel_optimizer_state){"exp_avg", keel_arena_take(&o->arena, o->numel)};
    o->states[1] = (keel_optimizer_state){"exp_avg_sq", keel_arena_take(&o->arena, o->numel)};
    for (int t = 0; t < o->threads; t++) {
        o->watches[t].update = keel_arena_take(&o->arena, BLOCK);
        o->watches[t].direction = keel_arena_take(&o->arena, BLOCK);
        // Who observes a block reads ahead of it: not into what another thread writes.
        (void)keel_arena_take(&o->arena, BLOCK);
    }
}

keel_status keel_optimizer_open(const keel_optimizer_config *config, keel_model *model, keel_taps *taps,
                                const keel_mesh *mesh, keel_optimizer **optimizer) {
    size_t param_count;
    const keel_param *params = keel_model_params(model, &param_count);
    if (!param_count) return keel_fail(KEEL_ERR_USAGE, "an optimizer of a model without parameters");
    keel_optimizer *o = calloc(1, sizeof *o);
    if (!o) return keel_fail(KEEL_ERR_MEMORY, "no memory for the optimizer");
    o->config = *config;
    o->params = params;
    o->param_count = param_count;
    o->numel = keel_model_numel(model);
    o->weights = keel_model_weights(model);
    o->threads = keel_taps_threads(taps);
    for (size_t i = 0; i < o->param_count; i++) o->block_count += (o->params[i].numel + BLOCK - 1) / BLOCK;
    size_t threads = (size_t)o->threads;
    o->taps = calloc(param_count, sizeof *o->taps);
    o->blocks = calloc(o->block_count, sizeof *o->blocks);
    o->block_sums = calloc(o->block_count, sizeof *o->block_sums);
    o->first_block = calloc(threads + 1, sizeof *o->first_block);
    o->watches = aligned_alloc(_Alignof(watch), threads * sizeof *o->watches);
    o->group_sums = calloc(config->group_count + 1, sizeof *o->group_sums);
    o->group_clip = calloc(config->group_count + 1, sizeof *o->group_clip);
    keel_status status = KEEL_OK;
    if (!o->taps || !o->blocks || !o->block_sums || !o->first_block || !o->watches || !o->group_sums || !o->group_clip)
        status = keel_fail(KEEL_ERR_MEMORY, "no memory for the optimizer");
    if (o->watches) memset(o->watches, 0, threads * sizeof *o->watches);
    if (status == KEEL_OK) status = keel_groups_open(config, o->params, o->param_count, &o->groups);
    if (status == KEEL_OK) status = add_taps(o, taps, mesh);
    if (status == KEEL_OK) {
        // Beside the weights, the first piece of the model, and the gradients, the first of another arena.
        o->arena.pieces = o->arena.first = 1;
        plan(o);
        status = keel_arena_allocate(&o->arena);
    }
    if (status != KEEL_OK) {
        keel_optimizer_close(o);
        return status;
    }
    plan(o);
    cut_blocks(o);
    *optimizer = o;
    return KEEL_OK;
}

void keel_optimizer_close(keel_optimizer *optimizer) {
    if (!optimizer) return;
    keel_groups_close(&optimizer->groups);
    keel_arena_free(&optimizer->arena);
    free(optimizer->taps);
    free(optimizer->blocks);
    free(optimizer->block_sums);
    free(optimizer->first_block);
    free(optimizer->watches);
    free(optimizer->group_sums);
    free(optimizer->group_clip);
    free(optimizer);
}

const keel_optimizer_state *keel_optimizer_states(keel_optimizer *optimizer, size_t *count) {
    *count = 2;
    return optimizer->states;
}

size_t keel_optimizer_bytes(const keel_optimizer *optimizer) {
    return optimizer->arena.size;
}

// ---- observation by parameter within a thread's share of the blocks ----

static void watch_begin(watch *w, keel_tap *const *taps, size_t count) {
    for (size_t q = 0; q < count; q++) keel_block_begin(&w->now[q], taps[q]->site);
}

// The parameter of blocks [FROM, TO) of the share [BEGIN, END) is over: it is recorded at once, or waits where other
// threads hold parts of it.
static void watch_end(const keel_optimizer *o, watch *w, keel_tap *const *taps, size_t count, size_t from, size_t to,
                      size_t begin, size_t end) {
    uint32_t param = o->blocks[from].param;
    bool before = from == begin && begin > 0 && o->blocks[begin - 1].param == param;
    bool after = to == end && end < o->block_count && o->blocks[end].param == param;
    if (!before && !after) {
        for (size_t q = 0; q < count; q++) keel_block_end_both(&w->now[q], keel_tap_other(taps[q]));
        return;
    }
    size_t slot = before ? 0 : 1;
    memcpy(w->waiting[slot], w->now, count * sizeof *w->now);
    w->taps[slot] = taps;
}

static void end_waiting(keel_optimizer *o, size_t count) {
    for (int t = 0; t < o->threads; t++)
        for (size_t slot = 0; slot < 2; slot++) {
            watch *w = &o->watches[t];
            keel_tap *const *taps = w->taps[slot];
            for (size_t q = 0; q < count && taps; q++)
                keel_block_end_both(&w->waiting[slot][q], keel_tap_other(taps[q]));
            w->taps[slot] = NULL;
        }
}

// ---- the norm of the gradient ----

// In float64, by lanes and then lane by lane: the order does not depend on threads.
static double sum_of_squares(const float *x, size_t n) {
    enum { WIDE = KEEL_LANES / 2, SUMS = 4 };
    keel_vec64 lanes[SUMS] = {{0}};
    size_t i = 0;
    for (; i + SUMS * WIDE <= n; i += SUMS * WIDE)
        for (size_t k = 0; k < SUMS; k++) {
            keel_vec64 y = keel_vec64_load(x + i + k * WIDE);
            lanes[k] += y * y;
        }
    const keel_vec64 all = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    double sum = 0;
    for (size_t k = 0; k < WIDE; k++) sum += all[k];
    for (; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

static void prefetch_block(const float *x) {
    for (size_t i = 0; i < BLOCK; i += LINE) __builtin_prefetch(x + i, 0, 2);
}

static void norm_share(keel_optimizer *o, float *grad, int thread) {
    watch *w = &o->watches[thread];
    size_t begin = o->first_block[thread], end = o->first_block[thread + 1];
    for (size_t from = begin, to; from < end; from = to) {
        uint32_t param = o->blocks[from].param;
        keel_tap *tap = o->taps[param].grad;
        watch_begin(w, &o->taps[param].grad, 1);
        for (to = from; to < end && o->blocks[to].param == param; to++) {
            const block *b = &o->blocks[to];
            if (tap->armed) keel_tap_strike(tap, grad + b->offset, b->offset - o->params[param].offset, b->n);
            o->block_sums[to] = sum_of_squares(grad + b->offset, b->n);
            if (w->now[0].site) prefetch_block(grad + b->offset + BLOCK);
            keel_block_add(&w->now[0], grad + b->offset, b->n);
        }
        watch_end(o, w, &o->taps[param].grad, 1, from, to, begin, end);
    }
}

keel_tap *keel_optimizer_grad_tap(keel_optimizer *optimizer, size_t param) {
    return optimizer->taps[param].grad;
}

double keel_optimizer_grad_norm(keel_optimizer *optimizer, float *grad) {
    keel_optimizer *o = optimizer;
#pragma omp parallel for schedule(static, 1) num_threads(o->threads)
    for (int thread = 0; thread < o->threads; thread++) norm_share(o, grad, thread);
    end_waiting(o, 1);
    for (size_t i = 0; i < o->param_count; i++) keel_tap_over(o->taps[i].grad);
    double total = 0;
    for (size_t g = 0; g < o->groups.count; g++) o->group_sums[g] = 0;
    for (size_t b = 0; b < o->block_count; b++) {
        total += o->block_sums[b];
        o->group_sums[o->groups.of_param[o->blocks[b].param]] += o->block_sums[b];
    }
    return sqrt(total);
}

// ---- the update ----

typedef struct coefficients {
    float clip, beta1, rest1, beta2, rest2; // rest: 1 - beta
    float unbias1, unbias2;                 // 1 / (1 - beta^t)
    float eps, lr, keep;                    // keep: 1 - lr decay
    float least;                            // of v_hat in RMS_t: eps^2, and never 0
} coefficients;

static coefficients coefficients_of(const keel_optimizer *o, uint32_t param, const keel_update *update) {
    const keel_optimizer_config *c = &o->config;
    size_t group = o->groups.of_param[param];
    double lr = update->lr * o->groups.list[group].lr_scale, t = (double)update->update;
    return (coefficients){
        .clip = o->group_clip[group],
        .beta1 = (float)c->beta1,
        .rest1 = (float)(1 - c->beta1),
        .beta2 = (float)c->beta2,
        .rest2 = (float)(1 - c->beta2),
        .unbias1 = (float)(1 / (1 - pow(c->beta1, t))),
        .unbias2 = (float)(1 / (1 - pow(c->beta2, t))),
        .eps = (float)c->eps,
        .lr = (float)lr,
        .keep = (float)(1 - lr * o->groups.decay[param]),
        .least = fmaxf((float)(c->eps * c->eps), FLT_MIN),
    };
}

typedef struct block_data { // a block's first elements
    float *weight;
    const float *grad;
    float *exp_avg, *exp_avg_sq, *direction, *change;
} block_data;

typedef struct elements { // of a vector
    keel_vec grad, weight, exp_avg, exp_avg_sq, direction, change;
} elements;

// *RATIOS, where wanted, gains g^2 / max(v_hat, eps^2), whose mean is the square of RMS_t.
KEEL_INLINE elements update_vector(elements x, const coefficients *c, keel_vec *ratios) {
    keel_vec g = x.grad * c->clip;
    x.exp_avg = c->beta1 * x.exp_avg + c->rest1 * g;
    x.exp_avg_sq = c->beta2 * x.exp_avg_sq + c->rest2 * (g * g);
    keel_vec v_hat = x.exp_avg_sq * c->unbias2;
    x.direction = keel_vec_div(x.exp_avg * c->unbias1, keel_vec_sqrt(v_hat) + c->eps);
    keel_vec after = x.weight * c->keep - c->lr * x.direction;
    x.change = after - x.weight;
    x.weight = after;
    if (ratios) *ratios += keel_vec_div(g * g, keel_vec_max(v_hat, keel_vec_set(c->least)));
    return x;
}

KEEL_INLINE void update_elements(const block_data *p, size_t at, const coefficients *c, keel_vec *ratios) {
    elements x = {.grad = keel_vec_load(p->grad + at),
                  .weight = keel_vec_load(p->weight + at),
                  .exp_avg = keel_vec_load(p->exp_avg + at),
                  .exp_avg_sq = keel_vec_load(p->exp_avg_sq + at)};
    x = update_vector(x, c, ratios);
    keel_vec_store(p->exp_avg + at, x.exp_avg);
    keel_vec_store(p->exp_avg_sq + at, x.exp_avg_sq);
    keel_vec_store(p->weight + at, x.weight);
    keel_vec_store(p->direction + at, x.direction);
    keel_vec_store(p->change + at, x.change);
}

// The last N < KEEL_LANES.
KEEL_INLINE void update_rest(const block_data *p, size_t at, size_t n, const coefficients *c, keel_vec *ratios) {
    elements x = {.grad = keel_vec_load_part(p->grad + at, n, 0),
                  .weight = keel_vec_load_part(p->weight + at, n, 0),
                  .exp_avg = keel_vec_load_part(p->exp_avg + at, n, 0),
                  .exp_avg_sq = keel_vec_load_part(p->exp_avg_sq + at, n, 0)};
    x = update_vector(x, c, ratios);
    keel_vec_store_part(p->exp_avg + at, x.exp_avg, n);
    keel_vec_store_part(p->exp_avg_sq + at, x.exp_avg_sq, n);
    keel_vec_store_part(p->weight + at, x.weight, n);
    keel_vec_store_part(p->direction + at, x.direction, n);
    keel_vec_store_part(p->change + at, x.change, n);
}

// The pass is bound by memory. Weight and gradient of the next block are asked for here, line by line, which with the
// states are more streams than the CPU follows by itself. Beyond the end the requests are harmless.
KEEL_INLINE double update_block_as(bool rms, const block_data *data, size_t n, const coefficients *k) {
    const block_data p = *data;
    const coefficients c = *k;
    keel_vec ratios = {0};
    size_t i = 0;
    for (; i + KEEL_LANES <= n; i += KEEL_LANES) {
        __builtin_prefetch(p.weight + i + BLOCK);
        __builtin_prefetch(p.grad + i + BLOCK);
        update_elements(&p, i, &c, rms ? &ratios : NULL);
    }
    if (i < n) update_rest(&p, i, n - i, &c, rms ? &ratios : NULL);
    double sum = 0;
    for (size_t lane = 0; rms && lane < KEEL_LANES; lane++) sum += (double)ratios[lane];
    return sum;
}

// The sum of RMS_t over the block, 0 where it is not wanted.
static double update_block(bool rms, const block_data *data, size_t n, const coefficients *k) {
    return rms ? update_block_as(true, data, n, k) : update_block_as(false, data, n, k);
}

// Part Q of STEP_TAPS of the next block: while this one is observed, memory need not rest.
static void prefetch_next(const block_data *p, size_t q) {
    enum { PART = (BLOCK + STEP_TAPS - 1) / STEP_TAPS };
    const float *const next[] = {p->weight + BLOCK, p->grad + BLOCK, p->exp_avg + BLOCK, p->exp_avg_sq + BLOCK};
    for (size_t k = 0; k < sizeof next / sizeof *next; k++)
        for (size_t i = q * PART; i < (q + 1) * PART; i += LINE) __builtin_prefetch(next[k] + i, 0, 2);
}

// A fault at tap Q strikes what the optimizer writes, and what is made of it as well.
static void strike_block(const keel_optimizer *o, const keel_tap *tap, size_t q, const block *b,
                         float *const data[STEP_TAPS]) {
    const size_t at = b->offset - o->params[b->param].offset;
    float *weight = data[WEIGHT], *change = data[UPDATE];
    const bool rounds = tap->fault->kind == KEEL_FAULT_FAKE_FLOAT32; // the update is what then becomes of the weight
    for (size_t i = 0; rounds && i < b->n; i++) change[i] -= weight[i];
    keel_tap_strike(tap, data[q], at, b->n);
    for (size_t i = 0; rounds && i < b->n; i++) change[i] += weight[i];
    for (size_t later = q + 1; later < STEP_TAPS && q >= DIRECTION; later++)
        keel_tap_strike(tap, data[later], at, b->n);
}

static void observe_block(keel_optimizer *o, watch *w, const block *b, const block_data *p) {
    keel_tap *const *taps = o->taps[b->param].step;
    float *const data[STEP_TAPS] = {
        [EXP_AVG] = p->exp_avg, [EXP_AVG_SQ] = p->exp_avg_sq, [DIRECTION] = p->direction,
        [UPDATE] = p->change,   [WEIGHT] = p->weight,
    };
    for (size_t q = 0; q < STEP_TAPS; q++)
        if (taps[q]->armed) strike_block(o, taps[q], q, b, data);
    for (size_t q = 0; q < STEP_TAPS; q++) {
        if (w->now[q].site) prefetch_next(p, q);
        keel_block_add(&w->now[q], data[q], b->n);
    }
}

static bool asked_for(const keel_tap *tap) {
    return tap->site->active & KEEL_FIELDS_BASE;
}

static void update_share(keel_optimizer *o, const float *grad, const keel_update *update, int thread) {
    watch *w = &o->watches[thread];
    size_t begin = o->first_block[thread], end = o->first_block[thread + 1];
    for (size_t from = begin, to; from < end; from = to) {
        uint32_t param = o->blocks[from].param;
        const coefficients k = coefficients_of(o, param, update);
        const bool rms = asked_for(o->taps[param].rms);
        watch_begin(w, o->taps[param].step, STEP_TAPS);
        for (to = from; to < end && o->blocks[to].param == param; to++) {
            const block *b = &o->blocks[to];
            const block_data p = {
                .weight = o->weights + b->offset,
                .grad = grad + b->offset,
                .exp_avg = o->states[0].data + b->offset,
                .exp_avg_sq = o->states[1].data + b->offset,
                .direction = w->direction,
                .change = w->update,
            };
            o->block_sums[to] = update_block(rms, &p, b->n, &k);
            observe_block(o, w, b, &p);
        }
        watch_end(o, w, o->taps[param].step, STEP_TAPS, from, to, begin, end);
    }
}

// From the sums that the update has left of each block.
static void observe_rms(keel_optimizer *o) {
    for (size_t k = 0; k < o->block_count;) {
        const uint32_t param = o->blocks[k].param;
        double sum = 0;
        for (; k < o->block_count && o->blocks[k].param == param; k++) sum += o->block_sums[k];
        float value = (float)sqrt(sum / (double)o->params[param].numel);
        if (asked_for(o->taps[param].rms)) keel_tap_at(o->taps[param].rms, &value, 1);
    }
}

static void disarm(keel_optimizer *o) {
    for (size_t i = 0; i < o->param_count; i++)
        for (size_t q = 0; q < STEP_TAPS; q++) keel_tap_over(o->taps[i].step[q]);
}

void keel_optimizer_step(keel_optimizer *optimizer, const float *grad, const keel_update *update) {
    keel_optimizer *o = optimizer;
    for (size_t g = 0; g < o->groups.count; g++) {
        double own = o->groups.list[g].max_grad_norm;
        double left = sqrt(o->group_sums[g]) * update->clip_factor;
        o->group_clip[g] = (float)(update->clip_factor * (isnan(own) ? 1 : keel_clip_factor(left, own)));
    }
#pragma omp parallel for schedule(static, 1) num_threads(o->threads)
    for (int thread = 0; thread < o->threads; thread++) update_share(o, grad, update, thread);
    end_waiting(o, STEP_TAPS);
    observe_rms(o);
    disarm(o);
}

void keel_optimizer_skip(keel_optimizer *optimizer) {
    keel_optimizer *o = optimizer;
    float *zeros = o->watches[0].update;
    memset(zeros, 0, BLOCK * sizeof *zeros);
    for (size_t i = 0; i < o->param_count; i++) {
        const keel_param *p = &o->params[i];
        keel_tap_at(o->taps[i].step[EXP_AVG], o->states[0].data + p->offset, p->numel);
        keel_tap_at(o->taps[i].step[EXP_AVG_SQ], o->states[1].data + p->offset, p->numel);
        for (size_t at = 0; at < p->numel; at += BLOCK) {
            size_t rest = p->numel - at;
            keel_observe(o->taps[i].step[UPDATE]->site, zeros, rest < BLOCK ? rest : BLOCK);
        }
        keel_tap_at(o->taps[i].step[WEIGHT], o->weights + p->offset, p->numel);
    }
    disarm(o);
}
