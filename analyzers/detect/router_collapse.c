// A router that has settled on a few experts.
//
// Half of a layer's experts get no token, or one gets half of all (of four experts or more), for 16 records (Shazeer et
// al. 2017, "Outrageously large neural networks", on why the load must be balanced). Read at sites NAME.expert_load
// (tokens an expert got, one element each), whose first 64 records are the router's to learn.
#include <math.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/site_trouble.h"

enum { P_IDLE, P_BUSY, P_RECORDS, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_IDLE] = {"idle", 0.5, 0.01, 1, "share of a layer's experts that get no token"},
    [P_BUSY] = {"busy", 0.5, 0.01, 1, "or share of the tokens that one expert gets"},
    [P_RECORDS] = {"records", 16, 1, 1e4, "for so many records"},
};

enum { EARLY = 64, LEAST_EXPERTS = 4 };

typedef struct state {
    keel_site_trouble trouble;
} state;

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    const keel_row *row = in->row;
    const double *max = row->f64[KEEL_OP_max], *mean = row->f64[KEEL_OP_mean], *zeros = row->f64[KEEL_OP_zeros];
    keel_odd_sites odd = {.count = 0};
    bool any = false;
    for (uint32_t i = 0; i < in->index->named_count[KEEL_NAMED_EXPERT_LOAD]; i++) {
        uint32_t site = in->index->named[KEEL_NAMED_EXPERT_LOAD][i];
        double experts = (double)in->info->sites[site].numel, idle = zeros ? zeros[site] : NAN;
        double most = max ? max[site] : NAN, usual = mean ? mean[site] : NAN;
        double busy = experts >= LEAST_EXPERTS ? most / (usual * experts) : NAN;
        if (isnan(idle) && isnan(busy)) continue;
        any = true;
        bool is_idle = idle >= in->params[P_IDLE], is_busy = busy >= in->params[P_BUSY];
        if (!keel_site_wait_add((keel_site_wait *)in->sites + site, is_idle || is_busy, EARLY, in->params[P_RECORDS]))
            continue;
        keel_odd_sites_add(&odd, in->index,
                           &(keel_odd_site){.site = site,
                                            .op = is_idle ? "zeros" : "max",
                                            .value = is_idle ? idle : most,
                                            .expected = is_idle ? NAN : usual,
                                            .score = is_idle ? idle : busy,
                                            .plain = is_idle ? "leaves half of the experts or more without a token"
                                                             : "gives one expert half of the tokens or more"});
    }
    if (!any || !keel_site_trouble_row(&s->trouble, in, &odd, KEEL_WARNING, "is")) return;
    const keel_finding f = keel_site_trouble_finding(&s->trouble);
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_router_collapse = {
    .rule = "router_collapse",
    .doc = "a router that gives all to a few experts",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 16,
    .ops = 1u << KEEL_OP_max | 1u << KEEL_OP_mean | 1u << KEEL_OP_zeros,
    .state_bytes = sizeof(state),
    .site_bytes = sizeof(keel_site_wait),
    .update = update,
};
