#include "tools/bench_train.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench_median.h"
#include "train/clock.h"
#include "train/optim/optimizer.h"
#include "train/tensor/arena.h"
#include "train/tensor/gemm.h"

enum { SQUARE = 2048, SQUARES = 4 };   // products of a measurement of BLAS
#define COPY_FLOATS ((size_t)64 << 20) // each way, far beyond any share of a cache

// ---- a monitor that takes some fields of every site and keeps nothing ----

typedef struct everything {
    uint32_t fields;
    void *memory;
    keel_frame *frame;
} everything;

static keel_status start(void *context, keel_probe *probe, keel_site_plan *plans) {
    everything *e = context;
    uint32_t sites = keel_probe_site_count(probe), scalars = keel_probe_scalar_count(probe);
    for (uint32_t i = 0; i < sites; i++)
        plans[i] = (keel_site_plan){.fields = e->fields, .schedule = {.start = 1, .every = 1}, .eps = 1e-8};
    size_t bytes = (keel_frame_bytes(scalars, sites, 0, 0) + 63) / 64 * 64;
    e->memory = aligned_alloc(64, bytes);
    if (!e->memory) return keel_fail(KEEL_ERR_MEMORY, "no memory for a frame");
    e->frame = keel_frame_init(e->memory, scalars, sites, 0, 0);
    return KEEL_OK;
}

static keel_frame *frame_begin(void *context, uint64_t step) {
    (void)step;
    everything *e = context;
    keel_frame_clear(e->frame);
    return e->frame;
}

static void frame_end(void *context, keel_frame *frame, const keel_step *step) {
    (void)context, (void)frame, (void)step;
}

// ---- what is measured ----

typedef struct watched { // an optimizer, and who watches it
    everything monitor;
    keel_probe *probe;
    keel_taps *taps;
    keel_optimizer *optimizer;
    uint64_t step;
} watched;

typedef enum mode { PLAIN, BASE, ALL, MODE_COUNT } mode;
static const uint32_t mode_fields[MODE_COUNT] = {[BASE] = KEEL_FIELDS_BASE, [ALL] = KEEL_FIELDS_ALL};

typedef struct bench {
    keel_probe *probe; // of the model: nobody listens
    keel_mesh mesh;
    keel_taps *taps;
    keel_model *model;
    keel_zero zero;
    watched watched[MODE_COUNT];
    keel_arena arena;
    float *grad;      // flat
    float *a, *b, *c; // [SQUARE, SQUARE]
    float *from, *to; // [COPY_FLOATS]
    uint32_t *tokens; // [batch, seq + 1]
    int steps;
    double *values; // [4 steps + 2]: measurements and what they are compared with
} bench;

static void plan(bench *x) {
    x->grad = keel_arena_take(&x->arena, keel_model_numel(x->model));
    x->a = keel_arena_take(&x->arena, (size_t)SQUARE * SQUARE);
    x->b = keel_arena_take(&x->arena, (size_t)SQUARE * SQUARE);
    x->c = keel_arena_take(&x->arena, (size_t)SQUARE * SQUARE);
    x->from = keel_arena_take(&x->arena, COPY_FLOATS);
    x->to = keel_arena_take(&x->arena, COPY_FLOATS);
}

