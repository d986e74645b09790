// AdamW (Loshchilov and Hutter 2019) over flat buffers: one pass over memory, in blocks that stay in cache while they
// are updated and observed.
#include <float.h>
#include <math.h>
#include <string.h>

#include "train/optim/optimizer_state.h"
#include "train/tensor/vector.h"

enum { BLOCK = KEEL_OPTIM_BLOCK, LINE = 16 }; // LINE: elements of a cache line
enum {
    EXP_AVG = KEEL_STEP_EXP_AVG,
    EXP_AVG_SQ = KEEL_STEP_EXP_AVG_SQ,
    DIRECTION = KEEL_STEP_DIRECTION,
    UPDATE = KEEL_STEP_UPDATE,
    WEIGHT = KEEL_STEP_WEIGHT,
    STEP_TAPS = KEEL_STEP_TAPS
};

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

// What the update of a block tells besides.
typedef struct tally {
    keel_vec ratios; // where wanted: sums of g^2 / max(v_hat, eps^2), whose mean is the square of RMS_t
    keel_vec zero;   // unless something that was written is not finite
} tally;

// A change that is finite comes of weights that are, and they of a direction and an exp_avg that are.
KEEL_INLINE elements update_vector(elements x, const coefficients *c, bool rms, tally *t) {
    keel_vec g = x.grad * c->clip;
    x.exp_avg = c->beta1 * x.exp_avg + c->rest1 * g;
    x.exp_avg_sq = c->beta2 * x.exp_avg_sq + c->rest2 * (g * g);
    keel_vec v_hat = x.exp_avg_sq * c->unbias2;
    x.direction = keel_vec_div(x.exp_avg * c->unbias1, keel_vec_sqrt(v_hat) + c->eps);
    keel_vec after = x.weight * c->keep - c->lr * x.direction;
    x.change = after - x.weight;
    x.weight = after;
    t->zero += x.change * 0.0f + x.exp_avg_sq * 0.0f;
    if (rms) t->ratios += keel_vec_div(g * g, keel_vec_max(v_hat, keel_vec_set(c->least)));
    return x;
}

KEEL_INLINE void update_elements(const block_data *p, size_t at, const coefficients *c, bool rms, tally *t) {
    elements x = {.grad = keel_vec_load(p->grad + at),
                  .weight = keel_vec_load(p->weight + at),
                  .exp_avg = keel_vec_load(p->exp_avg + at),
                  .exp_avg_sq = keel_vec_load(p->exp_avg_sq + at)};
    x = update_vector(x, c, rms, t);
    keel_vec_store(p->exp_avg + at, x.exp_avg);
    keel_vec_store(p->exp_avg_sq + at, x.exp_avg_sq);
    keel_vec_store(p->weight + at, x.weight);
    keel_vec_store(p->direction + at, x.direction);
    keel_vec_store(p->change + at, x.change);
}

// The last N < KEEL_LANES.
KEEL_INLINE void update_rest(const block_data *p, size_t at, size_t n, const coefficients *c, bool rms, tally *t) {
    elements x = {.grad = keel_vec_load_part(p->grad + at, n, 0),
                  .weight = keel_vec_load_part(p->weight + at, n, 0),
                  .exp_avg = keel_vec_load_part(p->exp_avg + at, n, 0),
                  .exp_avg_sq = keel_vec_load_part(p->exp_avg_sq + at, n, 0)};
    x = update_vector(x, c, rms, t);
    keel_vec_store_part(p->exp_avg + at, x.exp_avg, n);
    keel_vec_store_part(p->exp_avg_sq + at, x.exp_avg_sq, n);
    keel_vec_store_part(p->weight + at, x.weight, n);
    keel_vec_store_part(p->direction + at, x.direction, n);
    keel_vec_store_part(p->change + at, x.change, n);
}

// The pass is bound by memory. Weight and gradient of the next block are asked for here, line by line, which with the
// states are more streams than the CPU follows by itself; its states are while this one is observed, when memory would
// rest. Beyond the end the requests are harmless.
KEEL_INLINE double update_block_as(bool rms, const block_data *data, size_t n, const coefficients *k, bool *finite) {
    const block_data p = *data;
    const coefficients c = *k;
    tally t = {0};
    size_t i = 0;
    for (; i + KEEL_LANES <= n; i += KEEL_LANES) {
        __builtin_prefetch(p.weight + i + BLOCK);
        __builtin_prefetch(p.grad + i + BLOCK);
        update_elements(&p, i, &c, rms, &t);
    }
    if (i < n) update_rest(&p, i, n - i, &c, rms, &t);
    double sum = 0;
    for (size_t lane = 0; rms && lane < KEEL_LANES; lane++) sum += (double)t.ratios[lane];
    *finite = keel_vec_sum(t.zero) == 0;
    return sum;
}

