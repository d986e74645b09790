#include "tools/bench_train.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train/optim/optimizer.h"
#include "train/tensor/arena.h"
#include "train/tensor/gemm.h"

enum { SQUARE = 2048, SQUARES = 4 };   // products of a measurement of BLAS
#define COPY_FLOATS ((size_t)64 << 20) // each way, far beyond any share of a cache

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

// ---- a monitor that takes every field of every site and keeps nothing ----

typedef struct everything {
    bool on;
    void *memory;
    keel_frame *frame;
} everything;

static keel_status start(void *context, keel_probe *probe, keel_site_plan *plans) {
    everything *e = context;
    uint32_t sites = keel_probe_site_count(probe), scalars = keel_probe_scalar_count(probe);
    for (uint32_t i = 0; i < sites; i++)
        plans[i] = (keel_site_plan){.fields = KEEL_FIELDS_ALL, .schedule = {.start = 1, .every = 1}, .eps = 1e-8};
    size_t bytes = (keel_frame_bytes(scalars, sites, 0, 0) + 63) / 64 * 64;
    e->memory = aligned_alloc(64, bytes);
    if (!e->memory) return keel_fail(KEEL_ERR_MEMORY, "no memory for a frame");
    e->frame = keel_frame_init(e->memory, scalars, sites, 0, 0);
    return KEEL_OK;
}

static keel_frame *frame_begin(void *context, uint64_t step) {
    (void)step;
    everything *e = context;
    if (!e->on) return NULL;
    keel_frame_clear(e->frame);
    return e->frame;
}

static void frame_end(void *context, keel_frame *frame, const keel_step *step) {
    (void)context, (void)frame, (void)step;
}

// ---- what is measured ----

typedef struct bench {
    everything monitor;
    keel_probe *probe;
    keel_taps *taps;
    keel_model *model;
    keel_optimizer *optimizer;
    keel_arena arena;
    float *grad;            // flat
    float *a, *b, *c;       // [SQUARE, SQUARE]
    float *from, *to;       // [COPY_FLOATS]
    uint32_t *tokens;       // [batch, seq + 1]
    double *time, *peak;    // [steps]
    double *watched, *copy; // [steps]
    double *norm;           // [steps]
} bench;

static void plan(bench *x) {
    x->grad = keel_arena_take(&x->arena, keel_model_numel(x->model));
    x->a = keel_arena_take(&x->arena, (size_t)SQUARE * SQUARE);
    x->b = keel_arena_take(&x->arena, (size_t)SQUARE * SQUARE);
    x->c = keel_arena_take(&x->arena, (size_t)SQUARE * SQUARE);
    x->from = keel_arena_take(&x->arena, COPY_FLOATS);
    x->to = keel_arena_take(&x->arena, COPY_FLOATS);
}

static keel_status open_bench(const keel_model_config *config, size_t batch, int steps, bench *x) {
    static const keel_optimizer_config adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    keel_status status = keel_probe_open(0, &x->probe);
    if (status != KEEL_OK) return status;
    const keel_backend backend = {
        .context = &x->monitor, .start = start, .frame_begin = frame_begin, .frame_end = frame_end};
    keel_probe_set_backend(x->probe, &backend);
    status = keel_taps_open(x->probe, 0, NULL, 0, &x->taps);
    if (status == KEEL_OK) status = keel_model_open(config, batch, x->taps, &x->model);
    if (status == KEEL_OK) status = keel_optimizer_open(&adamw, x->model, x->taps, 0, 1, &x->optimizer);
    if (status == KEEL_OK) status = keel_probe_start(x->probe);
    if (status != KEEL_OK) return status;
    size_t tokens = batch * ((size_t)config->seq_length + 1), n = (size_t)steps;
    x->tokens = malloc(tokens * sizeof *x->tokens);
    double *times = calloc(5 * n, sizeof *times);
    x->time = times;
    if (!x->tokens || !times) return keel_fail(KEEL_ERR_MEMORY, "no memory for %zu tokens", tokens);
    x->peak = times + n, x->watched = times + 2 * n, x->copy = times + 3 * n, x->norm = times + 4 * n;
    plan(x);
    status = keel_arena_allocate(&x->arena);
    if (status != KEEL_OK) return status;
    plan(x);
    uint32_t state = 1;
    for (size_t i = 0; i < tokens; i++) {
        state = state * 1664525u + 1013904223u;
        x->tokens[i] = (uint32_t)((uint64_t)state * (uint64_t)config->vocab_size >> 32);
    }
    for (size_t i = 0; i < (size_t)SQUARE * SQUARE; i++) x->a[i] = x->b[i] = (float)(i % 13) - 6;
    keel_model_init(x->model, 1);
    return KEEL_OK;
}

static void close_bench(bench *x) {
    keel_optimizer_close(x->optimizer);
    keel_model_close(x->model);
    keel_taps_close(x->taps);
    keel_probe_close(x->probe);
    keel_arena_free(&x->arena);
    free(x->monitor.memory);
    free(x->tokens);
    free(x->time);
}

