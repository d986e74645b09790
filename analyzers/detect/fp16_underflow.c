// Gradients that float16 flushes to zero at the present scale.
//
// The share of a tensor's finite non-zero values that round to zero, as counted by the half group before they are
// rounded (gradients before the reduction, gradients of activations), in runs that compute in float16. At a site: 5 %
// and three times its own history for 20 records. From the start, where there is no history: 5 % at the median site for
// 20 records; at a sufficient scale nothing is flushed there (Micikevicius et al. 2018). Critical: half of the values
// at the median site, for 4 records. A gradient that was not zero and is all zero for 2 records counts as flushed.
#include <math.h>
#include <string.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/series.h"
#include "analyzers/site_trouble.h"

enum { P_SHARE, P_TIMES, P_RECORDS, P_CRITICAL, P_CRITICAL_RECORDS, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_SHARE] = {"share", 0.05, 0, 1, "share of the values that is flushed"},
    [P_TIMES] = {"times", 3, 1, 1e6, "and least factor over its history"},
    [P_RECORDS] = {"records", 20, 1, 1e4, "for so many records"},
    [P_CRITICAL] = {"critical", 0.5, 0, 1, "share at the median site that is critical"},
    [P_CRITICAL_RECORDS] = {"critical_records", 4, 1, 1e6, "for so many records"},
};

enum { MOST = 4096, WARMUP = 64 }; // sites that the median is taken from
static const keel_quantity judged[] = {KEEL_GRAD_UNREDUCED, KEEL_ACTIVATION_GRAD};

typedef struct part {
    float usual; // share, while it was not high
    uint16_t known, high;
    uint8_t zero, alive;
    uint16_t reserved;
} part;

typedef struct state {
    int32_t loss_scale;
    uint32_t early, great; // records in a row in which the median site is high
    uint32_t records;
    keel_site_trouble trouble;
} state;

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->loss_scale = keel_run_scalar(info, "loss_scale");
}

static bool in_half(const state *s, const keel_detector_input *in, const keel_site_info *site) {
    const keel_run_settings *set = in->settings;
    if (!set->known) return site->dtype == KEEL_F16 || s->loss_scale >= 0;
    return set->compute == KEEL_COMPUTED_FLOAT16 ||
           (set->grad_reduce == KEEL_COMPUTED_FLOAT16 && site->quantity == KEEL_GRAD_UNREDUCED);
}

typedef struct judgement {
    keel_odd_sites odd;
    float shares[MOST];
    uint32_t sites[MOST];
    uint32_t count;
    bool any;
} judgement;

static void tell(const keel_detector_input *in, uint32_t site, double share, double usual, keel_odd_sites *odd) {
    keel_odd_sites_add(
        odd, in->index,
        &(keel_odd_site){.site = site, .op = "underflow", .value = share, .expected = usual, .score = share});
}

static void judge(const keel_detector_input *in, uint32_t site, part *p, double share, judgement *j) {
    const double *zeros = in->row->f64[KEEL_OP_zeros], *norm = in->row->f64[KEEL_OP_norm];
    bool zero = (zeros && zeros[site] == 1) || (norm && norm[site] == 0);
    if (zero) {
        j->any = true;
        if (p->zero < UINT8_MAX) p->zero++;
        if (p->alive && p->zero >= 2) tell(in, site, 1, (double)p->usual, &j->odd);
        return;
    }
    if (isnan(share)) return;
    j->any = true;
    p->zero = 0;
    p->alive = 1;
    if (j->count < MOST) {
        j->sites[j->count] = site;
        j->shares[j->count++] = (float)share;
    }
    bool high = p->known >= WARMUP && share >= in->params[P_SHARE] && share >= in->params[P_TIMES] * (double)p->usual;
    p->high = high ? (uint16_t)(p->high + (p->high < UINT16_MAX)) : 0;
    if (p->high >= in->params[P_RECORDS]) tell(in, site, share, (double)p->usual, &j->odd);
    if (high) return;
    p->usual += ((float)share - p->usual) / (p->known < 63 ? (float)(p->known + 1) : 64);
    if (p->known < UINT16_MAX) p->known++;
}

// Shares of the whole: the median site.
static keel_severity judge_median(state *s, const keel_detector_input *in, judgement *j) {
    if (j->count == 0) return KEEL_INFO;
    float sorted[MOST];
    memcpy(sorted, j->shares, j->count * sizeof *sorted);
    keel_sort_floats(sorted, j->count);
    double median = (double)sorted[j->count / 2];
    s->records++;
    bool early = median >= in->params[P_SHARE] && (s->early > 0 || s->records <= WARMUP);
    s->early = early ? s->early + 1 : 0;
    s->great = median >= in->params[P_CRITICAL] ? s->great + 1 : 0;
    bool is_great = s->great >= in->params[P_CRITICAL_RECORDS];
    if (j->odd.count == 0 && (s->early >= in->params[P_RECORDS] || is_great))
        for (uint32_t i = 0; i < j->count; i++)
            if ((double)j->shares[i] >= in->params[P_SHARE]) tell(in, j->sites[i], (double)j->shares[i], 0, &j->odd);
    return is_great ? KEEL_CRITICAL : KEEL_WARNING;
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    const double *underflow = in->row->f64[KEEL_OP_underflow];
    if (!underflow || (in->row->step.flags & (KEEL_STEP_SKIPPED | KEEL_STEP_OVERFLOW | KEEL_STEP_DROPPED))) return;
    judgement j;
    j.odd = (keel_odd_sites){.count = 0};
    j.count = 0;
    j.any = false;
    for (size_t k = 0; k < sizeof judged / sizeof *judged; k++) {
        const uint32_t *sites = in->index->sites[judged[k]];
        for (uint32_t i = 0; i < in->index->count[judged[k]]; i++)
            if (in_half(s, in, &in->info->sites[sites[i]]))
                judge(in, sites[i], (part *)in->sites + sites[i], underflow[sites[i]], &j);
    }
    if (!j.any) return;
    keel_severity severity = judge_median(s, in, &j);
    if (!keel_site_trouble_row(&s->trouble, in, &j.odd, severity, "is")) return;
    const keel_finding f = keel_site_trouble_finding(&s->trouble);
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_fp16_underflow = {
    .rule = "fp16_underflow",
    .doc = "gradients that float16 flushes to zero",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 32,
    .ops = 1u << KEEL_OP_underflow | 1u << KEEL_OP_zeros | 1u << KEEL_OP_norm,
    .state_bytes = sizeof(state),
    .site_bytes = sizeof(part),
    .start = start,
    .update = update,
};
