#include "train/parallel/bucket.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/tensor/arena.h"
#include "train/tensor/ops.h"
#include "train/tensor/precision.h"

enum { PIECE = 16 << 10 }; // elements that a thread adds and observes while they are in cache

struct keel_buckets {
    keel_buckets_plan plan;
    const keel_param *params;
    size_t param_count, numel;
    keel_tap **taps; // grad_unreduced of each parameter
    keel_arena arena;
    float *sum; // [numel]
    float *own; // [numel]: a micro-batch's gradient; SUM itself without accumulation
    const keel_zero *zero;
    keel_collective **collectives; // [bucket]; NULL where one rank alone holds what is in it
    MPI_Op op;                     // of the buckets' sums
    keel_collective *tied;         // between the first and the last stage, of a table that both hold; NULL: none
    size_t tied_count;             // its elements, the first of the flat buffer
    size_t micro;
    size_t param_left; // parameters before this one are not ready yet
    size_t started;    // buckets, from the end of the buffer, whose reduction has begun
    size_t finished;   // of these, the first ones that are known to be complete
    bool local;        // nothing is reduced
    keel_status status;
};

static void plan_gradients(keel_buckets *buckets) {
    buckets->sum = keel_arena_take(&buckets->arena, buckets->numel);
    buckets->own = buckets->plan.accumulation > 1 ? keel_arena_take(&buckets->arena, buckets->numel) : buckets->sum;
}

static keel_status add_taps(keel_buckets *made) {
    for (size_t i = 0; i < made->param_count; i++) {
        const keel_param *param = &made->params[i];
        keel_site_info info = {
            .quantity = KEEL_GRAD_UNREDUCED, .dtype = KEEL_F32, .phase = KEEL_PHASE_BACKWARD, .order = param->order};
        keel_param_describe_partial(param, made->plan.mesh, &info);
        const keel_status status = keel_taps_add(made->plan.taps, &info, &made->taps[i]);
        if (status) return status;
        made->taps[i]->numel = param->numel;
    }
    return KEEL_OK;
}

static void add_bf16(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)type;
    const float *x = in;
    float *y = inout;
    for (int i = 0; i < *count; i++) y[i] = keel_round_to_bf16(x[i] + y[i]);
}

static void add_f16(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)type;
    const float *x = in;
    float *y = inout;
    for (int i = 0; i < *count; i++) y[i] = keel_round_to_f16(x[i] + y[i]);
}

static keel_status open_op(keel_buckets *made) {
    MPI_User_function *const functions[] = {[KEEL_BFLOAT16] = add_bf16, [KEEL_FLOAT16] = add_f16};
    made->op = MPI_SUM;
    if (made->plan.precision == KEEL_FLOAT32) return KEEL_OK;
    if (MPI_Op_create(functions[made->plan.precision], 1, &made->op) == MPI_SUCCESS) return KEEL_OK;
    made->op = MPI_SUM;
    return keel_fail(KEEL_ERR_COMM, "MPI made no operation for sums in %s", keel_precision_name(made->plan.precision));
}

static keel_status add_tied(keel_buckets *made) {
    const keel_buckets_plan *plan = &made->plan;
    if (made->params[0].holders == 1) return KEEL_OK;
    made->tied_count = made->params[0].numel;
    char name[KEEL_SITE_NAME_BYTES + 16];
    snprintf(name, sizeof name, "all_reduce.%s", made->params[0].name);
    return keel_collectives_add(plan->collectives,
                                &(keel_collective_plan){.name = name,
                                                        .kind = KEEL_ALL_REDUCE,
                                                        .when = KEEL_EVERY_STEP,
                                                        .dtype = KEEL_F32,
                                                        .count = made->tied_count,
                                                        .comm = &plan->mesh->ends,
                                                        .op = MPI_SUM,
                                                        .gradient = true},
                                &made->tied);
}

// The K-th bucket from the end of the buffer.
static size_t from_end(const keel_buckets *buckets, size_t k) {
    return buckets->zero->count - 1 - k;
}

