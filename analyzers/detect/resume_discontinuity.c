// A resume that does not continue the run.
//
// What must be exact: the count of updates and samples, the next batch, the learning rate (its change no greater than
// four times those before the stop), the loss scale (the same, or one step up or down). Loss and gradient norm of the
// next 20 records are judged against the 64 before the stop: z >= 8 and 3 % for the loss, z >= 6 and twice for the
// norm. Where steps overlap or are missing, only what does not hang on the step before is judged. A run that goes on
// with another number of ranks serves its data otherwise, as its settings say: what differs then is a note.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/recent.h"

enum { P_RECORDS, P_LOSS_Z, P_LOSS_RISE, P_NORM_Z, P_NORM_RATIO, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_RECORDS] = {"records", 20, 1, 1e6, "records after a resume that are compared"},
    [P_LOSS_Z] = {"loss_z", 8, 3, 1e4, "robust sigmas of the loss above its history"},
    [P_LOSS_RISE] = {"loss_rise", 0.03, 0, 1e3, "and least rise as a share"},
    [P_NORM_Z] = {"norm_z", 6, 3, 1e4, "robust sigmas of the log gradient norm above its history"},
    [P_NORM_RATIO] = {"norm_ratio", 2, 1, 1e6, "and least ratio"},
};

enum { LOSS, GRAD_NORM, LR, LOSS_SCALE, SCALARS };
static const char *const names[SCALARS] = {"loss", "grad_norm", "lr", "loss_scale"};

typedef struct state {
    int32_t id[SCALARS];
    uint32_t key;  // of the resume, from 1
    uint32_t left; // records still to compare
    uint32_t batches_known;
    uint32_t ranks, ranks_before; // 0: as now
    keel_step last;               // the step before this one
    keel_recent loss, grad_norm, lr_change;
    double lr, loss_scale; // the latest; NaN: none
    keel_reference loss_before, norm_before;
    uint32_t told_loss, told_norm; // 1: found different after this resume
} state;

static void init(void *memory) {
    state *s = memory;
    s->lr = s->loss_scale = NAN;
}

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    for (int i = 0; i < SCALARS; i++) s->id[i] = keel_run_scalar(info, names[i]);
    if (s->ranks != info->world_size) s->ranks_before = s->ranks;
    s->ranks = info->world_size;
}

typedef struct difference {
    const char *series;
    double value, expected, score;
} difference;

static void report(const state *s, const keel_step *step, const difference *d, keel_findings *findings) {
    char clause[KEEL_CLAUSE_BYTES], ranks[48] = "";
    if (s->ranks_before)
        snprintf(ranks, sizeof ranks, " on %" PRIu32 " ranks instead of %" PRIu32, s->ranks, s->ranks_before);
    snprintf(clause, sizeof clause, "after the resume%s before step %" PRIu64 " %s is %.10g, expected %.10g", ranks,
             step->step, d->series, d->value, d->expected);
    keel_finding f = {.series = d->series,
                      .severity = s->ranks_before ? KEEL_INFO : KEEL_WARNING,
                      .key = s->key,
                      .closed = true,
                      .at_once = true,
                      .site = -1,
                      .rank = -1,
                      .first_step = step->step,
                      .peak_step = step->step,
                      .last_step = step->step,
                      .value = d->value,
                      .expected = d->expected,
                      .score = d->score,
                      .clause = clause};
    keel_findings_add(findings, &f);
}

// With another batch size the batches are numbered anew: by the samples before them.
static bool renumbered(const state *s, const keel_step *step) {
    const uint64_t batches = step->last_batch - step->first_batch + 1;
    if (!s->last.samples || step->samples <= s->last.samples || step->last_batch < step->first_batch) return false;
    const uint64_t each = (step->samples - s->last.samples) / batches;
    return each > 0 && step->first_batch == s->last.samples / each;
}

static void compare_counts(const state *s, const keel_step *step, keel_findings *findings) {
    uint64_t update = s->last.update + (step->flags & KEEL_STEP_SKIPPED ? 0 : 1);
    if (s->last.update && step->update && step->update != update)
        report(s, step, &(difference){"update", (double)step->update, (double)update, 1}, findings);
    if (s->batches_known && step->first_batch != s->last.last_batch + 1 && !renumbered(s, step))
        report(s, step, &(difference){"batch", (double)step->first_batch, (double)(s->last.last_batch + 1), 1},
               findings);
    if (s->last.samples && step->samples && step->samples <= s->last.samples)
        report(s, step, &(difference){"samples", (double)step->samples, (double)s->last.samples, 1}, findings);
}