static double square_gflops(bench *x) {
    double begin = now();
    for (int i = 0; i < SQUARES; i++)
        keel_gemm(SQUARE, SQUARE, SQUARE, (keel_operand){x->a, SQUARE, false}, (keel_operand){x->b, SQUARE, false},
                  false, x->c, SQUARE);
    return 2e-9 * SQUARES * (double)SQUARE * SQUARE * SQUARE / (now() - begin);
}

// The C library's copy and a plain loop differ by machine in how they write.
static double copy_gbps(bench *x, bool plain) {
    double begin = now();
#pragma omp parallel
    {
        size_t share = COPY_FLOATS / (size_t)omp_get_num_threads(), at = share * (size_t)omp_get_thread_num();
        float *restrict to = x->to + at;
        const float *restrict from = x->from + at;
        if (plain) {
            // A compiler would make a call of memcpy of the copy alone.
            for (size_t i = 0; i < share; i++) to[i] = from[i] + 1.0f;
        } else {
            memcpy(to, from, share * sizeof *to);
        }
    }
    return 8e-9 * (double)COPY_FLOATS / (now() - begin);
}

static keel_status pass(bench *x, double scale) {
    double loss;
    keel_status status = keel_model_forward(x->model, x->tokens, scale, x->grad, &loss);
    if (status == KEEL_OK) status = keel_model_backward(x->model, NULL, NULL);
    return status;
}

static keel_status bench_passes(bench *x, double tokens, int steps, keel_bench_train_result *out) {
    double before[KEEL_PART_COUNT], after[KEEL_PART_COUNT], sum = 0;
    // The first pass meets cold pages.
    keel_status status = pass(x, 1 / tokens);
    (void)square_gflops(x);
    keel_model_seconds(x->model, before);
    for (int i = 0; i < steps && status == KEEL_OK; i++) {
        x->peak[i] = square_gflops(x);
        double begin = now();
        status = pass(x, 1 / tokens);
        x->time[i] = now() - begin;
    }
    if (status != KEEL_OK) return status;
    keel_model_seconds(x->model, after);
    for (int p = 0; p < KEEL_PART_COUNT; p++) sum += after[p] - before[p];
    for (int p = 0; p < KEEL_PART_COUNT; p++) out->part[p] = (after[p] - before[p]) / sum;
    out->step_seconds = median(x->time, steps);
    out->tokens_per_second = tokens / out->step_seconds;
    out->gflops = 1e-9 * keel_model_flops(x->model) / out->step_seconds;
    out->sgemm_gflops = median(x->peak, steps);
    out->utilisation = out->gflops / out->sgemm_gflops;
    return KEEL_OK;
}

static void bench_updates(bench *x, int steps, keel_bench_train_result *out) {
    double bytes = 28e-9 * (double)keel_model_numel(x->model), quarter = bytes / 7;
    uint64_t t = 0;
    for (int i = -1; i < steps; i++) { // the first one meets cold pages
        int k = i < 0 ? 0 : i;
        double memcpy_gbps = copy_gbps(x, false), loop_gbps = copy_gbps(x, true);
        x->copy[k] = memcpy_gbps > loop_gbps ? memcpy_gbps : loop_gbps;
        for (int on = 0; on < 2; on++) {
            x->monitor.on = on;
            keel_step_begin(x->probe, ++t);
            double begin = now();
            double norm = keel_optimizer_grad_norm(x->optimizer, x->grad);
            x->norm[k] = quarter / (now() - begin);
            const keel_update update = {.lr = 1e-4, .clip_factor = keel_clip_factor(norm, 1), .update = t};
            begin = now();
            keel_optimizer_step(x->optimizer, x->grad, &update);
            (on ? x->watched : x->time)[k] = bytes / (now() - begin);
            keel_step_end(x->probe, &(keel_step){.step = t, .update = t});
        }
    }
    out->optimizer_gbps = median(x->watched, steps);
    out->optimizer_plain_gbps = median(x->time, steps);
    out->copy_gbps = median(x->copy, steps);
    out->norm_gbps = median(x->norm, steps);
    out->optimizer_ratio = out->optimizer_gbps / out->copy_gbps;
}

keel_status keel_bench_train(const keel_model_config *model, size_t batch, size_t seq, int steps,
                             keel_bench_train_result *out) {
    if (steps < 1) return keel_fail(KEEL_ERR_USAGE, "a benchmark needs at least one step");
    keel_model_config config = *model;
    config.seq_length = (int64_t)seq;
    bench x = {0};
    keel_bench_train_result result = {.threads = omp_get_max_threads()};
    keel_status status = open_bench(&config, batch, steps, &x);
    if (status == KEEL_OK) status = bench_passes(&x, (double)(batch * seq), steps, &result);
    if (status == KEEL_OK) bench_updates(&x, steps, &result);
    close_bench(&x);
    if (status == KEEL_OK) *out = result;
    return status;
}
