// A rank whose process ended before its run did.
//
// Seen by the ranks of its host, which watch one another's processes (collectors/watch/rank_watch.h), and written down
// by the lowest that lives: no row tells of it. What dies after it is taken for its consequence, on every host: the
// launcher ends them all. Over with the next row, which a resumed run makes.
#include <inttypes.h>
#include <stdio.h>

#include "analyzers/detect/detectors.h"

#define SAME_SECONDS 60.0 // in which a launcher has ended what was left of a job

typedef struct state {
    uint32_t active, key;
    keel_host_event seen;
} state;

static void report(const state *s, const char *and_then, keel_findings *findings) {
    const keel_host_event *seen = &s->seen;
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause, "rank %d (process %d on %s) is gone in step %" PRIu64 ": %s%s", (int)seen->rank,
             (int)seen->pid, seen->host, seen->step, seen->how, and_then);
    const keel_finding f = {.series = "step_seconds",
                            .severity = KEEL_CRITICAL,
                            .key = s->key,
                            .closed = !s->active,
                            .site = -1,
                            .rank = seen->rank,
                            .first_step = seen->step,
                            .peak_step = seen->step,
                            .last_step = seen->step,
                            .value = 1,
                            .expected = 0,
                            .score = 1,
                            .clause = clause};
    keel_findings_add(findings, &f);
}

static void event(void *memory, const keel_detector_input *in, const keel_host_event *seen, keel_findings *findings) {
    (void)in;
    state *s = memory;
    if (seen->kind != KEEL_HOST_GONE) return;
    if (s->active && seen->time_unix - s->seen.time_unix < SAME_SECONDS) return;
    *s = (state){.active = 1, .key = s->key + 1, .seen = *seen};
    report(s, "", findings);
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    if (!s->active || in->row->step.time_unix <= s->seen.time_unix) return; // what the others still had to record
    s->active = 0;
    report(s, "; the run has gone on since", findings);
}

const keel_detector keel_detect_dead_rank = {
    .rule = "dead_rank",
    .doc = "a rank whose process ended before its run did",
    .link = KEEL_LINK_ALONE,
    .state_bytes = sizeof(state),
    .update = update,
    .event = event,
};