static keel_status open_bench(const keel_model_config *config, size_t batch, bench *x) {
    keel_status status = keel_probe_open(0, &x->probe);
    if (status == KEEL_OK) status = keel_taps_open(x->probe, 0, NULL, 0, &x->taps);
    x->mesh = keel_mesh_alone();
    if (status == KEEL_OK)
        status = keel_model_open(
            &(keel_model_plan){.config = config, .micro_batch = batch, .mesh = &x->mesh, .taps = x->taps}, &x->model);
    if (status == KEEL_OK) status = keel_probe_start(x->probe);
    if (status == KEEL_OK) status = keel_zero_open(x->model, &x->mesh, 1 << 20, false, &x->zero);
    if (status != KEEL_OK) return status;
    size_t tokens = batch * ((size_t)config->seq_length + 1);
    x->tokens = malloc(tokens * sizeof *x->tokens);
    x->values = calloc(4 * (size_t)x->steps + 2, sizeof *x->values);
    if (!x->tokens || !x->values) return keel_fail(KEEL_ERR_MEMORY, "no memory for %zu tokens", tokens);
    x->arena.pieces = x->arena.first = 3; // beside the weights and the states of an optimizer
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

static keel_status open_watched(bench *x, uint32_t fields, watched *w) {
    static const keel_optimizer_config adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const keel_backend backend = {
        .context = &w->monitor, .start = start, .frame_begin = frame_begin, .frame_end = frame_end};
    w->monitor.fields = fields;
    keel_status status = keel_probe_open(0, &w->probe);
    if (status != KEEL_OK) return status;
    keel_probe_set_backend(w->probe, &backend);
    status = keel_taps_open(w->probe, 0, NULL, 0, &w->taps);
    if (status == KEEL_OK)
        status = keel_optimizer_open(
            &(keel_optimizer_plan){.config = &adamw, .model = x->model, .taps = w->taps, .zero = &x->zero},
            &w->optimizer);
    if (status == KEEL_OK) status = keel_probe_start(w->probe);
    return status;
}

static void close_bench(bench *x) {
    for (int m = 0; m < MODE_COUNT; m++) {
        watched *w = &x->watched[m];
        keel_optimizer_close(w->optimizer);
        keel_taps_close(w->taps);
        keel_probe_close(w->probe);
        free(w->monitor.memory);
    }
    keel_zero_close(&x->zero);
    keel_model_close(x->model);
    keel_taps_close(x->taps);
    keel_probe_close(x->probe);
    keel_arena_free(&x->arena);
    free(x->tokens);
    free(x->values);
}

// COUNT measurements, each against the mean of the two references around it: what neighbours and the clock do to both
// cancels.
static double ratio_median(const double *measured, const double *references, double *scratch, int count) {
    for (int i = 0; i < count; i++) scratch[i] = measured[i] / ((references[i] + references[i + 1]) / 2);
    return keel_median(scratch, (size_t)count);
}

static double square_gflops(bench *x) {
    double begin = keel_seconds();
    for (int i = 0; i < SQUARES; i++)
        keel_gemm(SQUARE, SQUARE, SQUARE, (keel_operand){x->a, SQUARE, false}, (keel_operand){x->b, SQUARE, false},
                  false, x->c, SQUARE);
    return 2e-9 * SQUARES * (double)SQUARE * SQUARE * SQUARE / (keel_seconds() - begin);
}

static keel_status pass(bench *x, double scale) {
    double loss;
    keel_status status = keel_model_forward(x->model, x->tokens, scale, x->grad, &loss);
    if (status == KEEL_OK) status = keel_model_backward(x->model, NULL, NULL);
    return status;
}

static keel_status bench_passes(bench *x, double tokens, keel_bench_train_result *out) {
    double before[KEEL_PART_COUNT], after[KEEL_PART_COUNT], sum = 0;
    double *seconds = x->values, *gflops = seconds + x->steps, *scratch = gflops + x->steps;
    double *squares = scratch + x->steps;     // [steps + 1]
    keel_status status = pass(x, 1 / tokens); // the first pass meets cold pages
    (void)square_gflops(x);
    keel_model_seconds(x->model, before);
    squares[0] = square_gflops(x);
    for (int i = 0; i < x->steps && status == KEEL_OK; i++) {
        double begin = keel_seconds();
        status = pass(x, 1 / tokens);
        seconds[i] = keel_seconds() - begin;
        gflops[i] = 1e-9 * keel_model_flops(x->model) / seconds[i];
        squares[i + 1] = square_gflops(x);
    }
    if (status != KEEL_OK) return status;
    keel_model_seconds(x->model, after);
    for (int p = 0; p < KEEL_PART_COUNT; p++) sum += after[p] - before[p];
    for (int p = 0; p < KEEL_PART_COUNT; p++) out->part[p] = (after[p] - before[p]) / sum;
    out->utilisation = ratio_median(gflops, squares, scratch, x->steps);
    out->step_seconds = keel_median(seconds, (size_t)x->steps);
    out->tokens_per_second = tokens / out->step_seconds;
    out->gflops = keel_median(gflops, (size_t)x->steps);
    out->sgemm_gflops = keel_median(squares, (size_t)x->steps + 1);
    return KEEL_OK;
}

static double copy_once(bench *x, bool plain) {
    double begin = keel_seconds();
#pragma omp parallel
    {
        size_t share = COPY_FLOATS / (size_t)omp_get_num_threads(), at = share * (size_t)omp_get_thread_num();
        float *restrict to = x->to + at;
        const float *restrict from = x->from + at;
        if (plain) {
            // A compiler would make a call of memcpy of a loop that only copies.
            for (size_t i = 0; i < share; i++) to[i] = from[i] + 1.0f;
        } else {
            memcpy(to, from, share * sizeof *to);
        }
    }
    return 8e-9 * (double)COPY_FLOATS / (keel_seconds() - begin);
}

// The C library's copy and a plain loop differ by machine in how they write.
static double copy_gbps(bench *x) {
    double library = copy_once(x, false), loop = copy_once(x, true);
    return library > loop ? library : loop;
}

static double update_gbps(bench *x, watched *w, double *norm_gbps) {
    double elements = 1e-9 * (double)keel_model_numel(x->model);
    keel_step_begin(w->probe, ++w->step);
    double begin = keel_seconds();
    double norm = NAN; // one rank alone cannot fail here, nor in the update
    (void)keel_optimizer_grad_norm(w->optimizer, x->grad, &norm);
    *norm_gbps = 4 * elements / (keel_seconds() - begin);
    const keel_update update = {.lr = 1e-4, .clip_factor = keel_clip_factor(norm, 1), .update = w->step};
    begin = keel_seconds();
    (void)keel_optimizer_step(w->optimizer, x->grad, &update);
    double gbps = 28 * elements / (keel_seconds() - begin);
    keel_step_end(w->probe, &(keel_step){.step = w->step, .update = w->step});
    return gbps;
}

// *RATIO to copying; *COPY and *NORM: medians.
static double bench_updates(bench *x, watched *w, double *ratio, double *copy, double *norm) {
    double *gbps = x->values, *norms = gbps + x->steps, *scratch = norms + x->steps;
    double *copies = scratch + x->steps; // [steps + 1]
    (void)update_gbps(x, w, &norms[0]);  // cold pages
    copies[0] = copy_gbps(x);
    for (int i = 0; i < x->steps; i++) {
        gbps[i] = update_gbps(x, w, &norms[i]);
        copies[i + 1] = copy_gbps(x);
    }
    *ratio = ratio_median(gbps, copies, scratch, x->steps);
    *copy = keel_median(copies, (size_t)x->steps + 1);
    *norm = keel_median(norms, (size_t)x->steps);
    return keel_median(gbps, (size_t)x->steps);
}

keel_status keel_bench_train(const keel_model_config *model, size_t batch, size_t seq, int steps,
                             keel_bench_train_result *out) {
    if (steps < 1) return keel_fail(KEEL_ERR_USAGE, "a benchmark needs at least one step");
    keel_model_config config = *model;
    config.seq_length = (int64_t)seq;
    bench x = {.steps = steps};
    keel_bench_train_result result = {.threads = omp_get_max_threads()};
    keel_status status = open_bench(&config, batch, &x);
    if (status == KEEL_OK) status = bench_passes(&x, (double)(batch * seq), &result);
    double *const gbps[MODE_COUNT] = {&result.optimizer_plain_gbps, &result.optimizer_base_gbps,
                                      &result.optimizer_gbps};
    double ratios[MODE_COUNT];
    for (mode m = PLAIN; m < MODE_COUNT && status == KEEL_OK; m++) {
        status = open_watched(&x, mode_fields[m], &x.watched[m]);
        if (status == KEEL_OK)
            *gbps[m] = bench_updates(&x, &x.watched[m], &ratios[m], &result.copy_gbps, &result.norm_gbps);
    }
    close_bench(&x);
    if (status != KEEL_OK) return status;
    result.optimizer_base_ratio = ratios[BASE];
    result.optimizer_ratio = ratios[ALL];
    *out = result;
    return KEEL_OK;
}
