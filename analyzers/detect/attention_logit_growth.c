// Attention logits that grow without bound: the greatest q.k / sqrt(d) of a layer.
//
// The mean of 8 records of its logarithm against the lowest such mean of the last 256 records: a rise by ratio to a
// logit of at least the limit. Beyond some tens a softmax is one-hot in float32 as well, since exp(-17) is below its
// precision: its gradient vanishes while the weights go on growing (Dehghani et al. 2023, "Scaling vision transformers
// to 22 billion parameters", saw runs diverge from there). Read at sites NAME.attention.max_logit (an activation).
#include <math.h>

#include "analyzers/block_trend.h"
#include "analyzers/detect/detectors.h"
#include "analyzers/site_trouble.h"

enum { P_RATIO, P_LIMIT, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_RATIO] = {"ratio", 3, 1.1, 1e6, "least rise over 256 records"},
    [P_LIMIT] = {"logit", 100, 1, 1e6, "least logit"},
};

enum { BLOCK = 8, SKIPPED_BLOCKS = 4 };

typedef struct state {
    keel_site_trouble trouble;
} state;

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    const double *max = in->row->f64[KEEL_OP_max];
    if (!max || (in->row->step.flags & KEEL_STEP_DROPPED)) return;
    keel_odd_sites odd = {.count = 0};
    bool complete = false;
    for (uint32_t i = 0; i < in->index->named_count[KEEL_NAMED_MAX_LOGIT]; i++) {
        uint32_t site = in->index->named[KEEL_NAMED_MAX_LOGIT][i];
        keel_trend *t = (keel_trend *)in->sites + site;
        if (!(max[site] > 0) || !isfinite(max[site])) continue;
        if (!keel_trend_add(t, logf((float)max[site]), BLOCK, 3)) continue;
        if (t->blocks <= SKIPPED_BLOCKS) continue;
        complete = true;
        float low = keel_trend_low(t, NULL), rise = t->mean - low;
        if (rise >= (float)log(in->params[P_RATIO]) && exp((double)t->mean) >= in->params[P_LIMIT])
            keel_odd_sites_add(&odd, in->index,
                               &(keel_odd_site){.site = site,
                                                .op = "max",
                                                .value = exp((double)t->mean),
                                                .expected = exp((double)low),
                                                .score = (double)rise});
        keel_trend_keep(t);
    }
    if (!complete || !keel_site_trouble_row(&s->trouble, in, &odd, KEEL_WARNING, "has grown to")) return;
    const keel_finding f = keel_site_trouble_finding(&s->trouble);
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_attention_logit_growth = {
    .rule = "attention_logit_growth",
    .doc = "attention logits grow without bound",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 64,
    .ops = 1u << KEEL_OP_max,
    .state_bytes = sizeof(state),
    .site_bytes = sizeof(keel_trend),
    .update = update,
};
