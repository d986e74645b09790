// A step that does not end.
//
// Longer than ten times the median step and than min_seconds. Live it is told while the step goes on (the monitor looks
// some times a second), so that somebody hears of a run that stands; afterwards by the duration of the step, if it did
// end. The rank that the others wait for is named by the ranks of its host, which watch one another, and who write it
// down themselves: so it is known of a run that did not outlive it. The first step is left out, and what lies between
// two steps (a checkpoint, an evaluation) is none.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/series.h"

enum { P_TIMES, P_SECONDS, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_TIMES] = {"times", 10, 1.5, 1e6, "times the median step"},
    [P_SECONDS] = {"min_seconds", 300, 0.1, 1e6, "and at least so long"},
};

enum { WINDOW = 64 };
#define PATIENCE 1.25

typedef struct state {
    uint32_t active, key;
    uint64_t records, last_step;
    uint64_t told; // the step of which it was told while it lasted
    keel_window seconds;
    double store[KEEL_WINDOW_STORE(WINDOW)];
} state;

static void init(void *memory) {
    state *s = memory;
    keel_window_init(&s->seconds, WINDOW);
}

static double limit_of(const state *s, const double *p) {
    return fmax(p[P_SECONDS], p[P_TIMES] * s->seconds.median);
}

static bool is_hang(const state *s, const double *p, double seconds) {
    return s->records >= 2 && seconds >= limit_of(s, p);
}

static void report(const state *s, uint64_t step, double seconds, int64_t rank, const char *clause,
                   keel_findings *findings) {
    keel_finding f = {.series = "step_seconds",
                      .severity = KEEL_CRITICAL,
                      .key = s->key,
                      .closed = !s->active,
                      .at_once = !s->active,
                      .site = -1,
                      .rank = rank,
                      .first_step = step,
                      .peak_step = step,
                      .last_step = step,
                      .value = seconds,
                      .expected = s->seconds.median,
                      .score = seconds / fmax(s->seconds.median, 1e-9),
                      .clause = clause};
    keel_findings_add(findings, &f);
}

static void tell(state *s, uint64_t step, double seconds, const keel_host_event *waited_for, keel_findings *findings) {
    if (!s->active) s->key++;
    s->active = 1;
    s->told = step;
    char clause[KEEL_CLAUSE_BYTES], who[KEEL_CLAUSE_BYTES / 2] = "";
    if (waited_for && waited_for->rank >= 0)
        snprintf(who, sizeof who, ", waiting for rank %d (%s)", (int)waited_for->rank, waited_for->how);
    snprintf(clause, sizeof clause, "step %" PRIu64 " has gone on for %.3g s%s: a step takes %.3g s", step, seconds,
             who, s->seconds.median);
    report(s, step, seconds, waited_for ? waited_for->rank : -1, clause, findings);
}

static void watch(void *memory, const keel_detector_input *in, double seconds, const keel_host_event *waited_for,
                  keel_findings *findings) {
    state *s = memory;
    if (!is_hang(s, in->params, seconds)) return;
    // Who watches the rank that is waited for goes by the same limit, and has written it down once it tells (event): an
    // alert that nobody can look up later is of less use than one that comes a moment later. It tells nothing of a rank
    // that still gives signs of life.
    if (waited_for && waited_for->rank >= 0 && seconds < PATIENCE * limit_of(s, in->params)) return;
    tell(s, s->last_step + 1, seconds, waited_for, findings);
}

// Whoever told has judged by the same limit.
static void event(void *memory, const keel_detector_input *in, const keel_host_event *seen, keel_findings *findings) {
    (void)in;
    if (seen->kind == KEEL_HOST_SILENT) tell(memory, seen->step, seen->seconds, seen, findings);
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    const keel_step *step = &in->row->step;
    const bool hung = is_hang(s, in->params, step->seconds);
    // A rank that stopped at the border of two steps is told of with the one behind it, whose row may come only now.
    const bool ends = s->active && step->step > s->told;
    if (hung || ends) {
        if (!s->active) s->key++;
        s->active = 0;
        char clause[KEEL_CLAUSE_BYTES];
        snprintf(clause, sizeof clause, "step %" PRIu64 " took %.3g s: a step takes %.3g s", step->step, step->seconds,
                 s->seconds.median);
        report(s, step->step, step->seconds, -1, clause, findings);
    } else if (step->seconds > 0 && s->records > 0 && !s->active) // the first one sets things up
        keel_window_push(&s->seconds, s->store, step->seconds);
    s->records++;
    s->last_step = step->step;
}

const keel_detector keel_detect_hang = {
    .rule = "hang",
    .doc = "a step that does not end",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_ALONE,
    .reach = 0,
    .state_bytes = sizeof(state),
    .init = init,
    .update = update,
    .watch = watch,
    .event = event,
};
