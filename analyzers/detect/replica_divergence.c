// Copies of one tensor on different ranks whose bits differ: replica_residual is not 0.
//
// The residual is a sum of the copies' checksums with factors that add up to 0, and exact: there are no false alarms,
// and equal norms prove nothing. One record is a warning, two in a row are critical, since a run whose replicas have
// parted trains several models at once. The rank: of three copies or more the one whose norm is farther from the mean
// of all; of two the one whose norm has left its own course by four times as much as the other's; else unknown.
#include <inttypes.h>
#include <math.h>

#include "analyzers/clipped_text.h"
#include "analyzers/detect/detectors.h"
#include "analyzers/site_trouble.h"

typedef struct part {
    float norm, change; // logarithm of the norm while all agreed, and its last change; as far as KNOWN
    uint32_t known;
} part;

typedef struct state {
    uint32_t in_row;
    uint32_t weights, parted; // weights looked at, and those of them that differ, where the trouble began
    uint32_t reserved;
    int64_t rank;
    keel_site_trouble trouble;
} state;

typedef struct columns {
    const uint64_t *residual, *rank_low, *rank_high;
    const double *low, *high, *mean;
} columns;

// The rank whose copy is the odd one; -1: cannot be told.
static int64_t odd_rank(const keel_detector_input *in, const columns *c, uint32_t site, const part *p) {
    if (!c->low || !c->high || !c->mean || !c->rank_low || !c->rank_high) return -1;
    double low = log(c->low[site]), high = log(c->high[site]), mean = c->mean[site], to_low, to_high;
    if (!(high > low) || !isfinite(low) || !isfinite(high) || c->rank_high[site] == KEEL_NOT_COLLECTED) return -1;
    if (in->info->sites[site].replica_count > 2) {
        to_low = mean - low;
        to_high = high - mean;
    } else {
        if (p->known < 2) return -1;
        double expected = (double)p->norm + (double)p->change;
        to_low = fabs(low - expected);
        to_high = fabs(high - expected);
        if (to_low < 4 * to_high && to_high < 4 * to_low) return -1;
    }
    return (int64_t)(to_high > to_low ? c->rank_high[site] : c->rank_low[site]);
}

static void follow(part *p, double log_norm) {
    if (!isfinite(log_norm)) return;
    p->change = p->known ? (float)(log_norm - (double)p->norm) : 0;
    p->norm = (float)log_norm;
    if (p->known < 2) p->known++;
}

static void emit(const state *s, keel_findings *findings) {
    const keel_site_trouble *t = &s->trouble;
    keel_finding f = keel_site_trouble_finding(t);
    char clause[KEEL_CLAUSE_BYTES] = "";
    keel_text_append(clause, sizeof clause, "%s", t->clause);
    if (s->rank >= 0) keel_text_append(clause, sizeof clause, "; rank %" PRId64 " is the odd one", s->rank);
    f.rank = s->rank;
    f.clause = clause;
    f.value = s->parted;
    f.expected = s->weights;
    keel_findings_add(findings, &f);
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    const keel_row *row = in->row;
    const columns c = {row->u64[KEEL_OP_replica_residual], row->u64[KEEL_OP_rank_low],
                       row->u64[KEEL_OP_rank_high],        row->f64[KEEL_OP_norm_low],
                       row->f64[KEEL_OP_norm_high],        row->f64[KEEL_OP_log_norm_mean]};
    part *parts = in->sites;
    if (!c.residual || (row->step.flags & KEEL_STEP_DROPPED)) return;
    keel_odd_sites odd = {.count = 0};
    uint32_t weights = 0, parted = 0;
    bool any = false;
    int64_t rank = -1;
    for (uint32_t q = 0; q < KEEL_QUANTITY_COUNT; q++) {
        for (uint32_t i = 0; i < in->index->count[q]; i++) {
            uint32_t site = in->index->sites[q][i];
            if (c.residual[site] == KEEL_NOT_COLLECTED) continue;
            any = true;
            weights += q == KEEL_WEIGHT;
            if (c.residual[site] == 0) {
                if (q == KEEL_WEIGHT && c.mean) follow(&parts[site], c.mean[site]);
                continue;
            }
            parted += q == KEEL_WEIGHT;
            if (rank < 0) rank = odd_rank(in, &c, site, &parts[site]);
            keel_odd_sites_add(&odd, in->index,
                               &(keel_odd_site){.site = site,
                                                .op = "replica_residual",
                                                .value = 1,
                                                .expected = 0,
                                                .score = 1,
                                                .plain = "differs between its replicas"});
        }
    }
    if (!any) return;
    bool was_active = s->trouble.active;
    s->in_row = odd.count ? s->in_row + 1 : 0;
    if (!keel_site_trouble_row(&s->trouble, in, &odd, s->in_row >= 2 ? KEEL_CRITICAL : KEEL_WARNING, "")) return;
    if (!was_active) {
        s->weights = weights;
        s->parted = parted;
        s->rank = rank;
    } else if (s->rank < 0)
        s->rank = rank;
    emit(s, findings);
}

const keel_detector keel_detect_replica_divergence = {
    .rule = "replica_divergence",
    .doc = "copies of one tensor whose bits differ",
    .link = KEEL_LINK_EVENT,
    .reach = 8,
    .ops = UINT64_C(1) << KEEL_OP_replica_residual | UINT64_C(1) << KEEL_OP_norm_low |
           UINT64_C(1) << KEEL_OP_norm_high | UINT64_C(1) << KEEL_OP_rank_low | UINT64_C(1) << KEEL_OP_rank_high |
           UINT64_C(1) << KEEL_OP_log_norm_mean,
    .state_bytes = sizeof(state),
    .site_bytes = sizeof(part),
    .update = update,
};
