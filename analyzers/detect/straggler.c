// One rank that the others wait for.
//
// Times of a step are equal on all ranks of a synchronous run and tell nothing: the rank that waits least at
// collectives is the one that is waited for (reduce_wait_least_seconds, by local monotonic clocks). Told where one rank
// waits least in 38 of the last 40 records, and what the longest waiter waits longer is a given share of the step in
// three quarters of them, and twice as much as it used to be, or what a rank brings about that is twice as slow, where
// there is a past of 64 records: on a machine that is shared some rank is always the slower one by a little. Time in
// which the rank had no processor (cpu_wait_seconds) does not count, and all in all the others must have waited for
// half a second: what a busy scheduler, caches and clock rates do to one process, they do for a while. Steps of
// milliseconds come by the dozen in that time.
//
// Pipeline stages, and ranks that share out experts, have unequal work: there one rank waits least from the first step
// on in good health, by any share of a step. So nothing is told before the past is known, and that past counts for the
// rank alone that has waited least in most of it.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/excursion.h"
#include "analyzers/series.h"
#include "analyzers/track.h"

enum { P_SHARE, P_TIMES, P_RECORDS, P_SECONDS, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_SHARE] = {"share", 0.2, 0.01, 1, "of a step that others wait longer, in three quarters of 40 records"},
    [P_TIMES] = {"times", 2, 1, 1e3, "and least factor over what it used to be"},
    [P_RECORDS] = {"records", 38, 21, 40, "of 40 records in which one rank waits least"},
    [P_SECONDS] = {"seconds", 0.5, 0, 1e6, "that the others have waited longer since then, all in all"},
};

enum { RECENT = 40 };

typedef struct state {
    int32_t most, least, least_rank, cpu_wait;
    uint32_t count; // of the ring, saturating
    uint32_t at;
    int32_t slow_rank;   // by the last records; -1: none
    uint64_t slow_since; // step
    double waited;       // seconds that the others have waited longer since then
    int64_t rank;        // that was told
    uint64_t first_step;
    keel_track usual;   // share of the step
    int32_t usual_rank; // that waited least in most of the past, by Boyer and Moore's vote
    uint32_t votes;
    float shares[RECENT], waits[RECENT];
    int32_t ranks[RECENT];
    uint64_t steps[RECENT];
    keel_excursion excursion;
} state;

static void init(void *memory) {
    state *s = memory;
    s->slow_rank = -1;
}

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->most = keel_run_scalar(info, "reduce_wait_seconds");
    s->least = keel_run_scalar(info, "reduce_wait_least_seconds");
    s->least_rank = keel_run_scalar(info, "reduce_wait_least_seconds_rank");
    s->cpu_wait = keel_run_scalar(info, "cpu_wait_seconds");
}

static void sort(const state *s, float sorted[RECENT]) {
    memcpy(sorted, s->shares, RECENT * sizeof *sorted);
    keel_sort_floats(sorted, RECENT);
}

// The rank that waits least in most of the last records, in how many, and since when.
static int32_t slowest(const state *s, uint32_t *records, uint64_t *first_step) {
    int32_t best = -1;
    *records = 0;
    for (uint32_t i = 0; i < RECENT; i++) {
        uint32_t n = 0;
        uint64_t first = UINT64_MAX;
        for (uint32_t k = 0; k < RECENT; k++) {
            if (s->ranks[k] != s->ranks[i]) continue;
            n++;
            if (s->steps[k] < first) first = s->steps[k];
        }
        if (n <= *records) continue;
        *records = n;
        *first_step = first;
        best = s->ranks[i];
    }
    return best;
}

static void join(state *s, float share, int32_t rank) {
    const keel_track_score score = keel_track_look(&s->usual, share, 0.02f);
    keel_track_add(&s->usual, share, &score);
    if (s->votes == 0) s->usual_rank = rank;
    if (rank != s->usual_rank)
        s->votes--;
    else if (s->votes < KEEL_TRACK_WARMUP)
        s->votes++;
}

static void report(const state *s, keel_findings *findings) {
    const keel_excursion *e = &s->excursion;
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause,
             "the others wait for rank %" PRId64 ": %.0f %% of a step since step %" PRIu64 " (%.0f %% before)", s->rank,
             100 * e->value, s->first_step, 100 * e->expected);
    keel_finding f = keel_excursion_finding(e);
    f.series = "reduce_wait_seconds";
    f.severity = KEEL_WARNING;
    f.rank = s->rank;
    f.first_step = s->first_step;
    f.clause = clause;
    keel_findings_add(findings, &f);
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    double most, least, rank, queued;
    if (!keel_row_scalar(in->row, s->most, &most) || !keel_row_scalar(in->row, s->least, &least) ||
        !keel_row_scalar(in->row, s->least_rank, &rank))
        return;
    if (in->info->world_size < 2 || (in->row->step.flags & KEEL_STEP_DROPPED) || !(in->row->step.seconds > 0)) return;
    if (!keel_row_scalar(in->row, s->cpu_wait, &queued)) queued = 0;
    const float wait = (float)fmax(0, most - least - queued), share = wait / (float)in->row->step.seconds;
    if (s->count == RECENT && s->slow_rank < 0 && !s->excursion.active) // what is slow now is not what is usual
        join(s, s->shares[s->at], s->ranks[s->at]);
    s->shares[s->at] = share;
    s->waits[s->at] = wait;
    s->ranks[s->at] = (int32_t)rank;
    s->steps[s->at] = in->row->step.step;
    s->at = (s->at + 1) % RECENT;
    if (s->count < RECENT) s->count++;
    const bool past = s->usual.joined >= KEEL_TRACK_WARMUP, unequal = in->info->pp > 1 || in->info->ep > 1;
    double usual = past ? (double)s->usual.centre : 0, now = 0;
    bool slow = false;
    if (s->count == RECENT) {
        float sorted[RECENT];
        uint32_t records;
        uint64_t since = 0;
        sort(s, sorted);
        now = (double)sorted[RECENT / 2];
        const int32_t who = slowest(s, &records, &since);
        if (unequal && who != s->usual_rank) usual = 0;
        slow = (past || !unequal) && records >= in->params[P_RECORDS] &&
               (double)sorted[RECENT / 4] >= in->params[P_SHARE] &&
               now >= fmin(in->params[P_TIMES] * usual, 1 - (1 - usual) / in->params[P_TIMES]);
        if (slow && who == s->slow_rank) {
            s->waited += (double)wait;
        } else if (slow) {
            s->slow_rank = who;
            s->slow_since = since;
            s->waited = 0;
            for (uint32_t i = 0; i < RECENT; i++) s->waited += (double)s->waits[i];
        } else {
            s->slow_rank = -1;
        }
    }
    slow = slow && s->waited >= in->params[P_SECONDS];
    if (slow && !s->excursion.active) {
        s->rank = s->slow_rank;
        s->first_step = s->slow_since;
    }
    const keel_excursion_record record = {
        .step = in->row->step.step, .value = now, .expected = usual, .score = now, .outside = slow, .alarm = slow};
    if (keel_excursion_add(&s->excursion, &record)) report(s, findings);
}

const keel_detector keel_detect_straggler = {
    .rule = "straggler",
    .doc = "one rank that the others wait for",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_ALONE,
    .reach = 0,
    .state_bytes = sizeof(state),
    .init = init,
    .start = start,
    .update = update,
};
