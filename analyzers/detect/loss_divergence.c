// The loss rises and does not come back, at once or slowly.
//
// The median of the last 64 records stands above the best such median by max(5 %, 0.1 nat, 2 sigma of the noise); it is
// over when half of the rise is regained, and only then. (DEFINITIONS asks 4 sigma; 2 finds a rise of 0.6 per 1,000 in
// time, and white noise spans 1.5 in a million records.) Of a loss below 0.5, whose unit is hardly the nat, a fifth
// stands for the 0.1.
//
// A series that wanders by itself, such as a slow wave, is known by rises that came back: the second greatest of the
// last 131,072 records or more, times 2, is the least rise that counts. The second, since one rise that came back may
// have been a real one.
//
// Critical: above ln(vocabulary), where that is known; or after 256 records, for a rise by a quarter of the mean loss
// so far which is
// - quick: the run was quiet before for twelve times as long,
// - greater by that factor 2 than any that came back,
// - no random walk: at least 6 sigma sqrt(n), where n blocks of 64 records passed since the rise began and sigma is the
// spread of the
//   changes of the median from block to block before it.
// So no part of a wave or a walk is critical. A sudden divergence is critical by loss_spike long before.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/run_settings.h"
#include "analyzers/series.h"

enum { P_RISE, P_RISE_NATS, P_SIGMA, P_WANDER, P_REGAIN, P_CRITICAL_RECORDS, P_CRITICAL_RISE, P_VOCABULARY, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_RISE] = {"rise", 0.05, 0.001, 1e3, "least rise as a share of the best median"},
    [P_RISE_NATS] = {"rise_nats", 0.1, 0, 1e3, "least rise; a fifth of a loss below five times it"},
    [P_SIGMA] = {"sigma", 2, 0, 1e3, "least rise in sigmas of the noise"},
    [P_WANDER] = {"wander", 2, 0, 1e3, "least rise over the second greatest one that came back"},
    [P_REGAIN] = {"regain", 0.5, 0.01, 1, "share of the rise that is regained when it is over"},
    [P_CRITICAL_RECORDS] = {"critical_records", 256, 1, 1e9, "records after which a great rise is critical"},
    [P_CRITICAL_RISE] = {"critical_rise", 0.25, 0, 1e3, "what rise is great, as a share of the mean so far"},
    [P_VOCABULARY] = {"vocabulary", 0, 0, 1e9, "tokens: a median above their logarithm is critical; 0: from the run"},
};

enum {
    WINDOW = 64,
    WARMUP = 128,
    MEMORY = 131072,
    QUIET_BEFORE = 12,
    CHANGES_KNOWN = 16,
    MERGES = WINDOW / KEEL_WINDOW_BLOCK
};
#define WALK_SIGMA 6.0
#define DOUBT      0.25

// The two greatest rises that came back, of this and of the last stretch of MEMORY records.
typedef struct wander {
    double greatest[2], second[2];
    uint32_t recovered[2]; // incidents that were over by themselves
} wander;

typedef struct state {
    int32_t loss;
    uint32_t active;
    uint32_t key;
    uint32_t critical;
    keel_window window;
    double store[KEEL_WINDOW_STORE(WINDOW)];
    uint64_t records;
    double best;       // least median so far
    double highest;    // greatest median so far
    double drawup;     // greatest rise above it since the last one that came back
    uint64_t low_step; // when the median was last near the best
    uint64_t low_record;
    uint64_t opened;       // record
    uint64_t great_record; // when the rise was great first; 0: never
    double sum_of_medians; // of the magnitudes of all medians so far, whose number is medians
    uint64_t medians;
    uint64_t peak_step, last_step;
    double vocabulary;   // of the run; 0: unknown
    double peak;         // greatest median since then
    double block_median; // of the block of WINDOW records before
    keel_window changes; // of it, from block to block, outside of divergences
    double changes_store[KEEL_WINDOW_STORE(WINDOW)];
    double regained; // the median with which the last one was over
    double sigma;
    wander known;
} state;

static void init(void *memory) {
    state *s = memory;
    keel_window_init(&s->window, WINDOW);
    keel_window_init(&s->changes, WINDOW);
    s->block_median = NAN;
    s->best = INFINITY;
    s->highest = -INFINITY;
}

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->loss = keel_run_scalar(info, "loss");
    s->vocabulary = keel_run_setting(info, "model_config", "vocab_size", s->vocabulary);
}

static void learn(state *s, double rise) {
    wander *w = &s->known;
    if (rise > w->greatest[0]) {
        w->second[0] = w->greatest[0];
        w->greatest[0] = rise;
    } else if (rise > w->second[0])
        w->second[0] = rise;
}

static void age(state *s) {
    if (s->records % MEMORY != 0) return;
    wander *w = &s->known;
    w->greatest[1] = w->greatest[0];
    w->second[1] = w->second[0];
    w->recovered[1] = w->recovered[0];
    w->greatest[0] = w->second[0] = 0;
    w->recovered[0] = 0;
}

static double known_wander(const wander *w) {
    double second = fmax(w->second[0], w->second[1]);
    return fmax(second, fmin(w->greatest[0], w->greatest[1]));
}

