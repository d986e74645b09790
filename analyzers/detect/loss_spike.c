// The loss jumps away from its recent course.
//
// Alarm: z >= 8 against the robust series, and a rise of at least 3 % and 0.1 nat (of a loss below 0.5, whose unit is
// hardly the nat, a fifth of it). Where the noise is wide, it must stand out of a log-normal distribution too: ln(value
// / expected) >= 5 relative sigmas. A rise below 20 % must also be rarer than tail_rate by the series' own tail (see
// keel_tail), so that heavy-tailed noise is quiet. Critical from 16 records outside, or 3 that rise by half: a blip
// that comes back by itself is not. The rank is named
// whose loss lies above the mean by a share of the rise.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/excursion.h"

enum { P_Z, P_RISE_NATS, P_RISE, P_LOG_Z, P_SURE, P_TAIL, P_FLOOR, P_CRITICAL_RECORDS, P_CRITICAL_RISE, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_Z] = {"z", 8, 3, 1e4, "robust sigmas above the expected loss"},
    [P_RISE_NATS] = {"rise_nats", 0.1, 0, 1e3, "least rise; a fifth of a loss below five times it"},
    [P_RISE] = {"rise", 0.03, 0, 1e3, "least rise as a share of the expected loss"},
    [P_LOG_Z] = {"log_z", 5, 0, 1e4, "the same on the logarithm, for a loss with wide noise"},
    [P_SURE] = {"sure_rise", 0.2, 0, 1e3, "a rise of this share needs no judgement by the tail"},
    [P_TAIL] = {"tail_rate", 3e-6, 0, 1, "smaller rises alarm only if expected more rarely than this"},
    [P_FLOOR] = {"floor", 0.002, 0, 1, "sigma is at least this share of the median"},
    [P_CRITICAL_RECORDS] = {"critical_records", 16, 1, 1e6, "records outside from which it is critical"},
    [P_CRITICAL_RISE] = {"critical_rise", 0.5, 0, 1e3, "rise that is critical when three records show it"},
};

enum { GREAT_RECORDS = 3, JUMP_RECORDS = 4 };
#define SURE_SIGMAS 8.0
#define JUMP_SHARE  0.5 // of the rise, within JUMP_RECORDS
#define OUTLIER     6.0
#define RANK_SHARE  0.3 // of the rise of the mean loss, by which the worst rank's loss lies above the mean

typedef struct state {
    int32_t loss, loss_max, loss_max_rank;
    int32_t rank;           // whose loss stands out at the excursion's peak; -1: nobody's
    uint32_t shifts;        // levels accepted without an alarm, as the key of their note
    uint64_t outside_since; // step; 0: the last value joined
    keel_series series;
    keel_tail tail;
    keel_excursion excursion;
    double last[JUMP_RECORDS]; // the latest losses
    uint64_t records;
} state;

static void init(void *memory) {
    state *s = memory;
    keel_series_init(&s->series);
}

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->loss = keel_run_scalar(info, "loss");
    s->loss_max = keel_run_scalar(info, "loss_max");
    s->loss_max_rank = keel_run_scalar(info, "loss_max_rank");
}

static double least_of_last(const state *s) {
    double least = s->last[0];
    for (int i = 1; i < JUMP_RECORDS; i++) least = fmin(least, s->last[i]);
    return least;
}

static bool is_alarm(const state *s, const double *p, double value, const keel_score *score) {
    double rise = value - score->expected, level = fabs(score->expected);
    if (!score->ready || score->z < p[P_Z]) return false;
    if (rise < fmax(fmin(p[P_RISE_NATS], 0.2 * level), p[P_RISE] * level)) return false;
    if (score->expected > 0 && log(value / score->expected) * score->expected < p[P_LOG_Z] * score->sigma) return false;
    if (value - least_of_last(s) < JUMP_SHARE * rise) return false;
    bool sure = rise >= p[P_SURE] * level && level >= SURE_SIGMAS * score->sigma; // near zero a share says nothing
    return sure || keel_tail_rate(&s->tail, score->z) <= p[P_TAIL];
}

