// Experts that are full and drop tokens.
//
// A tenth of a layer's assignments or more are dropped, for 16 records (Fedus et al. 2022, "Switch transformers": below
// 1 % is healthy). Read at sites NAME.drop_rate (dropped / routed assignments, one element), whose first 64 records are
// the router's to learn.
#include <math.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/site_trouble.h"

enum { P_RATE, P_RECORDS, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_RATE] = {"rate", 0.1, 0, 1, "dropped assignments / routed assignments"},
    [P_RECORDS] = {"records", 16, 1, 1e4, "for so many records"},
};

enum { EARLY = 64 };

typedef struct state {
    keel_site_trouble trouble;
} state;

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    const double *max = in->row->f64[KEEL_OP_max];
    keel_odd_sites odd = {.count = 0};
    bool any = false;
    for (uint32_t i = 0; max && i < in->index->named_count[KEEL_NAMED_DROP_RATE]; i++) {
        uint32_t site = in->index->named[KEEL_NAMED_DROP_RATE][i];
        if (isnan(max[site])) continue;
        any = true;
        bool high = max[site] >= in->params[P_RATE];
        if (!keel_site_wait_add((keel_site_wait *)in->sites + site, high, EARLY, in->params[P_RECORDS])) continue;
        keel_odd_sites_add(
            &odd, in->index,
            &(keel_odd_site){.site = site, .op = "max", .value = max[site], .expected = NAN, .score = max[site]});
    }
    if (!any || !keel_site_trouble_row(&s->trouble, in, &odd, KEEL_WARNING, "is")) return;
    const keel_finding f = keel_site_trouble_finding(&s->trouble);
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_drop_rate = {
    .rule = "drop_rate",
    .doc = "experts that drop many of their tokens",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 16,
    .ops = 1u << KEEL_OP_max,
    .state_bytes = sizeof(state),
    .site_bytes = sizeof(keel_site_wait),
    .update = update,
};
