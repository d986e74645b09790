// A float32 tensor that uses only values of bfloat16 or half: its lower bits are lost, and small updates with them.
//
// Judged where values accumulate: weights, Adam's states, and reduced gradients where the run's settings say that they
// are computed and summed in float32, or that ranks sum them in a short format: what the sums have lost shows. No value
// of the tensor needs more than the short format, for two records. Constant tensors say nothing (weights of a norm at
// the start), nor does what is kept in the short format by declaration. Where one value in ten thousand or fewer needs
// float32, that is a note: "float32, one in a million".
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/site_trouble.h"

enum { P_RECORDS, P_RARE, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_RECORDS] = {"records", 2, 1, 1e4, "records without a value that needs float32"},
    [P_RARE] = {"rare", 1e-4, 0, 1, "share of such values up to which they are told"},
};

typedef struct part {
    uint16_t records;
    uint8_t noted, reserved;
} part;

typedef struct state {
    uint32_t notes, reserved;
    keel_site_trouble trouble;
} state;

typedef struct columns {
    const uint64_t *bf16, *fp16;
    const double *max, *min;
} columns;

// The fewer values that either format cannot hold, and which; KEEL_NOT_COLLECTED: neither was counted.
static uint64_t fewest(const columns *c, uint32_t site, const char **op) {
    uint64_t b = c->bf16 ? c->bf16[site] : KEEL_NOT_COLLECTED, h = c->fp16 ? c->fp16[site] : KEEL_NOT_COLLECTED;
    *op = b <= h ? "not_bf16" : "not_fp16";
    return b <= h ? b : h;
}

static bool may_be_constant(const columns *c, uint32_t site, const keel_site_info *info) {
    if (!c->max || !c->min || isnan(c->max[site]) || isnan(c->min[site])) return info->ndim < 2;
    return c->max[site] == c->min[site];
}

static void note_rare(state *s, const keel_detector_input *in, uint32_t site, uint64_t count, const char *op,
                      keel_findings *findings) {
    const keel_site_info *info = &in->info->sites[site];
    double each = (double)info->numel / (double)count;
    char clause[KEEL_CLAUSE_BYTES], share[48];
    if (each >= 999500 && each < 1000500)
        snprintf(share, sizeof share, "one in a million");
    else
        snprintf(share, sizeof share, "one in %.0f", each);
    snprintf(clause, sizeof clause, "%s (%s) is float32, %s: all but %" PRIu64 " of %" PRIu64 " values are %s",
             info->name, keel_quantity_name(info->quantity), share, count, info->numel,
             op[4] == 'b' ? "bfloat16" : "float16");
    uint64_t step = in->row->step.step;
    keel_finding f = {.series = op,
                      .severity = KEEL_INFO,
                      .key = UINT32_MAX - ++s->notes,
                      .closed = true,
                      .at_once = true,
                      .site = site,
                      .rank = -1,
                      .first_step = step,
                      .peak_step = step,
                      .last_step = step,
                      .value = (double)count,
                      .expected = (double)info->numel,
                      .clause = clause};
    keel_findings_add(findings, &f);
}

static void judge(state *s, const keel_detector_input *in, const columns *c, uint32_t site, keel_odd_sites *odd,
                  keel_findings *findings) {
    part *p = (part *)in->sites + site;
    const keel_site_info *info = &in->info->sites[site];
    const char *op;
    uint64_t count = fewest(c, site, &op);
    if (count == KEEL_NOT_COLLECTED) return;
    if (count > 0) {
        p->records = 0;
        bool rare = count < KEEL_SATURATE_AT && (double)count <= in->params[P_RARE] * (double)info->numel;
        if (rare && !p->noted) note_rare(s, in, site, count, op, findings);
        p->noted |= rare;
        return;
    }
    if (info->dtype != KEEL_F32 || may_be_constant(c, site, info)) return;
    if (p->records < UINT16_MAX) p->records++;
    if (p->records < in->params[P_RECORDS]) return;
    keel_odd_sites_add(odd, in->index,
                       &(keel_odd_site){.site = site,
                                        .op = op,
                                        .value = 0,
                                        .expected = (double)info->numel,
                                        .score = p->records,
                                        .plain = op[4] == 'b'
                                                     ? "is fake float32, none of its values needs more than bfloat16,"
                                                     : "is fake float32, none of its values needs more than float16,"});
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    static const keel_quantity judged[] = {KEEL_WEIGHT, KEEL_EXP_AVG, KEEL_EXP_AVG_SQ, KEEL_GRAD_REDUCED};
    enum { STATES = 3 };
    state *s = memory;
    const columns c = {in->row->u64[KEEL_OP_not_bf16], in->row->u64[KEEL_OP_not_fp16], in->row->f64[KEEL_OP_max],
                       in->row->f64[KEEL_OP_min]};
    if ((!c.bf16 && !c.fp16) || (in->row->step.flags & (KEEL_STEP_SKIPPED | KEEL_STEP_DROPPED))) return;
    const keel_run_settings *set = in->settings;
    const bool summed_low = set->grad_reduce != KEEL_COMPUTED_FLOAT32 && in->info->dp > 1;
    const bool gradients =
        set->known &&
        (summed_low || (set->compute == KEEL_COMPUTED_FLOAT32 && set->grad_reduce == KEEL_COMPUTED_FLOAT32));
    keel_odd_sites odd = {.count = 0};
    bool any = false;
    for (int k = 0; k < STATES + (gradients ? 1 : 0); k++) {
        const uint32_t *sites = in->index->sites[judged[k]];
        for (uint32_t i = 0; i < in->index->count[judged[k]]; i++) {
            const char *op;
            if (fewest(&c, sites[i], &op) == KEEL_NOT_COLLECTED) continue;
            any = true;
            judge(s, in, &c, sites[i], &odd, findings);
        }
    }
    if (!any || !keel_site_trouble_row(&s->trouble, in, &odd, KEEL_WARNING, "is")) return;
    const keel_finding f = keel_site_trouble_finding(&s->trouble);
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_fake_float32 = {
    .rule = "fake_float32",
    .doc = "float32 that uses only values of bfloat16 or half",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .from_outside = true,
    .reach = 8,
    .ops = 1u << KEEL_OP_not_bf16 | 1u << KEEL_OP_not_fp16 | 1u << KEEL_OP_max | 1u << KEEL_OP_min,
    .state_bytes = sizeof(state),
    .site_bytes = sizeof(part),
    .update = update,
};
