// Clipping that never acts, or always: clip_ineffective and clip_constant. Both are notes; clip_ineffective is a
// warning where the run computes in 16 bits, whose rounding makes rare great gradients that clipping is there for. The
// threshold is the rule's max_norm, else the one in the run's stored settings, else what the clip factor min(1,
// max_norm / (grad_norm + 1e-6)) tells when it is below 1.
//
// clip_ineffective: the threshold is ratio times the median norm, from 500 updates on; before, ratio times the greatest
// of 64 norms in a row: where norms come alike, the next one is greater than those by a chance of 1 in 65, and than a
// hundred times those by far less; as a model learns they fall.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/run_settings.h"
#include "analyzers/series.h"

enum { P_INEFFECTIVE_MAX, P_RATIO, INEFFECTIVE_PARAMS };
static const keel_param_info ineffective_params[INEFFECTIVE_PARAMS] = {
    [P_INEFFECTIVE_MAX] = {"max_norm", 0, 0, 1e30, "the threshold; 0: from the run"},
    [P_RATIO] = {"ratio", 100, 1, 1e12, "max_norm over the median norm"},
};
enum { P_CONSTANT_MAX, P_SHARE, CONSTANT_PARAMS };
static const keel_param_info constant_params[CONSTANT_PARAMS] = {
    [P_CONSTANT_MAX] = {"max_norm", 0, 0, 1e30, "the threshold; 0: from the run"},
    [P_SHARE] = {"share", 0.95, 0.01, 1, "more than this share of 500 steps clipped"},
};

enum { UPDATES = 500, WINDOW = 256, EARLY = 64 };

// What both share: where the norm and the threshold come from.
typedef struct source {
    int32_t grad_norm, clip_factor;
    double max_norm; // 0: not known yet
} source;

static void find_source(source *s, const keel_run_info *info) {
    s->grad_norm = keel_run_scalar(info, "grad_norm");
    s->clip_factor = keel_run_scalar(info, "clip_factor");
    double set = keel_run_setting(info, "runner_wrapper", "max_grad_norm", 0);
    if (set > 0) s->max_norm = set;
}

// The norm of an applied update and its threshold; false where either is unknown.
static bool read_norm(source *s, const keel_row *row, double set_max_norm, double *norm, double *max_norm) {
    double factor;
    if (row->step.flags & KEEL_STEP_SKIPPED) return false;
    if (!keel_row_scalar(row, s->grad_norm, norm) || !isfinite(*norm) || *norm <= 0) return false;
    if (s->max_norm == 0 && keel_row_scalar(row, s->clip_factor, &factor) && factor > 0 && factor < 1)
        s->max_norm = factor * (*norm + 1e-6);
    *max_norm = set_max_norm > 0 ? set_max_norm : s->max_norm;
    return *max_norm > 0;
}

static keel_finding note(uint32_t key, bool active, uint64_t first_step, uint64_t step) {
    return (keel_finding){.series = "grad_norm",
                          .severity = KEEL_INFO,
                          .key = key,
                          .closed = !active,
                          .site = -1,
                          .rank = -1,
                          .first_step = first_step,
                          .peak_step = step,
                          .last_step = step};
}

// ---- clip_ineffective ----

typedef struct ineffective {
    source source;
    uint32_t active, key;
    uint32_t settled, reserved; // 1: told by the median
    uint64_t updates, first_step;
    double greatest; // of the present EARLY updates
    keel_window window;
    double store[KEEL_WINDOW_STORE(WINDOW)];
} ineffective;

static void init_ineffective(void *memory) {
    ineffective *s = memory;
    keel_window_init(&s->window, WINDOW);
}

static void start_ineffective(void *memory, const keel_run_info *info) {
    find_source(&((ineffective *)memory)->source, info);
}

static void update_ineffective(void *memory, const keel_detector_input *in, keel_findings *findings) {
    ineffective *s = memory;
    double norm, max_norm;
    if (!read_norm(&s->source, in->row, in->params[P_INEFFECTIVE_MAX], &norm, &max_norm)) return;
    if (s->updates++ == 0) s->first_step = in->row->step.step;
    s->greatest = s->updates % EARLY == 1 ? norm : fmax(s->greatest, norm);
    const bool renewed = keel_window_push(&s->window, s->store, norm), early = s->updates < UPDATES;
    if (early ? s->active || s->updates % EARLY : !renewed) return;
    const double usual = early ? s->greatest : s->window.median;
    const bool is = max_norm >= in->params[P_RATIO] * usual;
    if (is == (bool)s->active && (!is || s->settled)) return;
    if (is && !s->active) s->key++;
    s->active = is;
    s->settled = !early;
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause, "clipping at %.4g never acts: the %s is %.4g", max_norm,
             early ? "greatest gradient norm of 64 updates" : "median gradient norm", usual);
    keel_finding f = note(s->key, is, s->first_step, in->row->step.step);
    f.value = max_norm;
    f.expected = usual;
    f.score = max_norm / usual;
    f.clause = clause;
    if (in->settings->compute != KEEL_COMPUTED_FLOAT32) f.severity = KEEL_WARNING;
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_clip_ineffective = {
    .rule = "clip_ineffective",
    .doc = "the clip threshold is far above every gradient norm",
    .params = ineffective_params,
    .param_count = INEFFECTIVE_PARAMS,
    .link = KEEL_LINK_ALONE,
    .reach = 0,
    .state_bytes = sizeof(ineffective),
    .init = init_ineffective,
    .start = start_ineffective,
    .update = update_ineffective,
};

// ---- clip_constant ----

typedef struct constant {
    source source;
    uint32_t active, key, clipped;
    uint32_t reserved;
    uint64_t updates, first_step;
    unsigned char was_clipped[UPDATES];
    char reserved_tail[4];
} constant;

static void start_constant(void *memory, const keel_run_info *info) {
    find_source(&((constant *)memory)->source, info);
}

static void update_constant(void *memory, const keel_detector_input *in, keel_findings *findings) {
    constant *s = memory;
    double norm, max_norm;
    if (!read_norm(&s->source, in->row, in->params[P_CONSTANT_MAX], &norm, &max_norm)) return;
    unsigned char clipped = norm > max_norm;
    uint32_t at = (uint32_t)(s->updates++ % UPDATES);
    s->clipped += clipped - (uint32_t)s->was_clipped[at];
    s->was_clipped[at] = clipped;
    if (s->updates < 2 * UPDATES) return; // the first ones are warm-up
    bool is = s->clipped > in->params[P_SHARE] * UPDATES;
    if (is == (bool)s->active) return;
    s->active = is;
    if (is) {
        s->key++;
        s->first_step = in->row->step.step;
    }
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause,
             "%" PRIu32 " of the last %d updates were clipped at %.4g: the learning rate is set by the clipping",
             s->clipped, UPDATES, max_norm);
    keel_finding f = note(s->key, is, s->first_step, in->row->step.step);
    f.value = s->clipped / (double)UPDATES;
    f.expected = in->params[P_SHARE];
    f.score = s->clipped;
    f.clause = clause;
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_clip_constant = {
    .rule = "clip_constant",
    .doc = "nearly every update is clipped",
    .params = constant_params,
    .param_count = CONSTANT_PARAMS,
    .link = KEEL_LINK_ALONE,
    .reach = 0,
    .state_bytes = sizeof(constant),
    .start = start_constant,
    .update = update_constant,
};