static double least_rise(const state *s, const double *p) {
    // Of a loss that has been on both sides of zero no share means anything: its range stands for it.
    double level = s->best < 0 && s->highest > 0 ? s->highest - s->best : fabs(s->best);
    double sigma = KEEL_SIGMA_OF_MAD * s->window.mad;
    double rise = fmax(p[P_RISE] * level, fmin(p[P_RISE_NATS], 0.2 * level));
    double doubt = 1 + DOUBT * (s->known.recovered[0] + s->known.recovered[1]);
    return fmax(fmax(doubt * rise, p[P_SIGMA] * sigma), p[P_WANDER] * known_wander(&s->known));
}

static bool is_critical(state *s, const double *p, double median) {
    double vocabulary = p[P_VOCABULARY] > 0 ? p[P_VOCABULARY] : s->vocabulary;
    double chance = vocabulary > 1 ? log(vocabulary) : INFINITY;
    if (median > chance && s->best < 0.8 * chance) return true;
    double rise = median - s->best, mean = s->sum_of_medians / (double)s->medians;
    double came_back = fmax(s->known.greatest[0], s->known.greatest[1]);
    if (rise < fmax(p[P_CRITICAL_RISE] * mean, p[P_WANDER] * came_back)) return false;
    if (s->great_record == 0) s->great_record = s->records;
    double blocks = (double)(s->records - s->low_record) / WINDOW + 1;
    double sigma = KEEL_SIGMA_OF_MAD * fmax(s->changes.mad, fabs(s->changes.median));
    if (s->changes.count < CHANGES_KNOWN || rise < WALK_SIGMA * sigma * sqrt(blocks)) return false;
    bool quick = (s->great_record - s->low_record) * QUIET_BEFORE <= s->low_record;
    return quick && s->records - s->opened >= (uint64_t)p[P_CRITICAL_RECORDS];
}

static void report(const state *s, keel_findings *findings) {
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause,
             "loss rose from a median of %.4g to %.4g between steps %" PRIu64 " and %" PRIu64 "%s", s->best, s->peak,
             s->low_step, s->peak_step, s->active ? " and has not come back" : " and came back");
    keel_finding f = {.series = "loss",
                      .severity = s->critical ? KEEL_CRITICAL : KEEL_WARNING,
                      .key = s->key,
                      .closed = !s->active,
                      .site = -1,
                      .rank = -1,
                      .first_step = s->low_step,
                      .peak_step = s->peak_step,
                      .last_step = s->last_step,
                      .value = s->peak,
                      .expected = s->best,
                      .score = s->sigma > 0 ? (s->peak - s->best) / s->sigma : KEEL_SCORE_LIMIT,
                      .clause = clause};
    keel_findings_add(findings, &f);
}

static void follow_quiet(state *s, const double *p, uint64_t step, double median, keel_findings *findings) {
    if (median < s->best) s->best = median;
    double rise = median - s->best, least = least_rise(s, p);
    if (rise <= least / 4) {
        s->low_step = step;
        s->low_record = s->records;
    }
    if (s->records < WARMUP) return;
    if (rise > s->drawup) s->drawup = rise;
    if (rise < s->drawup / 2) {
        learn(s, s->drawup);
        s->drawup = 0;
    }
    if (rise < least || rise == 0) return;
    s->active = 1;
    s->key++;
    s->great_record = 0;
    s->opened = s->records;
    s->peak = median;
    s->peak_step = s->last_step = step;
    s->sigma = KEEL_SIGMA_OF_MAD * s->window.mad;
    s->critical = is_critical(s, p, median);
    report(s, findings);
}

static void follow_divergence(state *s, const double *p, uint64_t step, double median, keel_findings *findings) {
    if (median > s->peak) {
        s->peak = median;
        s->peak_step = step;
    }
    if (median <= s->peak - p[P_REGAIN] * (s->peak - s->best)) {
        s->active = 0;
        learn(s, s->peak - s->best);
        s->known.recovered[0]++;
        s->drawup = 0;
        s->regained = median;
    } else {
        s->last_step = step;
        if (is_critical(s, p, median)) s->critical = 1;
    }
    report(s, findings);
    if (!s->active) s->best = s->regained; // what comes next is measured from here
}

static void end_block(state *s) {
    double change = s->window.median - s->block_median;
    if (!s->active && isfinite(change)) keel_window_push(&s->changes, s->changes_store, change);
    s->block_median = s->window.median;
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    double value;
    if (!keel_row_scalar(in->row, s->loss, &value) || !isfinite(value)) return;
    if (in->row->step.flags & KEEL_STEP_SKIPPED) return;
    s->records++;
    age(s);
    if (!keel_window_push(&s->window, s->store, value) || s->window.count < WINDOW) return;
    if (s->medians % MERGES == 0) end_block(s);
    s->sum_of_medians += fabs(s->window.median);
    s->medians++;
    s->highest = fmax(s->highest, s->window.median);
    if (s->active)
        follow_divergence(s, in->params, in->row->step.step, s->window.median, findings);
    else
        follow_quiet(s, in->params, in->row->step.step, s->window.median, findings);
}

const keel_detector keel_detect_loss_divergence = {
    .rule = "loss_divergence",
    .doc = "the loss rises and does not come back, at once or slowly",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 8,
    .state_bytes = sizeof(state),
    .init = init,
    .start = start,
    .update = update,
};
