// A made-up run of a small model with every op at every site, for the tests of rules on tensors.
#ifndef KEEL_TESTS_TENSOR_RUN_H
#define KEEL_TESTS_TENSOR_RUN_H

#include "tests/unit/analyzers/synthetic_run.h"

enum { T_LOSS, T_GRAD_NORM, T_LR, T_LOSS_MAX, T_LOSS_MAX_RANK, T_EXTRA, T_EXTRA_RANK, T_MORE, T_SCALARS };
enum { TENSOR_SITES = 96, TENSOR_LAYERS = 4 };

typedef struct tensor_run {
    keel_run_info info;
    keel_row row;
    keel_analysis *analysis;
    const char *names[T_SCALARS];
    double scalars[T_SCALARS];
    bool set[T_SCALARS];
    keel_site_info sites[TENSOR_SITES];
    double base[TENSOR_SITES]; // usual norm
    double f64[KEEL_OP_COUNT][TENSOR_SITES];
    uint64_t u64[KEEL_OP_COUNT][TENSOR_SITES];
    uint64_t seed, step;
} tensor_run;

static inline int tensor_site(tensor_run *r, const char *name, keel_quantity quantity, int layer, double base) {
    uint32_t id = r->info.site_count++;
    assert_true(id < TENSOR_SITES);
    keel_phase phase = KEEL_PHASE_OPTIMIZER;
    if (quantity == KEEL_ACTIVATION) phase = KEEL_PHASE_FORWARD;
    if (quantity == KEEL_ACTIVATION_GRAD || quantity == KEEL_GRAD_UNREDUCED) phase = KEEL_PHASE_BACKWARD;
    if (quantity == KEEL_GRAD_REDUCED || quantity == KEEL_COLLECTIVE_IN) phase = KEEL_PHASE_REDUCTION;
    r->sites[id] = (keel_site_info){.id = id,
                                    .quantity = quantity,
                                    .phase = phase,
                                    .order = id,
                                    .layer = layer,
                                    .ndim = 2,
                                    .shape = {1000, 1000},
                                    .numel = 1000000,
                                    .replica_count = 1};
    snprintf(r->sites[id].name, sizeof r->sites[id].name, "%s", name);
    r->base[id] = base;
    return (int)id;
}

// The settings that most tests have.
static const char tensor_plain[] = "model_config: {vocab_size: 256}\n"
                                   "optimizer: {betas: [0.9, 0.95]}\n"
                                   "lr_schedule: {learning_rate: 0.001, warmup_steps: 20}\n"
                                   "runner_config: {steps: 1000}\n";

// RANKS ranks; settings as the store keeps them. Sites and scalars may be added before tensor_begin.
static inline tensor_run *tensor_open(uint32_t ranks, const char *config_yaml) {
    static const char *const usual[T_SCALARS] = {"loss", "grad_norm", "lr", "loss_max", "loss_max_rank", "a", "b", "c"};
    tensor_run *r = calloc(1, sizeof *r);
    assert_non_null(r);
    memcpy(r->names, usual, sizeof usual);
    r->seed = 99;
    r->info = (keel_run_info){.world_size = ranks,
                              .dp = ranks,
                              .tp = 1,
                              .pp = 1,
                              .ep = 1,
                              .command = "",
                              .config_yaml = config_yaml,
                              .scalar_count = T_SCALARS,
                              .scalar_names = r->names,
                              .sites = r->sites};
    r->row.scalars = r->scalars;
    r->row.scalar_set = r->set;
    for (int op = 0; op < KEEL_OP_COUNT; op++) {
        r->info.op_stored[op] = true;
        if (keel_op_get((keel_op)op)->is_count)
            r->row.u64[op] = r->u64[op];
        else
            r->row.f64[op] = r->f64[op];
    }
    for (int l = 0; l < TENSOR_LAYERS; l++) {
        static const struct {
            keel_quantity quantity;
            const char *end;
            double base;
        } kinds[] = {{KEEL_ACTIVATION, "", 50},           {KEEL_ACTIVATION_GRAD, "", 0.1},
                     {KEEL_GRAD_UNREDUCED, ".weight", 1}, {KEEL_GRAD_REDUCED, ".weight", 0.9},
                     {KEEL_UPDATE, ".weight", 0.3},       {KEEL_WEIGHT, ".weight", 20}};
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            char name[64];
            snprintf(name, sizeof name, "layers.%d.mlp.down%s", l, kinds[k].end);
            tensor_site(r, name, kinds[k].quantity, l, kinds[k].base);
        }
    }
    return r;
}

static inline int tensor_find(const tensor_run *r, const char *name, keel_quantity quantity) {
    for (uint32_t i = 0; i < r->info.site_count; i++)
        if (strcmp(r->sites[i].name, name) == 0 && r->sites[i].quantity == quantity) return (int)i;
    fail_msg("no site %s", name);
    return -1;
}

static inline void tensor_begin(tensor_run *r) {
    assert_int_equal(keel_analysis_open(NULL, &r->analysis), KEEL_OK);
    assert_int_equal(keel_analysis_start(r->analysis, &r->info), KEEL_OK);
}

// With settings that most tests have, and begun.
static inline tensor_run *tensor_begun(uint32_t ranks) {
    tensor_run *r = tensor_open(ranks, tensor_plain);
    tensor_begin(r);
    return r;
}

