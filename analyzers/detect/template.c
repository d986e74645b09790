// A template for a new rule. Copy this file, rename `template`, declare the detector in detectors.h and enter it in the
// table of analyzers/rules.c; then its parameters can be set in the monitor's YAML under rules.NAME, its state goes
// into checkpoints, and its findings become incidents. It is compiled and tested like the others, but is not in the
// table.
//
// Say first what the rule looks for, its formula and where that comes from. This one: tokens per second fall below a
// share of their recent median.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/series.h"

// Every number of the rule is a parameter: key, default, least and greatest value, and what it means.
enum { P_SHARE, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_SHARE] = {"share", 0.5, 0.01, 1, "of the expected tokens per second"},
};

// The state is plain memory without pointers: it is zeroed before init, saved and restored by its bytes. What a rule
// keeps per site goes into a part of its own, with site_bytes, and is found in input->sites.
typedef struct state {
    int32_t tokens; // index of the scalar; -1: the run has none
    uint32_t active;
    uint32_t key;
    uint32_t reserved;
    uint64_t first_step;
    keel_series series;
} state;

static void init(void *memory) {
    state *s = memory;
    keel_series_init(&s->series);
}

// Ids of scalars and sites may change with each segment of a run: look them up here, not in init.
static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->tokens = keel_run_scalar(info, "tokens_per_second");
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    double value;
    // A scalar that is absent is not a scalar that is NaN; neither may join a history.
    if (!keel_row_scalar(in->row, s->tokens, &value) || !isfinite(value)) return;

    // Score first, then add: the series itself keeps outliers out of its history.
    const keel_series_params sp = {.floor_relative = 0.01, .outlier = 6, .early_share = 1};
    const keel_score score = keel_series_score(&s->series, &sp, value);
    keel_series_add(&s->series, &sp, value, &score);

    bool slow = score.ready && score.z <= -6 && value < in->params[P_SHARE] * score.expected;
    if (!slow && !s->active) return;
    uint64_t step = in->row->step.step;
    if (slow && !s->active) {
        s->key++; // a new trouble: findings with one key continue one another
        s->first_step = step;
    }
    s->active = slow;

    // Repeat the finding while the trouble lasts, and once more with `closed` when it is over. A clause is part of a
    // plain sentence, with numbers; it is copied.
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause, "tokens per second fell to %.4g at step %" PRIu64 " (expected %.4g)", value, step,
             score.expected);
    keel_finding f = {.series = "tokens_per_second",
                      .severity = KEEL_INFO,
                      .key = s->key,
                      .closed = !slow,
                      .site = -1,
                      .rank = -1,
                      .first_step = s->first_step,
                      .peak_step = step,
                      .last_step = step,
                      .value = value,
                      .expected = score.expected,
                      .score = score.z,
                      .clause = clause};
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_template = {
    .rule = "template",
    .doc = "an example to start from",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT, // how it takes part in incidents, and how long after it others may still join
    .reach = 8,
    .state_bytes = sizeof(state),
    .init = init,
    .start = start,
    .update = update,
};
