// Updates out of proportion to the weights: update_ratio = rms(update) / rms(parameter before).
//
// A row has the parameters after its update. What they were before is in the row of the step before, where weights were
// taken there. Where not, their norm lies between |after - update| and after + update; the geometric mean of the two is
// taken, sqrt(|after^2 - update^2|), which is exact for an update that is orthogonal to the weight, as those of Adam
// nearly are in many dimensions, and 0, as it must be, for a weight that was.
//
// Too large: by half or more of the matrices at once, for some records, or in the very first update. A step that
// changes most weights by a share of themselves leaves the region in which the gradient was taken; usual ratios are
// near 1e-3 (Karpathy, "A recipe for training neural networks"), above 0.1 only in the first steps of a small model.
// Divided by its learning rate an update of Adam is of size 1 at the first step and falls to sqrt((1 - beta1) / (1 +
// beta1)) where gradients are noise; a median well below half of that in each of the first records says that epsilon
// stands above sqrt(v): too small. Undefined where the rms of the weight was below 1e-6 or the learning rate is 0.
// Vectors are left out: they begin at 0.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/excursion.h"
#include "analyzers/series.h"

enum { P_RATIO, P_RECORDS, P_FIRST, P_SMALL, P_SMALL_RECORDS, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_RATIO] = {"ratio", 0.15, 1e-4, 1e6, "the ratio that the median matrix reaches"},
    [P_RECORDS] = {"records", 4, 1, 1e6, "for so many records"},
    [P_FIRST] = {"first", 0.18, 1e-4, 1e6, "the ratio of the first update that is told at once"},
    [P_SMALL] = {"small", 0.4, 0, 1, "share of the least healthy update that the median matrix stays below"},
    [P_SMALL_RECORDS] = {"small_records", 8, 1, 64, "in each of the first so many records"},
};

enum { MOST = 512 }; // matrices that are looked at: the first in the order of the data flow

// Of a weight, its latest norm.
typedef struct part {
    double norm; // NaN: none yet
    uint64_t step;
} part;

static void init_part(void *memory) {
    part *p = memory;
    p->norm = NAN;
}

typedef struct state {
    int32_t lr;
    uint32_t records, small, told_small;
    keel_excursion large;
} state;

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->lr = keel_run_scalar(info, "lr");
}

typedef struct ratios {
    float ratio[MOST], direction[MOST]; // rms(update) / rms(weight before); rms(update) / lr
    uint32_t count;
    uint32_t judged; // site of the first matrix
    uint32_t first;  // and of the first beyond LIMIT; UINT32_MAX: none
} ratios;

// The norm of a weight before an update; NaN: nothing tells.
static double norm_before(const part *p, uint64_t step, double after, double update) {
    if (!isnan(p->norm) && p->step + 1 == step) return p->norm;
    return sqrt(fabs(after * after - update * update));
}

static void collect(const keel_detector_input *in, double lr, double limit, ratios *r) {
    const double *norm = in->row->f64[KEEL_OP_norm];
    const uint32_t *sites = in->index->sites[KEEL_UPDATE];
    const part *parts = in->sites;
    r->count = 0;
    r->first = UINT32_MAX;
    for (uint32_t i = 0; i < in->index->count[KEEL_UPDATE] && r->count < MOST; i++) {
        uint32_t site = sites[i];
        int32_t weight = in->index->weight[site];
        const keel_site_info *info = &in->info->sites[site];
        if (weight < 0 || info->ndim < 2 || !(norm[site] > 0)) continue;
        double root = sqrt((double)info->numel);
        double before = norm_before(&parts[weight], in->row->step.step, norm[weight], norm[site]);
        if (!(before >= 1e-6 * root)) continue;
        double ratio = norm[site] / before;
        if (r->count == 0) r->judged = site;
        r->ratio[r->count] = (float)ratio;
        r->direction[r->count++] = (float)(norm[site] / root / lr);
        if (r->first == UINT32_MAX && ratio >= limit) r->first = site;
    }
    keel_sort_floats(r->ratio, r->count);
    keel_sort_floats(r->direction, r->count);
}

