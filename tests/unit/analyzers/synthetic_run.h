// Made-up runs for the tests of analyzers/: rows of a few scalars, and of sites where asked, without a store.
#ifndef KEEL_TESTS_SYNTHETIC_RUN_H
#define KEEL_TESTS_SYNTHETIC_RUN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analyzers/online.h"

enum { LOSS, GRAD_NORM, LR, LOSS_SCALE, LOSS_MAX, LOSS_MAX_RANK, SCALARS, MAX_SITES = 16 };

typedef struct synthetic_run {
    keel_run_info info;
    keel_row row;
    double scalars[SCALARS];
    bool set[SCALARS];
    keel_site_info sites[MAX_SITES];
    uint64_t nans[MAX_SITES], infs[MAX_SITES], rank[MAX_SITES], micro[MAX_SITES];
} synthetic_run;

static inline void run_init(synthetic_run *run) {
    static const char *const names[SCALARS] = {"loss", "grad_norm", "lr", "loss_scale", "loss_max", "loss_max_rank"};
    memset(run, 0, sizeof *run);
    run->info = (keel_run_info){.world_size = 2,
                                .dp = 2,
                                .tp = 1,
                                .pp = 1,
                                .ep = 1,
                                .command = "",
                                .config_yaml = "",
                                .scalar_count = SCALARS,
                                .scalar_names = names,
                                .sites = run->sites};
    run->row.scalars = run->scalars;
    run->row.scalar_set = run->set;
}

static inline void run_add_site(synthetic_run *run, const char *name, keel_quantity quantity, keel_phase phase,
                                uint32_t order) {
    uint32_t id = run->info.site_count++;
    keel_site_info *site = &run->sites[id];
    *site = (keel_site_info){.id = id, .quantity = quantity, .phase = phase, .order = order, .layer = -1, .numel = 8};
    strncpy(site->name, name, sizeof site->name - 1);
    run->row.u64[KEEL_OP_nans] = run->nans;
    run->row.u64[KEEL_OP_infs] = run->infs;
    run->row.u64[KEEL_OP_rank_nonfinite] = run->rank;
    run->row.u64[KEEL_OP_micro_nonfinite] = run->micro;
    run->info.op_stored[KEEL_OP_nans] = run->info.op_stored[KEEL_OP_infs] = true;
    run->rank[id] = run->micro[id] = UINT64_MAX;
}

// An empty row of STEP.
static inline void run_step(synthetic_run *run, uint64_t step) {
    run->row.step = (keel_step){.step = step, .update = step};
    memset(run->set, 0, sizeof run->set);
    for (uint32_t i = 0; i < MAX_SITES; i++) {
        run->nans[i] = run->infs[i] = 0;
        run->rank[i] = run->micro[i] = UINT64_MAX;
    }
}

static inline void run_set(synthetic_run *run, int scalar, double value) {
    run->scalars[scalar] = value;
    run->set[scalar] = true;
}

static inline void run_bad_site(synthetic_run *run, uint32_t site, uint64_t rank, uint64_t micro) {
    run->nans[site] = 1;
    run->rank[site] = rank;
    run->micro[site] = micro;
}

// xorshift64*, and what is made of it; the same on every machine.
static inline double random_uniform(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return ((double)((*state * UINT64_C(2685821657736338717)) >> 11) + 0.5) * 0x1p-53;
}

static inline double random_normal(uint64_t *state) {
    double u = random_uniform(state), v = random_uniform(state);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static inline double random_student5(uint64_t *state) {
    double chi = 0;
    for (int i = 0; i < 5; i++) {
        double z = random_normal(state);
        chi += z * z;
    }
    return random_normal(state) / sqrt(chi / 5);
}

static inline keel_analysis *analysis_of(synthetic_run *run) {
    keel_analysis *analysis;
    assert_int_equal(keel_analysis_open(NULL, &analysis), KEEL_OK);
    assert_int_equal(keel_analysis_start(analysis, &run->info), KEEL_OK);
    return analysis;
}

static inline void judge(keel_analysis *analysis, synthetic_run *run) {
    assert_int_equal(keel_analysis_row(analysis, &run->row), KEEL_OK);
}

static inline size_t count_at_least(const keel_analysis *analysis, keel_severity severity) {
    size_t count, found = 0;
    const keel_incident *incidents = keel_analysis_incidents(analysis, &count);
    for (size_t i = 0; i < count; i++) found += incidents[i].severity >= severity;
    return found;
}

// The first incident of at least SEVERITY that names SERIES ("" for any) and overlaps steps FROM to TO; NULL if there
// is none.
static inline const keel_incident *find_incident(const keel_analysis *analysis, keel_severity severity,
                                                 const char *series, uint64_t from, uint64_t to) {
    size_t count;
    const keel_incident *incidents = keel_analysis_incidents(analysis, &count);
    for (size_t i = 0; i < count; i++) {
        const keel_incident *k = &incidents[i];
        if (k->severity >= severity && strstr(k->series, series) && k->first_step <= to && k->last_step >= from)
            return k;
    }
    return NULL;
}

#endif
