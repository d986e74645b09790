// The learning rate leaves its schedule: a change from one record to the next that is far greater than those before it,
// upward by a factor. A schedule may do so on purpose (a restart), so that this alone is no more than a note; but what
// follows it within a few records is one incident with it, and begins with it.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "analyzers/detect/detectors.h"

enum { P_RATIO, P_CHANGE, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_RATIO] = {"ratio", 1.5, 1.01, 1e6, "the new rate over the last one"},
    [P_CHANGE] = {"change", 8, 1, 1e6, "the change over the greatest of the last 64"},
};

enum { HISTORY = 64, WARMUP = 16, QUIET = 8 };

typedef struct state {
    int32_t lr;
    uint32_t count; // of records with a rate
    uint32_t key;
    uint32_t open; // records until the note is closed
    double last;
    double change[HISTORY]; // |rate - the one before|
    keel_finding found;
    char clause[KEEL_CLAUSE_BYTES];
} state;

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->lr = keel_run_scalar(info, "lr");
}

static double greatest_change(const state *s) {
    double greatest = 0;
    for (int i = 0; i < HISTORY; i++) greatest = fmax(greatest, s->change[i]);
    return greatest;
}

static void report(state *s, uint64_t step, double rate) {
    s->key++;
    s->open = QUIET;
    snprintf(s->clause, sizeof s->clause, "learning rate jumped from %.4g to %.4g at step %" PRIu64, s->last, rate,
             step);
    s->found = (keel_finding){.severity = KEEL_INFO,
                              .key = s->key,
                              .site = -1,
                              .rank = -1,
                              .first_step = step,
                              .peak_step = step,
                              .last_step = step,
                              .value = rate,
                              .expected = s->last,
                              .score = rate / s->last};
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    double rate;
    if (!keel_row_scalar(in->row, s->lr, &rate) || !isfinite(rate)) return;
    bool emit = false;
    if (s->open && --s->open == 0) {
        s->found.closed = true;
        emit = true;
    }
    double change = s->count ? fabs(rate - s->last) : 0;
    bool jump = s->count >= WARMUP && s->last > 0 && rate >= in->params[P_RATIO] * s->last;
    if (jump && change > in->params[P_CHANGE] * greatest_change(s)) {
        report(s, in->row->step.step, rate);
        emit = true;
    }
    s->change[s->count % HISTORY] = change;
    s->count++;
    s->last = rate;
    if (!emit) return;
    keel_finding f = s->found;
    f.series = "lr";
    f.clause = s->clause;
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_lr_jump = {
    .rule = "lr_jump",
    .doc = "the learning rate leaves its schedule upward",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_CONTEXT,
    .from_outside = true,
    .reach = 64,
    .state_bytes = sizeof(state),
    .start = start,
    .update = update,
};