static keel_status add_collective(keel_buckets *made, size_t k) {
    const size_t b = from_end(made, k);
    const keel_zero_bucket *bucket = &made->zero->buckets[b];
    const bool scatter = made->zero->shared;
    char name[64];
    if (bucket->comm->size == 1) return KEEL_OK;
    snprintf(name, sizeof name, "%s.gradient.%zu", scatter ? "reduce_scatter" : "all_reduce", k);
    return keel_collectives_add(made->plan.collectives,
                                &(keel_collective_plan){.name = name,
                                                        .kind = scatter ? KEEL_REDUCE_SCATTER : KEEL_ALL_REDUCE,
                                                        .when = KEEL_EVERY_STEP,
                                                        .dtype = KEEL_F32,
                                                        .precision = made->plan.precision,
                                                        .count = bucket->count,
                                                        .share = bucket->share,
                                                        .comm = bucket->comm,
                                                        .op = made->op,
                                                        .gradient = true},
                                &made->collectives[b]);
}

static keel_status add_collectives(keel_buckets *made) {
    if (made->plan.mesh->data_parallel.size == 1) return KEEL_OK;
    keel_status status = open_op(made);
    for (size_t k = 0; !status && k < made->zero->count; k++) status = add_collective(made, k);
    return status;
}

keel_status keel_buckets_open(const keel_buckets_plan *plan, keel_buckets **buckets) {
    keel_buckets *made = calloc(1, sizeof *made);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "no memory for gradients");
    keel_status status = KEEL_OK;
    made->plan = *plan;
    made->op = MPI_SUM;
    made->params = keel_model_params(plan->model, &made->param_count);
    made->numel = keel_model_numel(plan->model);
    made->zero = plan->zero;
    made->taps = calloc(made->param_count, sizeof(keel_tap *));
    made->collectives = calloc(made->zero->count, sizeof(keel_collective *));
    if (!made->taps || !made->collectives) status = keel_fail(KEEL_ERR_MEMORY, "no memory for the taps of gradients");
    // Beside the weights and the optimizer's states, the first pieces of their arenas.
    made->arena.pieces = made->arena.first = 3;
    plan_gradients(made);
    if (!status) status = keel_arena_allocate(&made->arena);
    if (!status) plan_gradients(made);
    if (!status) status = add_taps(made);
    if (!status) status = add_tied(made);
    if (!status) status = add_collectives(made);
    if (status)
        keel_buckets_close(made);
    else
        *buckets = made;
    return status;
}

void keel_buckets_close(keel_buckets *buckets) {
    if (!buckets) return;
    if (buckets->op != MPI_SUM) MPI_Op_free(&buckets->op);
    keel_arena_free(&buckets->arena);
    free(buckets->taps);
    free(buckets->collectives);
    free(buckets);
}

void keel_buckets_pair(keel_buckets *buckets, size_t param, keel_tap *reduced) {
    const keel_buckets_plan *plan = &buckets->plan;
    if (plan->mesh->data_parallel.size > 1 || plan->accumulation > 1 || buckets->params[param].holders > 1 ||
        buckets->params[param].precision != KEEL_FLOAT32)
        return;
    keel_taps_pair(buckets->taps[param], reduced);
}

size_t keel_buckets_bytes(const keel_buckets *buckets) {
    return (buckets->plan.accumulation > 1 ? 2 : 1) * buckets->numel * sizeof(float);
}

float *keel_buckets_gradient(keel_buckets *buckets) {
    return buckets->sum;
}

void keel_buckets_set_local(keel_buckets *buckets, bool local) {
    buckets->local = local;
}

float *keel_buckets_begin(keel_buckets *buckets, size_t micro) {
    buckets->micro = micro;
    buckets->param_left = buckets->param_count;
    if (micro == 0) {
        buckets->started = buckets->finished = 0;
        buckets->status = KEEL_OK;
    }
    return buckets->own;
}

