// No progress: the best median of 64 records has not improved by 0.1 % for max(2,000 records, 2 % of the run) while the
// learning rate is above a fifth of its peak. A note, given once until progress is made.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/series.h"

enum { P_RECORDS, P_SHARE, P_IMPROVEMENT, P_LR, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_RECORDS] = {"records", 2000, 64, 1e12, "records without progress"},
    [P_SHARE] = {"share", 0.02, 0, 1, "and at least this share of the run so far"},
    [P_IMPROVEMENT] = {"improvement", 0.001, 0, 1, "what counts as progress, as a share of the median"},
    [P_LR] = {"lr_share", 0.2, 0, 1, "only while the learning rate is above this share of its peak"},
};

enum { WINDOW = 64 };

typedef struct state {
    int32_t loss, lr;
    uint32_t active;
    uint32_t key;
    keel_window window;
    double store[KEEL_WINDOW_STORE(WINDOW)];
    uint64_t records, best_record, best_step, last_step;
    double best; // median at the last progress
    double lr_peak, lr_now;
} state;

static void init(void *memory) {
    state *s = memory;
    keel_window_init(&s->window, WINDOW);
    s->best = INFINITY;
}

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->loss = keel_run_scalar(info, "loss");
    s->lr = keel_run_scalar(info, "lr");
}

static void report(const state *s, keel_findings *findings) {
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause, "loss has not improved on a median of %.4g since step %" PRIu64, s->best,
             s->best_step);
    keel_finding f = {.series = "loss",
                      .severity = KEEL_INFO,
                      .key = s->key,
                      .closed = !s->active,
                      .site = -1,
                      .rank = -1,
                      .first_step = s->best_step,
                      .peak_step = s->last_step,
                      .last_step = s->last_step,
                      .value = s->window.median,
                      .expected = s->best,
                      .score = (double)(s->records - s->best_record),
                      .clause = clause};
    keel_findings_add(findings, &f);
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    const double *p = in->params;
    double value, lr;
    if (keel_row_scalar(in->row, s->lr, &lr) && isfinite(lr)) {
        s->lr_now = lr;
        s->lr_peak = fmax(s->lr_peak, lr);
    }
    if (!keel_row_scalar(in->row, s->loss, &value) || !isfinite(value)) return;
    if (in->row->step.flags & KEEL_STEP_SKIPPED) return;
    s->records++;
    if (!keel_window_push(&s->window, s->store, value) || s->window.count < WINDOW) return;
    bool was_active = s->active;
    if (s->best == INFINITY || s->window.median < s->best - p[P_IMPROVEMENT] * fabs(s->best)) {
        s->active = 0;
        if (was_active) report(s, findings);
        s->best = s->window.median;
        s->best_record = s->records;
        s->best_step = in->row->step.step;
        return;
    }
    if (was_active) {
        s->last_step = in->row->step.step;
        return;
    }
    if ((double)(s->records - s->best_record) < fmax(p[P_RECORDS], p[P_SHARE] * (double)s->records)) return;
    if (s->lr_peak > 0 && s->lr_now <= p[P_LR] * s->lr_peak) return;
    s->active = 1;
    s->key++;
    s->last_step = in->row->step.step;
    report(s, findings);
}

const keel_detector keel_detect_plateau = {
    .rule = "plateau",
    .doc = "the loss makes no progress",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_ALONE,
    .reach = 0,
    .state_bytes = sizeof(state),
    .init = init,
    .start = start,
    .update = update,
};