// RULES: as monitor.rules has them.
static inline void tensor_begin_with(tensor_run *r, const char *rules) {
    keel_monitor_config *config;
    keel_yaml *doc;
    char text[256];
    snprintf(text, sizeof text, "monitor: {rules: %s}", rules);
    assert_int_equal(keel_yaml_parse("test", text, strlen(text), &doc), KEEL_OK);
    assert_int_equal(keel_monitor_config_read(doc, &config), KEEL_OK);
    tensor_begin(r);
    assert_int_equal(keel_analysis_configure(r->analysis, config), KEEL_OK);
    keel_monitor_config_free(config);
}

static inline void tensor_end(tensor_run *r) {
    keel_analysis_close(r->analysis);
    free(r);
}

static inline void tensor_set_norm(tensor_run *r, int site, double norm) {
    r->f64[KEEL_OP_norm][site] = norm;
    r->f64[KEEL_OP_rms][site] = norm / 1000;
    r->f64[KEEL_OP_max][site] = norm / 250;
    r->f64[KEEL_OP_min][site] = -norm / 250;
    r->f64[KEEL_OP_zeros][site] = norm == 0 ? 1 : 0;
}

// What the ranks have of a site: rank 0 LOW, the last rank HIGH, the others MIDDLE.
static inline void tensor_set_ranks(tensor_run *r, int site, double low, double middle, double high) {
    double ranks = r->info.world_size;
    r->f64[KEEL_OP_norm_low][site] = low < high ? low : high;
    r->f64[KEEL_OP_norm_high][site] = low < high ? high : low;
    r->u64[KEEL_OP_rank_low][site] = low < high ? 0 : r->info.world_size - 1;
    r->u64[KEEL_OP_rank_high][site] = low < high ? r->info.world_size - 1 : 0;
    r->f64[KEEL_OP_log_norm_mean][site] =
        ranks < 2 ? log(low) : (log(low) + log(high) + (ranks - 2) * log(middle)) / ranks;
}

// A healthy step, to be changed and then judged.
static inline void tensor_next(tensor_run *r) {
    uint64_t step = ++r->step;
    r->row.step = (keel_step){.step = step, .update = step, .seconds = 0.1, .time_unix = 1e9 + 0.1 * (double)step};
    memset(r->set, 0, sizeof r->set);
    const double values[] = {[T_LOSS] = 3 * (1 + 0.005 * random_normal(&r->seed)),
                             [T_GRAD_NORM] = exp(0.08 * random_normal(&r->seed)),
                             [T_LR] = 1e-3};
    for (int i = 0; i <= T_LR; i++) {
        r->scalars[i] = values[i];
        r->set[i] = true;
    }
    for (uint32_t i = 0; i < r->info.site_count; i++) {
        for (int op = 0; op < KEEL_OP_COUNT; op++) {
            r->f64[op][i] = keel_not_collected();
            r->u64[op][i] = KEEL_NOT_COLLECTED;
        }
        double norm = r->base[i] * exp((r->sites[i].quantity == KEEL_WEIGHT ? 0.0001 : 0.1) * random_normal(&r->seed));
        tensor_set_norm(r, (int)i, norm);
        tensor_set_ranks(r, (int)i, norm * exp(0.03 * random_normal(&r->seed)), norm,
                         norm * exp(0.03 * random_normal(&r->seed)));
        r->u64[KEEL_OP_nans][i] = r->u64[KEEL_OP_infs][i] = 0;
        r->u64[KEEL_OP_replica_rank][i] = r->u64[KEEL_OP_replica_peer][i] = KEEL_NOT_COLLECTED;
        r->u64[KEEL_OP_not_bf16][i] = r->u64[KEEL_OP_not_fp16][i] = KEEL_SATURATE_AT;
        r->f64[KEEL_OP_underflow][i] = r->f64[KEEL_OP_overflow][i] = 0;
    }
}

static inline void tensor_judge(tensor_run *r) {
    assert_int_equal(keel_analysis_row(r->analysis, &r->row), KEEL_OK);
}

static inline void tensor_quiet(tensor_run *r, int steps) {
    for (int i = 0; i < steps; i++) {
        tensor_next(r);
        tensor_judge(r);
    }
}

// The first incident of at least SEVERITY that RULE leads or takes part in by its series; NULL if there is none.
static inline const keel_incident *tensor_incident(const tensor_run *r, const char *rule, keel_severity severity) {
    size_t count;
    const keel_incident *incidents = keel_analysis_incidents(r->analysis, &count);
    for (size_t i = 0; i < count; i++)
        if (incidents[i].severity >= severity && strcmp(incidents[i].rule, rule) == 0) return &incidents[i];
    return NULL;
}

// That incident, a warning at least, which there must be and which must name RANK.
static inline const keel_incident *tensor_expect_rank(const tensor_run *r, const char *rule, int rank) {
    const keel_incident *k = tensor_incident(r, rule, KEEL_WARNING);
    assert_non_null(k);
    assert_int_equal(k->rank, rank);
    return k;
}

static inline void tensor_expect_quiet(const tensor_run *r) {
    size_t count;
    const keel_incident *incidents = keel_analysis_incidents(r->analysis, &count);
    for (size_t i = 0; i < count; i++)
        if (incidents[i].severity >= KEEL_WARNING) fail_msg("%s: %s", incidents[i].rule, incidents[i].message);
}

// The evidence of the incident, one line after another.
static inline bool tensor_evidence_has(const tensor_run *r, const keel_incident *k, const char *text) {
    size_t count;
    const keel_incident *incidents = keel_analysis_incidents(r->analysis, &count);
    const keel_incident_extra *extra = keel_analysis_extra(r->analysis, (size_t)(k - incidents));
    for (uint32_t i = 0; i < extra->evidence_count; i++)
        if (strstr(extra->evidence[i], text)) return true;
    return false;
}

#endif