// One pass over a parameter's gradient: shows it (a fault disturbs it here), rounds it, then adds it to the sum.
static void take(keel_buckets *buckets, const keel_param *param, keel_tap *tap) {
    float *own = buckets->own + param->offset;
    float *restrict sum = buckets->sum + param->offset;
    const bool first = buckets->micro == 0, add = own != sum;
    const size_t pieces = (param->numel + PIECE - 1) / PIECE;
    keel_tap_begin(tap);
    if (add || tap->busy || param->precision != KEEL_FLOAT32) {
#pragma omp parallel for schedule(static) if (pieces > 1)
        for (size_t k = 0; k < pieces; k++) {
            const size_t at = k * PIECE, n = param->numel - at < PIECE ? param->numel - at : PIECE;
            keel_tap_piece(tap, omp_get_thread_num(), own + at, at, n);
            keel_round(param->precision, own + at, n);
            if (add && first) memcpy(sum + at, own + at, n * sizeof *sum);
            if (add && !first)
                for (size_t i = at; i < at + n; i++) sum[i] += own[i];
        }
    }
    keel_tap_end(tap);
}

static void test_all(keel_buckets *buckets) {
    bool done = true;
    while (!buckets->status && done && buckets->finished < buckets->started) {
        keel_collective *collective = buckets->collectives[from_end(buckets, buckets->finished)];
        if (collective) buckets->status = keel_collective_test(collective, &done);
        if (done) buckets->finished++;
    }
}

static keel_status start_one(const keel_buckets *buckets, size_t b) {
    const keel_zero_bucket *bucket = &buckets->zero->buckets[b];
    keel_collective *collective = buckets->collectives[b];
    float *data = buckets->sum + bucket->begin;
    if (!collective) return KEEL_OK;
    keel_round(buckets->plan.precision, data, bucket->count);
    return buckets->zero->shared ? keel_reduce_scatter_start(collective, data)
                                 : keel_all_reduce_start(collective, data);
}

static void start_buckets(keel_buckets *buckets, size_t begin) {
    while (!buckets->status && buckets->started < buckets->zero->count) {
        const size_t b = from_end(buckets, buckets->started);
        if (buckets->zero->buckets[b].begin < begin) break;
        buckets->status = start_one(buckets, b);
        if (!buckets->status) buckets->started++;
    }
}

// Starts the buckets that lie wholly in [begin, numel). Those of a tied table wait for the sum of its two gradients.
static void start(keel_buckets *buckets, size_t begin) {
    if (!buckets->local) start_buckets(buckets, begin > buckets->tied_count ? begin : buckets->tied_count);
    if (begin == 0 && buckets->tied && !buckets->tied->data && !buckets->status)
        buckets->status = keel_all_reduce_start(buckets->tied, buckets->sum);
    test_all(buckets);
}

static void finish_tied(keel_buckets *buckets) {
    if (!buckets->tied || !buckets->tied->data || buckets->status) return;
    buckets->status = keel_collective_wait(buckets->tied);
    keel_round(buckets->params[0].precision, buckets->sum, buckets->tied_count);
    if (!buckets->local) start_buckets(buckets, 0);
}

void keel_buckets_ready(void *context, size_t begin) {
    keel_buckets *buckets = context;
    while (buckets->param_left > 0 && buckets->params[buckets->param_left - 1].offset >= begin) {
        const size_t i = --buckets->param_left;
        take(buckets, &buckets->params[i], buckets->taps[i]);
    }
    if (buckets->micro + 1 == buckets->plan.accumulation) start(buckets, begin);
    keel_poll(keel_taps_probe(buckets->plan.taps));
}

void keel_buckets_give_up(keel_buckets *buckets) {
    start(buckets, 0);
}

void keel_buckets_unscale(keel_buckets *buckets, double scale) {
    float *sum = buckets->sum;
    const size_t numel = buckets->numel;
    const float factor = (float)(1 / scale);
    if (scale == 1) return;
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < numel; at += PIECE) keel_scale(sum + at, factor, numel - at < PIECE ? numel - at : PIECE);
}

keel_status keel_buckets_finish(keel_buckets *buckets) {
    finish_tied(buckets);
    while (!buckets->status && buckets->finished < buckets->started) {
        keel_collective *collective = buckets->collectives[from_end(buckets, buckets->finished++)];
        if (collective) buckets->status = keel_collective_wait(collective);
    }
    return buckets->status;
}
