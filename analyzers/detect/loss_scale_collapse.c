// The dynamic loss scale cannot hold: more than 4 halvings within 100 records, more than 5 % of 200 steps skipped, or a
// scale that fell to 1 or below. The search for the scale at the start of a run is none of this: nothing is said in the
// first 2,000 updates, nor before the scale has grown once in a run that is seen from its start.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "analyzers/detect/detectors.h"

enum { P_HALVINGS, P_SKIPPED, P_SEARCH, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_HALVINGS] = {"halvings", 4, 1, 100, "more of them than this within 100 records"},
    [P_SKIPPED] = {"skipped", 0.05, 0.001, 1, "more than this share of 200 steps skipped"},
    [P_SEARCH] = {"search_updates", 2000, 0, 1e9, "updates at the start that are a search"},
};

enum { HALVING_STEPS = 100, SKIP_STEPS = 200, QUIET = 100, EVENTS = 256 };

// A record with halvings or a skipped step.
typedef struct event {
    uint64_t step;
    double halvings;
    uint32_t skipped;
    uint32_t reserved;
} event;

typedef struct state {
    int32_t loss_scale;
    uint32_t active, key, quiet;
    uint32_t grown; // 1: the scale has grown once
    uint32_t seen;  // 1: there was a record
    uint64_t events_seen;
    uint64_t first_step_of_run, last_record_step;
    uint64_t first_step, peak_step, last_step;
    double last, before, least; // scale: of the last record, when the trouble began, the least since
    double halvings;            // of the last HALVING_STEPS
    uint32_t skips;             // of the last SKIP_STEPS
    uint32_t reserved;
    event events[EVENTS];
} state;

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->loss_scale = keel_run_scalar(info, "loss_scale");
}

static double halvings_since(double last, double scale) {
    if (!(last > 0) || !(scale > 0) || scale > 0.75 * last) return 0;
    return round(log2(last / scale));
}

static bool in_search(const state *s, const keel_step *step, double updates) {
    uint64_t progress = step->update ? step->update : step->step;
    return (double)progress < updates || (!s->grown && (double)s->first_step_of_run < updates);
}

static void report(const state *s, keel_findings *findings) {
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause,
             "loss scale fell from %.4g to %.4g by step %" PRIu64 " (%.3g halvings in %d steps, %" PRIu32
             " of %d skipped)",
             s->before, s->least, s->peak_step, s->halvings, HALVING_STEPS, s->skips, SKIP_STEPS);
    keel_finding f = {.series = "loss_scale",
                      .severity = s->least <= 1 ? KEEL_CRITICAL : KEEL_WARNING,
                      .key = s->key,
                      .closed = !s->active,
                      .site = -1,
                      .rank = -1,
                      .first_step = s->first_step,
                      .peak_step = s->peak_step,
                      .last_step = s->last_step,
                      .value = s->least,
                      .expected = s->before,
                      .score = s->halvings,
                      .clause = clause};
    keel_findings_add(findings, &f);
}

static void add_event(state *s, const keel_step *step, double halvings, bool skipped) {
    uint64_t since = step->step > s->last_record_step ? step->step - s->last_record_step : 1;
    double share = s->seen && since > HALVING_STEPS ? (double)HALVING_STEPS / (double)since : 1;
    s->events[s->events_seen++ % EVENTS] =
        (event){.step = step->step, .halvings = share * halvings, .skipped = skipped};
}

static void count_events(state *s, uint64_t step) {
    uint64_t n = s->events_seen < EVENTS ? s->events_seen : EVENTS;
    s->halvings = s->skips = 0;
    for (uint64_t i = 1; i <= n; i++) {
        const event *e = &s->events[(s->events_seen - i) % EVENTS];
        if (e->step > step) continue; // the run was taken up again before it
        if (e->step + SKIP_STEPS <= step) break;
        s->skips += e->skipped;
        if (e->step + HALVING_STEPS > step) s->halvings += e->halvings;
    }
}

static void follow(state *s, const keel_step *step, double scale, bool worse, bool bad, bool fell) {
    s->quiet = worse || fell ? 0 : s->quiet + 1;
    if (worse) s->last_step = step->step;
    if (scale < s->least) {
        s->least = scale;
        s->peak_step = step->step;
    }
    if (!bad && s->quiet >= QUIET) s->active = 0;
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    const keel_step *step = &in->row->step;
    double scale;
    if (!keel_row_scalar(in->row, s->loss_scale, &scale) || !isfinite(scale)) return;
    if (!s->seen) {
        s->first_step_of_run = step->step;
        s->last = scale;
    }
    if (scale > s->last) s->grown = 1;
    double halved = halvings_since(s->last, scale);
    bool worse = halved > 0 || (step->flags & KEEL_STEP_SKIPPED);
    if (worse) add_event(s, step, halved, (step->flags & KEEL_STEP_SKIPPED) != 0);
    if (worse || s->active) {
        count_events(s, step->step);
        bool fell = scale <= 1 && (s->last > 1 || (s->active && s->least <= 1));
        bool bad = s->halvings > in->params[P_HALVINGS] || s->skips > in->params[P_SKIPPED] * SKIP_STEPS || fell;
        if (bad && !s->active && !in_search(s, step, in->params[P_SEARCH])) {
            s->active = 1;
            s->key++;
            s->first_step = s->peak_step = s->last_step = step->step;
            s->before = s->least = fmax(s->last, scale * exp2(s->halvings));
        }
        if (s->active) {
            follow(s, step, scale, worse, bad, fell);
            report(s, findings);
        }
    }
    s->seen = 1;
    s->last = scale;
    s->last_record_step = step->step;
}

const keel_detector keel_detect_loss_scale_collapse = {
    .rule = "loss_scale_collapse",
    .doc = "the dynamic loss scale is halved again and again",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 8,
    .state_bytes = sizeof(state),
    .start = start,
    .update = update,
};