// The rank whose loss stands out of those of the others, or -1.
static int32_t rank_apart(const state *s, const keel_detector_input *in, const keel_excursion_record *record) {
    double greatest, rank;
    if (in->info->world_size < 2 || !keel_row_scalar(in->row, s->loss_max, &greatest) ||
        !keel_row_scalar(in->row, s->loss_max_rank, &rank))
        return -1;
    if (!(greatest - record->value >= RANK_SHARE * (record->value - record->expected))) return -1;
    return rank >= 0 && rank < in->info->world_size ? (int32_t)rank : -1;
}

static void report(const state *s, const double *p, keel_findings *findings) {
    const keel_excursion *e = &s->excursion;
    char clause[KEEL_CLAUSE_BYTES], extent[64] = "";
    if (e->settled)
        snprintf(extent, sizeof extent, " and stayed there");
    else if (!e->active && e->last_step == e->first_step)
        snprintf(extent, sizeof extent, " and came back at once");
    else if (!e->active)
        snprintf(extent, sizeof extent, ", outside up to step %" PRIu64, e->last_step);
    snprintf(clause, sizeof clause, "loss jumped to %.4g at step %" PRIu64 " (expected %.4g, %.0f sigma)%s", e->value,
             e->peak_step, e->expected, e->score, extent);
    keel_finding f = keel_excursion_finding(e);
    f.series = "loss";
    f.rank = s->rank;
    f.severity =
        e->records >= (uint32_t)p[P_CRITICAL_RECORDS] || e->great >= GREAT_RECORDS ? KEEL_CRITICAL : KEEL_WARNING;
    f.clause = clause;
    keel_findings_add(findings, &f);
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    double value;
    if (!keel_row_scalar(in->row, s->loss, &value) || !isfinite(value)) return;
    const keel_series_params sp = {.floor_relative = in->params[P_FLOOR], .outlier = OUTLIER, .early_share = 0.5};
    const keel_score score = keel_series_score(&s->series, &sp, value);
    uint64_t step = in->row->step.step;
    keel_excursion_record record = {.step = step,
                                    .value = value,
                                    .expected = score.expected,
                                    .score = score.z,
                                    .outside = score.z >= OUTLIER,
                                    .alarm = is_alarm(s, in->params, value, &score)};
    record.great = record.outside && value - score.expected >= in->params[P_CRITICAL_RISE] * fabs(score.expected);
    bool tells = keel_excursion_add(&s->excursion, &record);
    if (record.outside && s->excursion.peak_step == step) s->rank = rank_apart(s, in, &record);
    if (tells) report(s, in->params, findings);
    s->last[s->records++ % JUMP_RECORDS] = value;
    if (score.ready) keel_tail_add(&s->tail, score.z);
    if (in->row->step.flags & KEEL_STEP_SKIPPED) return;
    keel_series_joined joined = keel_series_add(&s->series, &sp, value, &score);
    if (joined == KEEL_JOINED)
        s->outside_since = 0;
    else if (s->outside_since == 0)
        s->outside_since = step;
    if (joined != KEEL_LEVEL_CHANGED) return;
    if (keel_excursion_settle(&s->excursion))
        report(s, in->params, findings);
    else
        keel_excursion_note_shift(&(keel_level_shift){.series = "loss",
                                                      .number = ++s->shifts,
                                                      .since = s->outside_since,
                                                      .step = step,
                                                      .level = s->series.level.median,
                                                      .expected = score.expected,
                                                      .score = score.z},
                                  findings);
}

const keel_detector keel_detect_loss_spike = {
    .rule = "loss_spike",
    .doc = "the loss jumps away from its recent course",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 8,
    .state_bytes = sizeof(state),
    .init = init,
    .start = start,
    .update = update,
};
