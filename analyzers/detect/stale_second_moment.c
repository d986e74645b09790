// Adam's second moment lags behind the gradients: RMS_t = sqrt(mean(g^2 / max(v_hat, eps^2))) of a parameter, g after
// clipping, is far above 1, so that updates are too large until v has caught up.
//
// Wortsman et al. 2023, "Stable and low-precision training for large-scale vision-language models": RMS_t >= 2.3 in the
// embedding comes one to eight steps before a loss spike; with a large beta2 the moment is an average over thousands of
// steps. Once warm RMS_t is at most 1 / sqrt(1 - beta2). Told from 2.3 in two of the last 16 records of a parameter,
// and from four times its usual value or 0.7 of that bound in one. A note in other parameters than embeddings where it
// does not jump so: with a beta2 of 0.99 or more norms and attention of healthy young models reach 2 to 3.5 time and
// again while their gradients grow, and nothing comes of it. A note where beta2 is known to be below 0.99 as well,
// since such a moment has caught up after some dozen steps whatever happens. Read at sites of quantity adam_rms (one
// element each), from their 65th record on.
#include <math.h>
#include <string.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/site_trouble.h"

enum { P_RMS, P_JUMP, P_BOUND, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_RMS] = {"rms", 2.3, 1, 1e6, "RMS_t that is told when two of 16 records reach it"},
    [P_JUMP] = {"jump", 4, 1, 1e6, "and factor over the usual with which one record is enough"},
    [P_BOUND] = {"bound", 0.7, 0.1, 10, "share of 1 / sqrt(1 - beta2) that is told at once"},
};

enum { WARMUP = 64 };
#define SHORT_MEMORY 0.99

typedef struct part {
    uint16_t recent; // bit per record: RMS_t was high; the latest in bit 0
    uint16_t known;
    float usual; // RMS_t, while it was not high
} part;

typedef struct state {
    keel_site_trouble trouble;
} state;

static bool is_embedding(const keel_site_info *site) {
    return strcmp(site->module, "embedding") == 0 || strstr(site->name, "embed");
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    const double *rms = in->row->f64[KEEL_OP_max];
    if (!rms || (in->row->step.flags & (KEEL_STEP_SKIPPED | KEEL_STEP_DROPPED))) return;
    double bound = in->params[P_BOUND] / sqrt(1 - in->settings->beta2);
    keel_odd_sites odd = {.count = 0};
    bool any = false, grave = false;
    for (uint32_t i = 0; i < in->index->count[KEEL_ADAM_RMS]; i++) {
        uint32_t site = in->index->sites[KEEL_ADAM_RMS][i];
        part *p = (part *)in->sites + site;
        if (!isfinite(rms[site])) continue;
        any = true;
        bool warm = p->known >= WARMUP, high = warm && rms[site] >= in->params[P_RMS];
        bool jumps = high && rms[site] >= fmin(bound, in->params[P_JUMP] * (double)p->usual);
        bool odd_now = jumps || (high && p->recent);
        p->recent = (uint16_t)(p->recent << 1 | high);
        if (!high) p->usual += ((float)rms[site] - p->usual) / (p->known < 31 ? (float)(p->known + 1) : 32);
        if (p->known < UINT16_MAX) p->known++;
        grave |= jumps || (odd_now && is_embedding(&in->info->sites[site]));
        if (odd_now)
            keel_odd_sites_add(
                &odd, in->index,
                &(keel_odd_site){
                    .site = site, .op = "max", .value = rms[site], .expected = (double)p->usual, .score = rms[site]});
    }
    const keel_severity severity = grave && in->settings->beta2 >= SHORT_MEMORY ? KEEL_WARNING : KEEL_INFO;
    if (!any || !keel_site_trouble_row(&s->trouble, in, &odd, severity, "rose to")) return;
    const keel_finding f = keel_site_trouble_finding(&s->trouble);
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_stale_second_moment = {
    .rule = "stale_second_moment",
    .doc = "Adam's second moment lags behind the gradients",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 16,
    .ops = 1u << KEEL_OP_max,
    .state_bytes = sizeof(state),
    .site_bytes = sizeof(part),
    .update = update,
};
