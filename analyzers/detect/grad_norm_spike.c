// The global gradient norm jumps; it often leads the loss.
//
// Judged on the logarithm, since norms vary by factors: z >= 6 with sigma at least 0.05, and twice the expected norm.
// Up to five times it must also be sure: rarer than a deviate of 5.2 of a normal distribution (one in ten million), the
// spread being known as well only as a history of that length and autocorrelation tells it (keel_series_sure_z): in a
// young run norms are few and wander, and jump twofold now and then. A norm of a skipped step is stale or meaningless,
// one of 0 is absent: neither is judged.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/excursion.h"

enum { P_Z, P_RATIO, P_FLOOR, P_SURE_Z, P_SURE_RATIO, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_Z] = {"z", 6, 3, 1e4, "robust sigmas above the expected log norm"},
    [P_RATIO] = {"ratio", 2, 1, 1e6, "least norm over the expected norm"},
    [P_FLOOR] = {"floor", 0.05, 0, 10, "sigma of the log norm is at least this"},
    [P_SURE_Z] = {"sure_z", 5.2, 0, 1e4, "the same, by what a spread from so few values tells"},
    [P_SURE_RATIO] = {"sure_ratio", 5, 1, 1e6, "a norm of so many times the expected needs no such judgement"},
};

#define OUTLIER 6.0

typedef struct state {
    int32_t grad_norm;
    uint32_t shifts;
    uint32_t negative; // 1: it has been negative once, and is no norm
    uint32_t reserved;
    uint64_t outside_since; // step; 0: the last value joined
    keel_series series;
    keel_excursion excursion;
} state;

static void init(void *memory) {
    state *s = memory;
    keel_series_init(&s->series);
}

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->grad_norm = keel_run_scalar(info, "grad_norm");
}

static bool is_alarm(const state *s, const double *p, const keel_score *score, double x) {
    const double rise = x - score->expected;
    if (!score->ready || score->z < p[P_Z] || rise < log(p[P_RATIO])) return false;
    if (rise >= log(p[P_SURE_RATIO])) return true;
    return keel_series_sure_z(&s->series, score->z) >= p[P_SURE_Z];
}

static void report(const state *s, keel_findings *findings) {
    const keel_excursion *e = &s->excursion;
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause, "grad_norm rose to %.4g at step %" PRIu64 " (expected %.4g, x%.3g)%s", e->value,
             e->peak_step, e->expected, e->value / e->expected, e->settled ? " and stayed there" : "");
    keel_finding f = keel_excursion_finding(e);
    f.series = "grad_norm";
    f.severity = KEEL_WARNING;
    f.clause = clause;
    keel_findings_add(findings, &f);
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    double value;
    if (!keel_row_scalar(in->row, s->grad_norm, &value) || !isfinite(value)) return;
    if (value < 0) s->negative = 1;
    if (value <= 0 || s->negative) return;
    if (in->row->step.flags & KEEL_STEP_SKIPPED) return;
    const keel_series_params sp = {.floor_absolute = in->params[P_FLOOR], .outlier = OUTLIER, .early_share = 1};
    double x = log(value);
    const keel_score score = keel_series_score(&s->series, &sp, x);
    uint64_t step = in->row->step.step;
    const keel_excursion_record record = {.step = step,
                                          .value = value,
                                          .expected = exp(score.expected),
                                          .score = score.z,
                                          .outside = score.z >= OUTLIER,
                                          .alarm = is_alarm(s, in->params, &score, x)};
    if (keel_excursion_add(&s->excursion, &record)) report(s, findings);
    keel_series_joined joined = keel_series_add(&s->series, &sp, x, &score);
    if (joined == KEEL_JOINED)
        s->outside_since = 0;
    else if (s->outside_since == 0)
        s->outside_since = step;
    if (joined != KEEL_LEVEL_CHANGED) return;
    if (keel_excursion_settle(&s->excursion))
        report(s, findings);
    else
        keel_excursion_note_shift(&(keel_level_shift){.series = "grad_norm",
                                                      .number = ++s->shifts,
                                                      .since = s->outside_since,
                                                      .step = step,
                                                      .level = exp(s->series.level.median),
                                                      .expected = record.expected,
                                                      .score = score.z},
                                  findings);
}

const keel_detector keel_detect_grad_norm_spike = {
    .rule = "grad_norm_spike",
    .doc = "the global gradient norm jumps; it often leads the loss",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 8,
    .state_bytes = sizeof(state),
    .init = init,
    .start = start,
    .update = update,
};
