// The norm of the gradient: every parameter once, whatever the layout.
#include <math.h>
#include <string.h>

#include "train/optim/optimizer_state.h"
#include "train/tensor/vector.h"

enum { BLOCK = KEEL_OPTIM_BLOCK, LINE = 16 }; // LINE: elements of a cache line

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
    keel_watch *w = &o->watches[thread];
    const size_t begin = o->all.first_block[thread], end = o->all.first_block[thread + 1];
    for (size_t from = begin, to; from < end; from = to) {
        uint32_t param = o->blocks[from].param;
        keel_tap *tap = o->taps[param].grad;
        keel_watch_begin(w, &o->taps[param].grad, 1);
        for (to = from; to < end && o->blocks[to].param == param; to++) {
            const keel_optim_block *b = &o->blocks[to];
            if (tap->armed) keel_tap_strike(tap, grad + b->offset, b->offset - o->params[param].offset, b->n);
            o->block_sums[to] = sum_of_squares(grad + b->offset, b->n);
            if (isfinite(o->block_sums[to]) && keel_block_take_finite(&w->now[0], b->n)) continue;
            if (w->now[0].site) prefetch_block(grad + b->offset + BLOCK);
            keel_block_add(&w->now[0], grad + b->offset, b->n);
        }
        keel_optim_watch_end(o, &o->all, thread, &o->taps[param].grad, 1, from, to);
    }
}

static void sum_blocks(keel_optimizer *o, float *grad) {
#pragma omp parallel for schedule(static, 1) num_threads(o->threads)
    for (int thread = 0; thread < o->threads; thread++) norm_share(o, grad, thread);
    keel_watch_settle(o->watches, o->threads, 1);
    for (size_t i = 0; i < o->param_count; i++) keel_tap_over(o->taps[i].grad);
}

static bool asked_for_rms(const keel_optimizer *o) {
    bool asked = false;
    for (size_t i = 0; i < o->param_count; i++) asked |= keel_optim_asked(o->taps[i].rms);
    return asked;
}

keel_status keel_optimizer_grad_norm(keel_optimizer *optimizer, float *grad, double *norm) {
    keel_optimizer *o = optimizer;
    double *total = &o->norm_sums[0], *groups = &o->norm_sums[1], *ranks = &groups[o->groups.count];
    sum_blocks(o, grad);
    memset(o->norm_sums, 0, (o->groups.count + 2) * sizeof *o->norm_sums);
    for (size_t b = 0; b < o->block_count; b++) {
        const uint32_t param = o->blocks[b].param;
        if (!o->counts[param]) continue;
        *total += o->block_sums[b];
        groups[o->groups.of_param[param]] += o->block_sums[b];
    }
    *ranks = asked_for_rms(o);
    if (o->norm) {
        const keel_status status = keel_all_reduce(o->norm, o->norm_sums);
        if (status) return status;
        o->rms_everywhere = *ranks == o->norm->plan.comm->size;
    }
    memcpy(o->group_sums, groups, o->groups.count * sizeof *groups);
    *norm = sqrt(*total);
    return KEEL_OK;
}

// True where this rank's is the first of the copies that are made of the same data.
static bool counts_locally(const keel_optimizer *o, const keel_param *param) {
    keel_site_info info;
    keel_param_describe_partial(param, o->zero->mesh, &info);
    return info.replica_index == 0 && param->holder == 0;
}

double keel_optimizer_local_square(keel_optimizer *optimizer, float *grad) {
    keel_optimizer *o = optimizer;
    double total = 0;
    if (!o->zero->shared) {
        sum_blocks(o, grad);
        for (size_t b = 0; b < o->block_count; b++)
            if (counts_locally(o, &o->params[o->blocks[b].param])) total += o->block_sums[b];
        return total;
    }
    for (size_t i = 0; i < o->param_count; i++) {
        const keel_param *p = &o->params[i];
        keel_tap *tap = o->taps[i].grad;
        if (tap->armed) keel_tap_strike(tap, grad + p->offset, 0, p->numel);
        for (size_t at = 0; counts_locally(o, p) && at < p->numel; at += BLOCK)
            total += sum_of_squares(grad + p->offset + at, p->numel - at < BLOCK ? p->numel - at : BLOCK);
        keel_tap_over(tap);
    }
    return total;
}
