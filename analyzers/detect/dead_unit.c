// Units that are dead: an activation, or the gradient of a matrix, that is all zero.
//
// Of one that was alive, after two records; of one that never was, after 64: a branch that begins at zero leaves it
// with its first updates. An activation of which nearly all values are zero for 8 records, and half at most were
// before, is told too. Not judged: experts (they may get no token), skipped steps (whose gradients mean nothing),
// vectors (the gradient of a bias may be zero by symmetry, as that of the keys' bias).
#include <math.h>
#include <string.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/site_trouble.h"

enum { P_RECORDS, P_NEVER, P_SHARE, P_SHARE_RECORDS, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_RECORDS] = {"records", 2, 1, 1e4, "records all zero of what was not before"},
    [P_NEVER] = {"never_records", 64, 2, 1e4, "records all zero of what never was anything else"},
    [P_SHARE] = {"share", 0.95, 0.5, 1, "zeros of an activation that had at most half of it"},
    [P_SHARE_RECORDS] = {"share_records", 8, 1, 1e4, "for so many records"},
};

typedef struct part {
    float zeros; // usual share of zeros, once known
    uint16_t known, dead, sparse;
    uint8_t alive, left_out, looked, reserved;
} part;

typedef struct state {
    keel_site_trouble trouble;
} state;

static bool is_expert(const char *module) {
    return strstr(module, "expert") || strstr(module, "moe") || strstr(module, "router");
}

static bool leave_out(const keel_site_info *site) {
    if (site->quantity == KEEL_ACTIVATION) return is_expert(site->module) || site->numel < 16;
    return site->ndim < 2 || is_expert(site->module);
}

static void judge(const keel_detector_input *in, uint32_t site, part *p, double zeros, double norm,
                  keel_odd_sites *odd) {
    if (!p->looked) {
        p->looked = 1;
        p->left_out = leave_out(&in->info->sites[site]);
    }
    if (p->left_out) return;
    bool dead = zeros == 1 || norm == 0;
    uint16_t most = UINT16_MAX;
    p->dead = dead ? (uint16_t)(p->dead + (p->dead < most)) : 0;
    bool sparse = zeros >= in->params[P_SHARE] && p->known >= 64 && p->zeros <= 0.5f * (float)in->params[P_SHARE];
    p->sparse = sparse ? (uint16_t)(p->sparse + (p->sparse < most)) : 0;
    bool is_dead = dead && p->dead >= in->params[p->alive ? P_RECORDS : P_NEVER];
    if (is_dead || p->sparse >= in->params[P_SHARE_RECORDS])
        keel_odd_sites_add(odd, in->index,
                           &(keel_odd_site){.site = site,
                                            .op = "zeros",
                                            .value = is_dead ? 1 : zeros,
                                            .expected = p->known ? (double)p->zeros : NAN,
                                            .score = is_dead ? 2 : 1,
                                            .plain = !is_dead   ? NULL
                                                     : p->alive ? "is all zero"
                                                                : "has never been other than zero"});
    if (dead) return;
    p->alive = 1;
    if (sparse || !isfinite(zeros)) return;
    p->zeros += ((float)zeros - p->zeros) / (p->known < 31 ? (float)(p->known + 1) : 32);
    if (p->known < most) p->known++;
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    static const keel_quantity judged[] = {KEEL_ACTIVATION, KEEL_GRAD_UNREDUCED, KEEL_GRAD_REDUCED};
    state *s = memory;
    const double *zeros = in->row->f64[KEEL_OP_zeros], *norm = in->row->f64[KEEL_OP_norm];
    part *parts = in->sites;
    if ((!zeros && !norm) || (in->row->step.flags & (KEEL_STEP_SKIPPED | KEEL_STEP_DROPPED))) return;
    keel_odd_sites odd = {.count = 0};
    bool any = false;
    for (size_t k = 0; k < sizeof judged / sizeof *judged; k++) {
        const uint32_t *sites = in->index->sites[judged[k]];
        for (uint32_t i = 0; i < in->index->count[judged[k]]; i++) {
            double z = zeros ? zeros[sites[i]] : NAN, n = norm ? norm[sites[i]] : NAN;
            if (isnan(z) && isnan(n)) continue;
            any = true;
            judge(in, sites[i], &parts[sites[i]], z, n, &odd);
        }
    }
    if (!any || !keel_site_trouble_row(&s->trouble, in, &odd, KEEL_WARNING, "is")) return;
    const keel_finding f = keel_site_trouble_finding(&s->trouble);
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_dead_unit = {
    .rule = "dead_unit",
    .doc = "an activation, or the gradient of a matrix, is all zero",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .from_outside = true,
    .reach = 8,
    .ops = 1u << KEEL_OP_zeros | 1u << KEEL_OP_norm,
    .state_bytes = sizeof(state),
    .site_bytes = sizeof(part),
    .update = update,
};