// The sum of RMS_t over the block, 0 where it is not wanted. *FINITE: all that it wrote is.
static double update_block(bool rms, const block_data *data, size_t n, const coefficients *k, bool *finite) {
    return rms ? update_block_as(true, data, n, k, finite) : update_block_as(false, data, n, k, finite);
}

// Part Q of STEP_TAPS of the next block's states.
static void prefetch_states(const block_data *p, size_t q) {
    enum { PART = (BLOCK + STEP_TAPS - 1) / STEP_TAPS };
    for (size_t i = q * PART; i < (q + 1) * PART; i += LINE) {
        __builtin_prefetch(p->exp_avg + BLOCK + i, 0, 2);
        __builtin_prefetch(p->exp_avg_sq + BLOCK + i, 0, 2);
    }
}

// A fault at tap Q strikes what the optimizer writes, and what is made of it as well.
static void strike_block(const keel_optimizer *o, const keel_tap *tap, size_t q, const keel_optim_block *b,
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

static void observe_block(keel_optimizer *o, keel_watch *w, const keel_optim_block *b, const block_data *p,
                          bool finite) {
    keel_tap *const *taps = o->taps[b->param].step;
    float *const data[STEP_TAPS] = {
        [EXP_AVG] = p->exp_avg, [EXP_AVG_SQ] = p->exp_avg_sq, [DIRECTION] = p->direction,
        [UPDATE] = p->change,   [WEIGHT] = p->weight,
    };
    for (size_t q = 0; q < STEP_TAPS; q++) {
        if (!taps[q]->armed) continue;
        strike_block(o, taps[q], q, b, data);
        finite = false;
    }
    for (size_t q = 0; q < STEP_TAPS; q++) {
        if (finite && keel_block_take_finite(&w->now[q], b->n)) continue;
        if (w->now[q].site) prefetch_states(p, q);
        keel_block_add(&w->now[q], data[q], b->n);
    }
}

static void update_share(keel_optimizer *o, const float *grad, const keel_update *update, const keel_optim_pass *pass,
                         int thread) {
    keel_watch *w = &o->watches[thread];
    const size_t begin = pass->first_block[thread], end = pass->first_block[thread + 1];
    for (size_t from = begin, to; from < end; from = to) {
        uint32_t param = o->blocks[from].param;
        const coefficients k = coefficients_of(o, param, update);
        const bool rms = keel_optim_asked(o->taps[param].rms);
        keel_watch_begin(w, o->taps[param].step, STEP_TAPS);
        for (to = from; to < end && o->blocks[to].param == param; to++) {
            const keel_optim_block *b = &o->blocks[to];
            const block_data p = {
                .weight = o->weights + b->offset,
                .grad = grad + b->offset,
                .exp_avg = o->states[0].data + b->at,
                .exp_avg_sq = o->states[1].data + b->at,
                .direction = o->directions[thread],
                .change = o->updates[thread],
            };
            bool finite;
            o->block_sums[to] = update_block(rms, &p, b->n, &k, &finite);
            observe_block(o, w, b, &p, finite);
        }
        keel_optim_watch_end(o, pass, thread, o->taps[param].step, STEP_TAPS, from, to);
    }
}

// From the sums that the update has left of each block.
static keel_status observe_rms(keel_optimizer *o) {
    if (o->rms && !o->rms_everywhere) return KEEL_OK; // who is not asked has no sums
    memset(o->rms_sums, 0, o->param_count * sizeof *o->rms_sums);
    for (size_t k = 0; k < o->block_count; k++) {
        const uint32_t param = o->blocks[k].param;
        if (o->counts_in_stage[param]) o->rms_sums[param] += o->block_sums[k];
    }
    const keel_status status = o->rms ? keel_all_reduce(o->rms, o->rms_sums) : KEEL_OK;
    if (status) return status;
    for (size_t i = 0; i < o->param_count; i++) {
        keel_tap *tap = o->taps[i].rms;
        float value = (float)sqrt(o->rms_sums[i] / (double)o->params[i].whole_numel);
        if (keel_optim_asked(tap)) keel_tap_at(tap, &value, 1);
    }
    return KEEL_OK;
}

static void disarm(keel_optimizer *o) {
    for (size_t i = 0; i < o->param_count; i++)
        for (size_t q = 0; q < STEP_TAPS; q++) keel_tap_over(o->taps[i].step[q]);
}

// ---- the weights of other owners ----

static keel_status start_gather(keel_optimizer *o, size_t bucket) {
    keel_collective *gather = o->gathers[bucket];
    keel_status status = KEEL_OK;
    if (gather) status = keel_all_gather_start(gather, o->weights + o->zero->buckets[bucket].begin);
    bool done = true;
    for (size_t b = 0; !status && done && b <= bucket; b++)
        if (o->gathers[b]) status = keel_collective_test(o->gathers[b], &done);
    return status;
}

static keel_status wait_gathers(keel_optimizer *o) {
    keel_status status = KEEL_OK;
    for (size_t b = 0; !status && b < o->zero->count; b++)
        if (o->gathers[b]) status = keel_collective_wait(o->gathers[b]);
    return status;
}

// ---- the step ----

static keel_status first_of(keel_status status, keel_status later) {
    return status ? status : later;
}

static void clip_groups(keel_optimizer *o, const keel_update *update) {
    for (size_t g = 0; g < o->groups.count; g++) {
        double own = o->groups.list[g].max_grad_norm;
        double left = sqrt(o->group_sums[g]) * update->clip_factor;
        o->group_clip[g] = (float)(update->clip_factor * (isnan(own) ? 1 : keel_clip_factor(left, own)));
    }
}

static keel_status run_pass(keel_optimizer *o, const float *grad, const keel_update *update,
                            const keel_optim_pass *pass) {
    const keel_status status = o->offload ? keel_offload_take(o->offload, pass->window) : KEEL_OK;
    if (status) return status;
#pragma omp parallel for schedule(static, 1) num_threads(o->threads)
    for (int thread = 0; thread < o->threads; thread++) update_share(o, grad, update, pass, thread);
    keel_watch_settle(o->watches, o->threads, STEP_TAPS);
    const bool last = pass + 1 == o->passes + o->pass_count || pass[1].window != pass->window;
    if (o->offload && last) keel_offload_give(o->offload, pass->window);
    return KEEL_OK;
}

keel_status keel_optimizer_step(keel_optimizer *optimizer, const float *grad, const keel_update *update) {
    keel_optimizer *o = optimizer;
    const bool offloaded = o->offload && !update->leave;
    keel_status status = KEEL_OK;
    clip_groups(o, update);
    if (update->leave) {
        memset(o->block_sums, 0, o->block_count * sizeof *o->block_sums);
        keel_optimizer_skip(o);
    }
    if (offloaded) keel_offload_begin(o->offload);
    // A rank whose states are lost updates no more, and meets the others wherever they wait for it.
    for (size_t p = 0; p < o->pass_count; p++) {
        if (!status && !update->leave) status = run_pass(o, grad, update, &o->passes[p]);
        if (o->passes[p].completes) status = first_of(status, start_gather(o, o->passes[p].bucket));
    }
    if (offloaded) keel_offload_end(o->offload);
    if (o->rms || !update->leave) status = first_of(status, observe_rms(o));
    status = first_of(status, wait_gathers(o));
    disarm(o);
    return status;
}

// What the site of TAP has seen of the span is N zeros.
static void observe_zeros(const keel_optimizer *o, const keel_tap *tap, size_t n) {
    const float *zeros = o->updates[0];
    for (size_t at = 0; at < n; at += BLOCK) keel_observe(tap->site, zeros, n - at < BLOCK ? n - at : BLOCK);
}

void keel_optimizer_skip(keel_optimizer *optimizer) {
    keel_optimizer *o = optimizer;
    const size_t portion = keel_optimizer_portion(o);
    memset(o->updates[0], 0, BLOCK * sizeof(float));
    for (size_t i = 0; i < o->zero->span_count; i++) {
        const keel_zero_span *span = &o->zero->spans[i];
        const size_t within = span->offset - o->params[span->param].offset;
        keel_tap *const *taps = o->taps[span->param].step;
        for (size_t at = 0, n; at < span->count; at += n) {
            n = span->count - at < portion ? span->count - at : portion;
            keel_tap_part(taps[EXP_AVG], o->states[0].data + span->at + at, within + at, n);
            keel_tap_part(taps[EXP_AVG_SQ], o->states[1].data + span->at + at, within + at, n);
            keel_optimizer_rest(o);
        }
        observe_zeros(o, taps[UPDATE], span->count);
        keel_tap_part(taps[WEIGHT], o->weights + span->offset, within, span->count);
    }
    disarm(o);
}
