// Values near or beyond the end of float16, in runs that compute in it.
//
// A loss scale that is too large and stays: updates skipped for overflow at one and the same scale, three in a row, or
// two where the run's settings say that it is fixed, or more than 2 of 32 then. A dynamic scale is lowered by each of
// them (some wait for two), and its search is no trouble. Values that overflow (of activations, the share counted by
// the half group) in two records: a warning. Headroom log2(65504 / greatest magnitude) of an activation below 1 bit for
// 20 records: a note. Headroom log2(65504 / (loss scale * greatest magnitude)) of a gradient, of activations or not yet
// reduced, below 1 bit for 20 applied updates: a note with a dynamic scale, which grows until there is none, a warning
// with a fixed one.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "analyzers/clipped_text.h"
#include "analyzers/detect/detectors.h"
#include "analyzers/site_trouble.h"

enum { P_STUCK, P_FIXED, P_BITS, P_RECORDS, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_STUCK] = {"stuck", 3, 2, 100, "updates in a row skipped at one loss scale"},
    [P_FIXED] = {"fixed", 2, 1, 32, "the same with a fixed scale, where more than these of 32 count too"},
    [P_BITS] = {"bits", 1, 0, 15, "headroom of an activation or a scaled gradient that is told"},
    [P_RECORDS] = {"records", 20, 1, 1e4, "for so many records"},
};

#define HALF_MAX 65504.0
enum { QUIET = 8 };

typedef struct part {
    keel_site_wait overflow, near;
} part;

typedef struct state {
    int32_t loss_scale;
    uint32_t in_row;  // skipped at this scale
    uint32_t history; // bit per record: skipped; the latest in bit 0
    uint32_t active, key, quiet;
    double scale;
    uint64_t first_step, last_step, row_first_step;
    uint64_t skipped;
    keel_site_trouble trouble, gradients;
} state;

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->loss_scale = keel_run_scalar(info, "loss_scale");
}

// ---- the loss scale ----

static void report(const state *s, keel_findings *findings) {
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause,
             "loss scale %.6g is too large and is not lowered: %" PRIu64
             " updates skipped for overflow since step %" PRIu64,
             s->scale, s->skipped, s->first_step);
    keel_finding f = {.series = "loss_scale",
                      .severity = KEEL_CRITICAL,
                      .key = s->key,
                      .closed = !s->active,
                      .site = -1,
                      .rank = -1,
                      .first_step = s->first_step,
                      .peak_step = s->last_step,
                      .last_step = s->last_step,
                      .value = s->scale,
                      .expected = NAN,
                      .score = (double)s->skipped,
                      .clause = clause};
    keel_findings_add(findings, &f);
}

static void judge_scale(state *s, const keel_detector_input *in, keel_findings *findings) {
    const keel_step *step = &in->row->step;
    double scale = NAN;
    bool has = keel_row_scalar(in->row, s->loss_scale, &scale) && scale > 0;
    bool fixed = in->settings->scaling == KEEL_SCALING_FIXED;
    if (!has && !fixed) return;
    bool skipped = (step->flags & KEEL_STEP_OVERFLOW) || ((step->flags & KEEL_STEP_SKIPPED) && fixed);
    s->history = s->history << 1 | skipped;
    if (!skipped) {
        s->in_row = 0;
        if (s->active && ++s->quiet >= QUIET) {
            s->active = 0;
            report(s, findings);
        }
        return;
    }
    bool same = s->in_row > 0 && (scale == s->scale || (isnan(scale) && isnan(s->scale)));
    if (!same) s->row_first_step = step->step;
    s->in_row = same ? s->in_row + 1 : 1;
    s->scale = scale;
    s->quiet = 0;
    double limit = in->params[fixed ? P_FIXED : P_STUCK];
    bool often = fixed && __builtin_popcount(s->history) > in->params[P_FIXED];
    if (!s->active && s->in_row < limit && !often) return;
    if (!s->active) {
        s->active = 1;
        s->key++;
        s->first_step = s->row_first_step;
        s->skipped = s->in_row - 1;
    }
    s->skipped++;
    s->last_step = step->step;
    report(s, findings);
}

// ---- activations ----

