// Trouble that comes from the order of the data: a jump of the loss at the border of an epoch, which is labelled as
// such, and a batch that is seen a second time within an epoch.
//
// The first four records of an epoch are judged against the 64 before it: z >= 8 and a rise of 3 %. Batches are
// compared by id with those of the last 64 steps, since the last epoch border or resume.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/recent.h"

enum { P_RECORDS, P_Z, P_RISE, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_RECORDS] = {"records", 4, 1, 1e6, "records of an epoch that are compared with the end of the last"},
    [P_Z] = {"z", 8, 3, 1e4, "robust sigmas of the loss above its history"},
    [P_RISE] = {"rise", 0.03, 0, 1e3, "and least rise as a share"},
};

enum { BATCHES = 64 };

typedef struct state {
    int32_t loss;
    uint32_t epoch_key, repeat_key;
    uint32_t left;      // records of this epoch still to compare
    uint32_t repeating; // 1: the last step's batch had been seen before
    uint32_t repeats;
    uint64_t repeat_first, repeat_last, repeat_of;
    uint64_t ranges; // in the ring below since the border
    uint64_t first[BATCHES], last[BATCHES], step[BATCHES];
    uint64_t max_batch; // 0: the run gives no ids
    keel_recent recent;
    keel_reference before;
} state;

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->loss = keel_run_scalar(info, "loss");
}

static void judge_epoch(state *s, const keel_detector_input *in, double value, keel_findings *findings) {
    double z = keel_reference_score(&s->before, value), rise = value - s->before.expected;
    double level = fabs(s->before.expected);
    if (z < in->params[P_Z] || rise < fmax(in->params[P_RISE] * level, fmin(0.1, 0.2 * level))) return;
    char clause[KEEL_CLAUSE_BYTES];
    uint64_t step = in->row->step.step;
    snprintf(clause, sizeof clause,
             "loss jumped to %.4g at the border of an epoch, step %" PRIu64 " (%.4g before, %.0f sigma)", value, step,
             s->before.expected, z);
    keel_finding f = {.series = "loss",
                      .severity = KEEL_WARNING,
                      .key = 2 * s->epoch_key,
                      .closed = true,
                      .at_once = true,
                      .site = -1,
                      .rank = -1,
                      .first_step = step,
                      .peak_step = step,
                      .last_step = step,
                      .value = value,
                      .expected = s->before.expected,
                      .score = z,
                      .clause = clause};
    keel_findings_add(findings, &f);
    s->left = 0;
}

static const uint64_t *seen_before(const state *s, const keel_step *step) {
    uint64_t n = s->ranges < BATCHES ? s->ranges : BATCHES;
    for (uint64_t i = 0; i < n; i++)
        if (step->first_batch <= s->last[i] && s->first[i] <= step->last_batch) return &s->step[i];
    return NULL;
}

static void report_repeat(const state *s, keel_findings *findings) {
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause, "the batch of step %" PRIu64 " came again at step %" PRIu64 "%s", s->repeat_of,
             s->repeat_first, s->repeats > 1 ? ", and more than once" : "");
    keel_finding f = {.series = "batch",
                      .severity = KEEL_WARNING,
                      .key = 2 * s->repeat_key + 1,
                      .closed = !s->repeating,
                      .site = -1,
                      .rank = -1,
                      .first_step = s->repeat_first,
                      .peak_step = s->repeat_first,
                      .last_step = s->repeat_last,
                      .value = s->repeats,
                      .expected = 0,
                      .score = s->repeats,
                      .clause = clause};
    keel_findings_add(findings, &f);
}

static void judge_batches(state *s, const keel_step *step, keel_findings *findings) {
    if (step->last_batch > s->max_batch) s->max_batch = step->last_batch;
    if (s->max_batch == 0) return;
    const uint64_t *of = seen_before(s, step);
    bool was = s->repeating;
    s->repeating = of != NULL;
    if (of) {
        if (!was) {
            s->repeat_key++;
            s->repeats = 0;
            s->repeat_first = step->step;
            s->repeat_of = *of;
        }
        s->repeats++;
        s->repeat_last = step->step;
    }
    if (of || was) report_repeat(s, findings);
    uint64_t at = s->ranges++ % BATCHES;
    s->first[at] = step->first_batch;
    s->last[at] = step->last_batch;
    s->step[at] = step->step;
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    const keel_step *step = &in->row->step;
    if ((step->flags & KEEL_STEP_EPOCH) && in->record > 0) {
        s->epoch_key++;
        s->left = (uint32_t)in->params[P_RECORDS];
        s->before = keel_recent_take(&s->recent, 0.002, 0);
    }
    if ((step->flags & KEEL_STEP_EPOCH) || in->resumed) s->ranges = 0;
    judge_batches(s, step, findings);
    double value;
    if (!keel_row_scalar(in->row, s->loss, &value) || !isfinite(value)) return;
    if (s->left) {
        s->left--;
        judge_epoch(s, in, value, findings);
    }
    if (!(step->flags & KEEL_STEP_SKIPPED)) keel_recent_add(&s->recent, value);
}

const keel_detector keel_detect_data_order = {
    .rule = "data_order",
    .doc = "a jump at the border of an epoch, or the same batch twice",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_CONTEXT,
    .from_outside = true,
    .reach = 8,
    .state_bytes = sizeof(state),
    .start = start,
    .update = update,
};