static double greatest(const keel_recent *recent) {
    double result = 0;
    for (int i = 0; i < KEEL_RECENT; i++) result = fmax(result, recent->values[i]);
    return result;
}

static void compare_settings(const state *s, const keel_detector_input *in, keel_findings *findings) {
    double lr, scale;
    if (keel_row_scalar(in->row, s->id[LR], &lr) && isfinite(s->lr)) {
        double change = fabs(lr - s->lr);
        if (s->lr_change.count >= 16 && change > 4 * greatest(&s->lr_change) + 1e-6 * fabs(s->lr))
            report(s, &in->row->step, &(difference){"lr", lr, s->lr, 1}, findings);
    }
    if (keel_row_scalar(in->row, s->id[LOSS_SCALE], &scale) && isfinite(s->loss_scale) && s->loss_scale > 0) {
        double steps = log2(scale / s->loss_scale);
        if (!(fabs(steps) <= 1.001))
            report(s, &in->row->step, &(difference){"loss_scale", scale, s->loss_scale, fabs(steps)}, findings);
    }
}

static void compare_history(state *s, const keel_detector_input *in, keel_findings *findings) {
    double value;
    if (!s->told_loss && keel_row_scalar(in->row, s->id[LOSS], &value) && isfinite(value)) {
        const keel_reference *r = &s->loss_before;
        double z = keel_reference_score(r, value), rise = value - r->expected, level = fabs(r->expected);
        if (z >= in->params[P_LOSS_Z] && rise >= fmax(in->params[P_LOSS_RISE] * level, fmin(0.1, 0.2 * level))) {
            report(s, &in->row->step, &(difference){"loss", value, r->expected, z}, findings);
            s->told_loss = 1;
        }
    }
    if (!s->told_norm && keel_row_scalar(in->row, s->id[GRAD_NORM], &value) && isfinite(value) && value > 0) {
        const keel_reference *r = &s->norm_before;
        double z = keel_reference_score(r, log(value));
        if (z >= in->params[P_NORM_Z] && log(value) - r->expected >= log(in->params[P_NORM_RATIO])) {
            report(s, &in->row->step, &(difference){"grad_norm", value, exp(r->expected), z}, findings);
            s->told_norm = 1;
        }
    }
}

static void remember(state *s, const keel_row *row) {
    double value;
    bool skipped = (row->step.flags & KEEL_STEP_SKIPPED) != 0;
    if (!skipped && keel_row_scalar(row, s->id[LOSS], &value) && isfinite(value)) keel_recent_add(&s->loss, value);
    if (!skipped && keel_row_scalar(row, s->id[GRAD_NORM], &value) && isfinite(value) && value > 0)
        keel_recent_add(&s->grad_norm, log(value));
    if (keel_row_scalar(row, s->id[LR], &value) && isfinite(value)) {
        if (isfinite(s->lr)) keel_recent_add(&s->lr_change, fabs(value - s->lr));
        s->lr = value;
    }
    if (keel_row_scalar(row, s->id[LOSS_SCALE], &value) && isfinite(value)) s->loss_scale = value;
    if (row->step.last_batch) s->batches_known = 1;
    s->last = row->step;
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    const keel_row *row = in->row;
    if (in->resumed && in->record > 0) {
        s->key++;
        s->left = (uint32_t)in->params[P_RECORDS];
        s->told_loss = s->told_norm = 0;
        s->loss_before = keel_recent_take(&s->loss, 0.002, 0);
        s->norm_before = keel_recent_take(&s->grad_norm, 0, 0.05);
        if (row->step.step == s->last.step + 1) {
            compare_counts(s, &row->step, findings);
            compare_settings(s, in, findings);
        }
    }
    if (s->left) {
        compare_history(s, in, findings);
        if (--s->left == 0) s->ranks_before = 0;
    }
    remember(s, row);
}

const keel_detector keel_detect_resume_discontinuity = {
    .rule = "resume_discontinuity",
    .doc = "a resume that does not continue the run",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_CONTEXT,
    .from_outside = true,
    .reach = 8,
    .state_bytes = sizeof(state),
    .init = init,
    .start = start,
    .update = update,
};
