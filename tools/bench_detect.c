#include "tools/bench_detect.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "analyzers/online.h"
#include "analyzers/series.h"

enum { SCALARS = 4, AHEAD = 4, WARM_UP = KEEL_SERIES_WINDOW };
static const char *const scalar_names[SCALARS] = {"loss", "grad_norm", "lr", "loss_scale"};

typedef struct bench {
    keel_run_info info;
    keel_row row;
    keel_site_info *sites;
    uint64_t *zeros, *none; // [sites] counts of a healthy step, and owners that are absent
    double scalars[SCALARS];
    bool set[SCALARS];
    keel_series *series;
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
    free(b->zeros);
    free(b->none);
    free(b->series);
}

static keel_status open_bench(bench *b, uint32_t series) {
    *b = (bench){.seed = 1};
    b->sites = calloc(series, sizeof *b->sites);
    b->zeros = calloc(series, sizeof *b->zeros);
    b->none = malloc(series * sizeof *b->none);
    b->series = malloc(series * sizeof *b->series);
    if (!b->sites || !b->zeros || !b->none || !b->series)
        return keel_fail(KEEL_ERR_MEMORY, "no memory for %u series", series);
    memset(b->none, 0xFF, series * sizeof *b->none);
    for (uint32_t i = 0; i < series; i++) {
        keel_series_init(&b->series[i]);
        b->sites[i] = (keel_site_info){.id = i, .quantity = KEEL_ACTIVATION, .order = i, .layer = -1, .numel = 1};
        snprintf(b->sites[i].name, sizeof b->sites[i].name, "layers.%u", i);
    }
    b->info = (keel_run_info){.world_size = 1,
                              .command = "",
                              .config_yaml = "",
                              .site_count = series,
                              .sites = b->sites,
                              .scalar_count = SCALARS,
                              .scalar_names = scalar_names};
    b->row.scalars = b->scalars;
    b->row.scalar_set = b->set;
    b->row.u64[KEEL_OP_nans] = b->row.u64[KEEL_OP_infs] = b->zeros;
    b->row.u64[KEEL_OP_rank_nonfinite] = b->row.u64[KEEL_OP_micro_nonfinite] = b->none;
    memset(b->set, 1, sizeof b->set);
    keel_status status = keel_analysis_open(NULL, &b->analysis);
    return status ? status : keel_analysis_start(b->analysis, &b->info);
}

static keel_status judge_row(bench *b, uint64_t step) {
    b->row.step = (keel_step){.step = step, .update = step};
    b->scalars[0] = 3 + 0.02 * noise(b);
    b->scalars[1] = 0.4 + 0.04 * noise(b);
    b->scalars[2] = 1e-3;
    b->scalars[3] = 65536;
    return keel_analysis_row(b->analysis, &b->row);
}

// A norm of each site, as a rule on tensors takes it: on the logarithm.
static void judge_series(bench *b, uint32_t series) {
    const keel_series_params params = {.floor_absolute = 0.05, .outlier = 6, .early_share = 1};
    for (uint32_t i = 0; i < series; i++) {
        if (i + AHEAD < series) keel_series_prefetch(&b->series[i + AHEAD]);
        double value = log(1 + 0.03 * noise(b));
        const keel_score score = keel_series_score(&b->series[i], &params, value);
        keel_series_add(&b->series[i], &params, value, &score);
    }
}

keel_status keel_bench_detect(uint32_t series, uint32_t steps, keel_bench_detect_result *out) {
    if (series == 0 || steps == 0)
        return keel_fail(KEEL_ERR_USAGE, "nothing to measure: %u series, %u steps", series, steps);
    bench b;
    double rules = 0, robust = 0;
    keel_status status = open_bench(&b, series);
    for (uint64_t step = 1; !status && step <= WARM_UP + (uint64_t)steps; step++) {
        double begin = cpu_seconds();
        status = judge_row(&b, step);
        double middle = cpu_seconds();
        judge_series(&b, series);
        if (step <= WARM_UP) continue;
        rules += middle - begin;
        robust += cpu_seconds() - middle;
    }
    close_bench(&b);
    if (status) return status;
    double each = 1e9 / ((double)series * (double)steps);
    *out = (keel_bench_detect_result){
        .ns_per_series_step = (rules + robust) * each, .ns_rules = rules * each, .ns_series = robust * each};
    return KEEL_OK;
}