static void judge_sites(state *s, const keel_detector_input *in, keel_findings *findings) {
    const double *overflow = in->row->f64[KEEL_OP_overflow], *max = in->row->f64[KEEL_OP_max],
                 *min = in->row->f64[KEEL_OP_min];
    keel_odd_sites odd = {.count = 0};
    keel_severity severity = KEEL_INFO;
    bool any = false;
    for (uint32_t i = 0; i < in->index->count[KEEL_ACTIVATION]; i++) {
        uint32_t site = in->index->sites[KEEL_ACTIVATION][i];
        part *p = (part *)in->sites + site;
        double share = overflow ? overflow[site] : NAN;
        double greatest = fmax(max ? fabs(max[site]) : NAN, min ? fabs(min[site]) : NAN);
        if (isnan(share) && isnan(greatest)) continue;
        any = true;
        double headroom = log2(HALF_MAX / greatest);
        bool over = keel_site_wait_add(&p->overflow, share > 0, 0, 2);
        bool near = keel_site_wait_add(&p->near, headroom < in->params[P_BITS], 0, in->params[P_RECORDS]);
        if (!over && !near) continue;
        if (over) severity = KEEL_WARNING;
        keel_odd_sites_add(&odd, in->index,
                           &(keel_odd_site){.site = site,
                                            .op = over ? "overflow" : "max",
                                            .value = over ? share : greatest,
                                            .expected = over ? 0 : HALF_MAX,
                                            .score = over ? 2 : 1});
    }
    if (!any || !keel_site_trouble_row(&s->trouble, in, &odd, severity, "is")) return;
    keel_finding f = keel_site_trouble_finding(&s->trouble);
    f.key = UINT32_MAX - f.key; // apart from those of the loss scale
    keel_findings_add(findings, &f);
}

// ---- scaled gradients ----

static void judge_gradients(state *s, const keel_detector_input *in, keel_findings *findings) {
    static const keel_quantity judged[] = {KEEL_ACTIVATION_GRAD, KEEL_GRAD_UNREDUCED};
    const double *max = in->row->f64[KEEL_OP_max], *min = in->row->f64[KEEL_OP_min];
    double scale;
    if (in->row->step.flags & (KEEL_STEP_SKIPPED | KEEL_STEP_OVERFLOW) || !max || !min) return;
    if (!keel_row_scalar(in->row, s->loss_scale, &scale) || !(scale > 1)) return;
    keel_odd_sites odd = {.count = 0};
    bool any = false;
    for (size_t k = 0; k < sizeof judged / sizeof *judged; k++)
        for (uint32_t i = 0; i < in->index->count[judged[k]]; i++) {
            const uint32_t site = in->index->sites[judged[k]][i];
            part *p = (part *)in->sites + site;
            const double scaled = scale * fmax(fabs(max[site]), fabs(min[site]));
            if (isnan(scaled)) continue;
            any = true;
            const bool near = scaled > 0 && log2(HALF_MAX / scaled) < in->params[P_BITS];
            if (!keel_site_wait_add(&p->near, near, 0, in->params[P_RECORDS])) continue;
            keel_odd_sites_add(&odd, in->index,
                               &(keel_odd_site){.site = site,
                                                .op = "headroom",
                                                .value = scaled,
                                                .expected = HALF_MAX,
                                                .score = scaled / HALF_MAX,
                                                .plain = "times the loss scale comes near the end of float16"});
        }
    const keel_severity severity = in->settings->scaling == KEEL_SCALING_FIXED ? KEEL_WARNING : KEEL_INFO;
    if (!any || !keel_site_trouble_row(&s->gradients, in, &odd, severity, "")) return;
    const keel_finding f = keel_site_trouble_finding(&s->gradients);
    keel_findings_add(findings, &f);
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    judge_scale(s, in, findings);
    if (in->settings->compute != KEEL_COMPUTED_FLOAT16 || (in->row->step.flags & KEEL_STEP_DROPPED)) return;
    judge_sites(s, in, findings);
    judge_gradients(s, in, findings);
}

const keel_detector keel_detect_fp16_overflow = {
    .rule = "fp16_overflow",
    .doc = "a loss scale that is too large and stays, values near the end of float16",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 16,
    .ops = 1u << KEEL_OP_overflow | 1u << KEEL_OP_max | 1u << KEEL_OP_min,
    .state_bytes = sizeof(state),
    .site_bytes = sizeof(part),
    .start = start,
    .update = update,
};
