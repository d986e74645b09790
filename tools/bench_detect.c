#include "tools/bench_detect.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "analyzers/online.h"
#include "analyzers/rules.h"
#include "analyzers/series.h"

enum { SCALARS = 4, WARM_UP = KEEL_SERIES_WINDOW, LAYERS = 48, RANKS = 2 };
static const char *const scalar_names[SCALARS] = {"loss", "grad_norm", "lr", "loss_scale"};

typedef struct bench {
    keel_run_info info;
    keel_row row;
    keel_site_info *sites;
    double *f64[KEEL_OP_COUNT]; // [sites], of the ops that rules read
    uint64_t *u64[KEEL_OP_COUNT];
    double scalars[SCALARS];
    bool set[SCALARS];
    keel_analysis *analysis;
    uint64_t seed;
} bench;

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Triangular noise of mean 0 and about unit spread; cheap beside what is measured.
static double noise(bench *b) {
    b->seed = b->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return 2.4 * ((double)(b->seed >> 40) + (double)(b->seed >> 16 & 0xFFFFFF)) * 0x1p-24 - 2.4;
}

static void close_bench(bench *b) {
    keel_analysis_close(b->analysis);
    free(b->sites);
    for (int op = 0; op < KEEL_OP_COUNT; op++) {
        free(b->f64[op]);
        free(b->u64[op]);
    }
}

// A healthy step's counts: none, but for what bfloat16 and half cannot hold.
static uint64_t usual_count(keel_op op, uint32_t site) {
    if (op == KEEL_OP_rank_nonfinite || op == KEEL_OP_micro_nonfinite) return KEEL_NOT_COLLECTED;
    if (op == KEEL_OP_not_bf16 || op == KEEL_OP_not_fp16) return KEEL_SATURATE_AT;
    return op == KEEL_OP_rank_low ? site % RANKS : op == KEEL_OP_rank_high ? (site + 1) % RANKS : 0;
}

static keel_status open_ops(bench *b, uint32_t series) {
    bool read[KEEL_OP_COUNT];
    keel_rules_ops(read);
    for (int op = 0; op < KEEL_OP_COUNT; op++) {
        if (!read[op]) continue;
        if (keel_op_get((keel_op)op)->is_count)
            b->row.u64[op] = b->u64[op] = calloc(series, sizeof **b->u64);
        else
            b->row.f64[op] = b->f64[op] = calloc(series, sizeof **b->f64);
        if (!b->row.u64[op] && !b->row.f64[op]) return keel_fail(KEEL_ERR_MEMORY, "no memory for %u series", series);
        b->info.op_stored[op] = true;
        for (uint32_t i = 0; b->u64[op] && i < series; i++) b->u64[op][i] = usual_count((keel_op)op, i);
    }
    return KEEL_OK;
}

static keel_status open_bench(bench *b, uint32_t series) {
    *b = (bench){.seed = 1};
    b->sites = calloc(series, sizeof *b->sites);
    if (!b->sites) return keel_fail(KEEL_ERR_MEMORY, "no memory for %u series", series);
    for (uint32_t i = 0; i < series; i++) {
        uint32_t tensor = i / KEEL_QUANTITY_COUNT;
        b->sites[i] = (keel_site_info){.id = i,
                                       .quantity = (keel_quantity)(i % KEEL_QUANTITY_COUNT),
                                       .order = i,
                                       .layer = (int32_t)(tensor % LAYERS),
                                       .ndim = 2,
                                       .shape = {64, 64},
                                       .numel = 64 * 64,
                                       .replica_count = RANKS};
        snprintf(b->sites[i].name, sizeof b->sites[i].name, "layers.%u.tensor.%u", tensor % LAYERS, tensor / LAYERS);
    }
    b->info = (keel_run_info){.world_size = RANKS,
                              .command = "",
                              .config_yaml = "",
                              .site_count = series,
                              .sites = b->sites,
                              .scalar_count = SCALARS,
                              .scalar_names = scalar_names};
    b->row.scalars = b->scalars;
    b->row.scalar_set = b->set;
    for (int i = 0; i < SCALARS; i++) b->set[i] = true;
    keel_status status = open_ops(b, series);
    if (!status) status = keel_analysis_open(NULL, &b->analysis);
    return status ? status : keel_analysis_start(b->analysis, &b->info);
}

// A healthy step of every site, which is not measured.
static void observe(bench *b, uint32_t series, uint64_t step) {
    b->row.step = (keel_step){.step = step, .update = step};
    b->scalars[0] = 3 + 0.02 * noise(b);
    b->scalars[1] = 0.4 + 0.04 * noise(b);
    b->scalars[2] = 1e-3;
    b->scalars[3] = 65536;
    for (int op = 0; op < KEEL_OP_COUNT; op++) {
        bool share = op == KEEL_OP_zeros || op == KEEL_OP_underflow || op == KEEL_OP_overflow;
        for (uint32_t i = 0; b->f64[op] && !share && i < series; i++) b->f64[op][i] = 1 + 0.03 * noise(b);
    }
    for (uint32_t i = 0; i < series; i++) {
        b->f64[KEEL_OP_min][i] = -b->f64[KEEL_OP_max][i];
        b->f64[KEEL_OP_norm_high][i] = b->f64[KEEL_OP_norm_low][i] * 1.1;
        b->f64[KEEL_OP_log_norm_mean][i] = log(b->f64[KEEL_OP_norm_low][i]) + 0.05;
    }
}

keel_status keel_bench_detect(uint32_t series, uint32_t steps, keel_bench_detect_result *out) {
    if (series == 0 || steps == 0)
        return keel_fail(KEEL_ERR_USAGE, "nothing to measure: %u series, %u steps", series, steps);
    bench b;
    double seconds = 0;
    keel_status status = open_bench(&b, series);
    for (uint64_t step = 1; !status && step <= WARM_UP + (uint64_t)steps; step++) {
        observe(&b, series, step);
        double begin = cpu_seconds();
        status = keel_analysis_row(b.analysis, &b.row);
        if (step > WARM_UP) seconds += cpu_seconds() - begin;
    }
    close_bench(&b);
    if (status) return status;
    *out = (keel_bench_detect_result){.ns_per_series_step = 1e9 * seconds / ((double)series * (double)steps)};
    return KEEL_OK;
}