static void judge_large(state *s, const keel_detector_input *in, const ratios *r, keel_findings *findings) {
    double median = (double)r->ratio[r->count / 2], limit = in->params[P_RATIO];
    bool outside = median >= limit, first = in->row->step.update == 1 && median >= in->params[P_FIRST];
    const keel_excursion_record record = {.step = in->row->step.step,
                                          .value = median,
                                          .expected = limit,
                                          .score = median / limit,
                                          .outside = outside,
                                          .alarm = outside && (first || s->large.records + 1 >= in->params[P_RECORDS])};
    if (!keel_excursion_add(&s->large, &record)) return;
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause,
             "an update changes half of the weight matrices by %.3g of themselves or more at step %" PRIu64
             " (a thousandth is usual)",
             s->large.value, s->large.peak_step);
    keel_finding f = keel_excursion_finding(&s->large);
    f.series = "update_ratio";
    f.severity = KEEL_WARNING;
    f.site = r->first == UINT32_MAX ? -1 : (int64_t)r->first;
    f.clause = clause;
    keel_findings_add(findings, &f);
}

static void judge_small(state *s, const keel_detector_input *in, const ratios *r, keel_findings *findings) {
    const keel_run_settings *set = in->settings;
    double healthy = sqrt((1 - set->beta1) / (1 + set->beta1)), median = (double)r->direction[r->count / 2];
    if (median < in->params[P_SMALL] * healthy) s->small++;
    if (s->records != (uint32_t)in->params[P_SMALL_RECORDS] || s->small != s->records || s->told_small) return;
    s->told_small = 1;
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(
        clause, sizeof clause,
        "updates are %.2g of the learning rate in the median matrix from the first step on (%.2g is the least that "
        "Adam's moments explain): epsilon %.3g is above the root of the second moment",
        median, healthy, set->eps);
    uint64_t step = in->row->step.step;
    keel_finding f = {.series = "update",
                      .severity = KEEL_WARNING,
                      .key = 1,
                      .closed = true,
                      .at_once = true,
                      .site = r->judged,
                      .rank = -1,
                      .first_step = 1,
                      .peak_step = step,
                      .last_step = step,
                      .value = median,
                      .expected = healthy,
                      .score = healthy / median,
                      .clause = clause};
    keel_findings_add(findings, &f);
}

static void judge(state *s, const keel_detector_input *in, keel_findings *findings) {
    double lr = 0;
    if (in->index->count[KEEL_UPDATE] == 0 || (in->row->step.flags & KEEL_STEP_SKIPPED)) return;
    if (!keel_row_scalar(in->row, s->lr, &lr) || !(lr > 0)) return;
    ratios r;
    collect(in, lr, in->params[P_RATIO], &r);
    if (r.count == 0) return;
    bool from_start = s->records > 0 || in->row->step.update == 1;
    if (s->records < UINT32_MAX && from_start) s->records++;
    judge_large(s, in, &r, findings);
    if (from_start && s->records <= (uint32_t)in->params[P_SMALL_RECORDS]) judge_small(s, in, &r, findings);
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    const double *norm = in->row->f64[KEEL_OP_norm];
    if (!norm || (in->row->step.flags & KEEL_STEP_DROPPED)) return;
    judge(memory, in, findings);
    const uint32_t *weights = in->index->sites[KEEL_WEIGHT];
    part *parts = in->sites;
    for (uint32_t i = 0; i < in->index->count[KEEL_WEIGHT]; i++)
        if (!isnan(norm[weights[i]])) parts[weights[i]] = (part){norm[weights[i]], in->row->step.step};
}

const keel_detector keel_detect_update_ratio = {
    .rule = "update_ratio",
    .doc = "updates out of proportion to the weights, or to the learning rate",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 16,
    .ops = 1u << KEEL_OP_norm,
    .state_bytes = sizeof(state),
    .site_bytes = sizeof(part),
    .init_site = init_part,
    .start = start,
    .update = update,
};
