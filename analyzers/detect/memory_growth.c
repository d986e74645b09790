// Memory that grows and grows on one rank: a leak.
//
// rss_growth_bytes (else rss_anon_bytes) by the least of each 8 records: a rise from block to block, 8 times in a row
// on one rank, of at least the given bytes within 512 records, and of 2 % of what the process has. What a program takes
// in bursts, and caches that fill up, are no leak; the first 64 records are left out.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "analyzers/detect/detectors.h"

enum { P_BYTES, P_SHARE, P_BLOCKS, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_BYTES] = {"bytes", 8 << 20, 4096, 1e15, "least growth"},
    [P_SHARE] = {"share", 0.02, 0, 1e3, "and least share of what the process has"},
    [P_BLOCKS] = {"blocks", 8, 2, 64, "blocks of 8 records that rise in a row"},
};

enum { BLOCK = 8, EARLY = 64, MOST_BLOCKS = 64 };

typedef struct state {
    int32_t growth, growth_rank, rss;
    uint32_t records, in_block;
    uint32_t rising; // blocks in a row
    uint32_t active, key;
    int64_t rank;       // of the present stretch
    int64_t block_rank; // of the present block; -1: changes within
    double least;       // of the present block
    double last, base;  // least of the last block; of the first of the stretch
    double bytes;       // what the process has
    uint64_t base_step, block_step, last_step;
} state;

static void init(void *memory) {
    state *s = memory;
    s->rank = s->block_rank = -1;
    s->last = NAN;
}

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->growth = keel_run_scalar(info, "rss_growth_bytes");
    s->growth_rank = keel_run_scalar(info, "rss_growth_bytes_rank");
    s->rss = keel_run_scalar(info, "rss_anon_bytes");
    if (s->growth >= 0) return;
    s->growth = s->rss;
    s->growth_rank = keel_run_scalar(info, "rss_anon_bytes_rank");
}

static void report(const state *s, keel_findings *findings) {
    double grown = s->last - s->base, steps = (double)(s->last_step - s->base_step);
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause,
             "memory of rank %" PRId64 " has grown by %.1f MiB since step %" PRIu64 ", %.1f KiB a step", s->rank,
             grown / 0x1p20, s->base_step, grown / 0x1p10 / fmax(steps, 1));
    keel_finding f = {.series = "rss_growth_bytes",
                      .severity = KEEL_WARNING,
                      .key = s->key,
                      .closed = !s->active,
                      .site = -1,
                      .rank = s->rank,
                      .first_step = s->base_step,
                      .peak_step = s->last_step,
                      .last_step = s->last_step,
                      .value = s->last,
                      .expected = s->base,
                      .score = grown,
                      .clause = clause};
    keel_findings_add(findings, &f);
}

static void end_block(state *s, const keel_detector_input *in, keel_findings *findings) {
    bool was_active = s->active;
    bool rises = s->least > s->last && s->block_rank >= 0 && (s->rising == 0 || s->block_rank == s->rank);
    if (!rises) {
        s->active = 0;
        if (was_active) report(s, findings);
        s->rising = 0;
        s->base = s->least;
        s->base_step = s->block_step;
        s->rank = s->block_rank;
        s->last = s->least;
        return;
    }
    if (s->rising == 0) s->rank = s->block_rank;
    s->rising++;
    s->last = s->least;
    s->last_step = in->row->step.step;
    bool leak = s->rising >= in->params[P_BLOCKS] && s->last - s->base >= in->params[P_BYTES] &&
                s->last - s->base >= in->params[P_SHARE] * s->bytes;
    if (leak && !s->active) {
        s->active = 1;
        s->key++;
    }
    if (s->active) report(s, findings);
    if (!s->active && s->rising >= MOST_BLOCKS) s->rising = 0; // too slow: begins again from here
    if (s->rising == 0) {
        s->base = s->last;
        s->base_step = s->block_step;
    }
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    double value, rank = 0;
    if (in->resumed && in->record > 0) { // another process
        s->records = s->in_block = s->rising = 0;
        s->last = NAN;
        bool was_active = s->active;
        s->active = 0;
        if (was_active) report(s, findings);
    }
    if ((in->row->step.flags & KEEL_STEP_DROPPED) || !keel_row_scalar(in->row, s->growth, &value)) return;
    keel_row_scalar(in->row, s->growth_rank, &rank);
    if (!keel_row_scalar(in->row, s->rss, &s->bytes)) s->bytes = 0;
    if (s->records < EARLY) {
        s->records++;
        return;
    }
    if (s->in_block == 0) {
        s->least = value;
        s->block_rank = (int64_t)rank;
        s->block_step = in->row->step.step;
    }
    if (value < s->least) s->least = value;
    if ((int64_t)rank != s->block_rank) s->block_rank = -1;
    if (++s->in_block < BLOCK) return;
    s->in_block = 0;
    end_block(s, in, findings);
}

const keel_detector keel_detect_memory_growth = {
    .rule = "memory_growth",
    .doc = "memory that grows and grows on one rank",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_ALONE,
    .reach = 0,
    .state_bytes = sizeof(state),
    .init = init,
    .start = start,
    .update = update,
};
