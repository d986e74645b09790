// One rank's data or arithmetic differs from that of the others.
//
// Judged where each rank has a part of its own, before anything is summed (gradients before the reduction, what goes
// into collectives, activations): the spread ln(greatest norm of a rank / least) against its own history by a track: z
// >= 8 and a factor of 1.5 more than usual. The odd one is that farther from the mean of all; where both are about as
// far (of two ranks always, of more where half of them have the same bad data), that farther from the site's usual
// mean. The ranks are put to
// the vote over sites: a quarter of those of its pipeline stage must name one, and of several that are named so the one
// that comes first in the data flow is it, since bad data goes on from stage to stage. In two of three records a
// warning, once a note. So is a local loss that stands out: its excess over the mean against its own history.
//
// A rank that was odd from the first step on shows as the one that stands out at most sites, record after record: 48 of
// them are a warning. Of two such ranks nobody knows which is odd; the one with the greater loss is named, if that is
// always the same.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "analyzers/clipped_text.h"
#include "analyzers/detect/detectors.h"
#include "analyzers/site_trouble.h"
#include "analyzers/track.h"

enum { P_Z, P_RATIO, P_SHARE, P_ALWAYS, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_Z] = {"z", 8, 3, 1e4, "robust sigmas of the spread over ranks above the usual"},
    [P_RATIO] = {"ratio", 1.5, 1, 1e6, "and least factor above the usual"},
    [P_SHARE] = {"share", 0.25, 0, 1, "of the sites that must name one rank"},
    [P_ALWAYS] = {"always_records", 48, 8, 1e6, "records in which one rank stands out from the first step on"},
};

static const keel_quantity judged[] = {KEEL_ACTIVATION, KEEL_GRAD_UNREDUCED, KEEL_COLLECTIVE_IN};

#define FLOOR        0.02f
#define ALWAYS_SHARE 0.8 // of the sites that show a rank to stand out
#define ALWAYS_RATIO 1.1 // what standing out is then

typedef struct part {
    keel_track spread, mean;
} part;

// Of its records the last ones in which some rank was odd.
typedef struct memory {
    int64_t rank;    // of the latest
    uint32_t recent; // bit per record, the latest in bit 0
    uint32_t reserved;
} memory;

typedef struct state {
    int32_t loss, loss_max, loss_max_rank;
    uint32_t by_sites; // 1: the present trouble was begun by sites, and is quiet only where sites are looked at
    memory of_sites, of_loss;
    int64_t always_rank;  // stands out at most sites
    uint32_t always;      // for so many records in a row
    uint32_t always_told; // 1: the present trouble is of that kind
    int64_t loss_rank;    // whose loss has been the greatest
    uint32_t loss_in_row, reserved;
    int64_t rank; // that the trouble names
    keel_track excess;
    keel_site_trouble trouble;
} state;

static void init(void *bytes) {
    state *s = bytes;
    s->always_rank = s->loss_rank = s->rank = s->of_sites.rank = s->of_loss.rank = -1;
}

static void start(void *bytes, const keel_run_info *info) {
    state *s = bytes;
    s->loss = keel_run_scalar(info, "loss");
    s->loss_max = keel_run_scalar(info, "loss_max");
    s->loss_max_rank = keel_run_scalar(info, "loss_max_rank");
}

// ---- the vote ----

enum { CANDIDATES = 16, STAGES = 64 };
typedef struct candidate {
    uint64_t rank;
    uint32_t count; // of sites that name it
    uint32_t stage;
    uint32_t flow; // the first of them in the order of the data flow
} candidate;

typedef struct votes {
    candidate list[CANDIDATES];
    uint32_t candidates;
} votes;

// Stages beyond the last are counted with it.
static uint32_t stage_of(const keel_site_info *site) {
    return site->stage < 0 ? 0 : site->stage < STAGES ? (uint32_t)site->stage : STAGES - 1;
}

static void vote(votes *v, uint64_t rank, uint32_t stage, uint32_t flow) {
    uint32_t i = 0;
    while (i < v->candidates && v->list[i].rank != rank) i++;
    if (i == CANDIDATES) return;
    if (i == v->candidates) v->list[v->candidates++] = (candidate){.rank = rank, .stage = stage, .flow = flow};
    v->list[i].count++;
    if (flow < v->list[i].flow) v->list[i].flow = flow;
}

// Of the ranks that SHARE of the SITES of their stage name: the one of the stage that comes first in the data flow,
// with the most votes there; -1: none.
static int64_t winner(const votes *v, const uint32_t *sites, double share) {
    const candidate *best = NULL;
    for (const candidate *c = v->list; c < v->list + v->candidates; c++) {
        if (c->count < share * sites[c->stage]) continue;
        const bool elsewhere = best && best->stage != c->stage;
        if (!best || (elsewhere ? c->flow < best->flow : c->count > best->count)) best = c;
    }
    return best ? (int64_t)best->rank : -1;
}

typedef struct row_columns {
    const double *low, *high, *mean;
    const uint64_t *rank_low, *rank_high;
} row_columns;

typedef struct judgement {
    keel_odd_sites odd;
    votes odd_votes, always_votes;
    uint32_t sites;
    uint32_t first; // of them in the order of the data flow, where there are any
    uint32_t stage_sites[STAGES];
} judgement;

static void judge(const keel_detector_input *in, const row_columns *c, uint32_t site, part *p, judgement *j) {
    float low = logf((float)c->low[site]), high = logf((float)c->high[site]), mean = (float)c->mean[site];
    if (!isfinite(low) || !isfinite(high) || !isfinite(mean)) return;
    if (c->rank_low[site] == KEEL_NOT_COLLECTED || c->rank_high[site] == KEEL_NOT_COLLECTED) return;
    const uint32_t stage = stage_of(&in->info->sites[site]), flow = in->index->flow[site];
    if (j->sites++ == 0 || flow < in->index->flow[j->first]) j->first = site;
    j->stage_sites[stage]++;
    const keel_track_score spread = keel_track_look(&p->spread, high - low, FLOOR);
    const keel_track_score usual = keel_track_look(&p->mean, mean, FLOOR);
    const float centre = usual.ready && keel_halves(low, mean, high) ? p->mean.centre : mean;
    const bool is_high = fabsf(high - centre) >= fabsf(low - centre);
    uint64_t rank = is_high ? c->rank_high[site] : c->rank_low[site];
    if ((double)(high - low) >= log(ALWAYS_RATIO))
        vote(&j->always_votes, in->info->world_size > 2 ? rank : c->rank_high[site], stage, flow);
    if (spread.ready && (double)spread.z >= in->params[P_Z] && (double)spread.distance >= log(in->params[P_RATIO])) {
        vote(&j->odd_votes, rank, stage, flow);
        keel_odd_sites_add(&j->odd, in->index,
                           &(keel_odd_site){.site = site,
                                            .op = is_high ? "norm_high" : "norm_low",
                                            .value = is_high ? c->high[site] : c->low[site],
                                            .expected = exp((double)centre),
                                            .score = (double)spread.z});
    }
    keel_track_add(&p->spread, high - low, &spread);
    if (!spread.ready || (double)spread.z < in->params[P_Z]) keel_track_add(&p->mean, mean, &usual);
}

static void judge_sites(const keel_detector_input *in, judgement *j) {
    const keel_row *row = in->row;
    const row_columns c = {row->f64[KEEL_OP_norm_low], row->f64[KEEL_OP_norm_high], row->f64[KEEL_OP_log_norm_mean],
                           row->u64[KEEL_OP_rank_low], row->u64[KEEL_OP_rank_high]};
    part *parts = in->sites;
    if (!c.low || !c.high || !c.mean || !c.rank_low || !c.rank_high) return;
    for (size_t k = 0; k < sizeof judged / sizeof *judged; k++) {
        const uint32_t *sites = in->index->sites[judged[k]];
        for (uint32_t i = 0; i < in->index->count[judged[k]]; i++)
            if (c.low[sites[i]] > 0 && in->info->sites[sites[i]].numel > 1)
                judge(in, &c, sites[i], &parts[sites[i]], j);
    }
}

// ---- the local losses ----

// The rank whose loss stands out; -1: none does.
static int64_t judge_loss(state *s, const keel_row *row, double ratio, double z) {
    double loss, most, rank;
    if (!keel_row_scalar(row, s->loss, &loss) || !keel_row_scalar(row, s->loss_max, &most) ||
        !keel_row_scalar(row, s->loss_max_rank, &rank) || !(loss > 0) || !isfinite(most))
        return -1;
    s->loss_in_row = (int64_t)rank == s->loss_rank ? s->loss_in_row + 1 : 1;
    s->loss_rank = (int64_t)rank;
    float x = (float)(most / loss - 1);
    const keel_track_score score = keel_track_look(&s->excess, x, FLOOR);
    bool odd = score.ready && (double)score.z >= z && (double)score.distance >= 0.2 * (ratio - 1);
    keel_track_add(&s->excess, x, &score);
    return odd ? s->loss_rank : -1;
}

// ---- the trouble ----

static void follow_always(state *s, const judgement *j) {
    const int64_t rank = j->sites < 3 ? -1 : winner(&j->always_votes, j->stage_sites, ALWAYS_SHARE);
    s->always = rank >= 0 && rank == s->always_rank ? s->always + 1 : 0;
    s->always_rank = rank;
}

static bool is_always(const state *s, const keel_detector_input *in) {
    return s->always >= in->params[P_ALWAYS];
}

// Of two ranks that always differ.
static int64_t suspect(const state *s, const keel_detector_input *in) {
    if (in->info->world_size > 2) return s->always_rank;
    return s->loss_in_row >= in->params[P_ALWAYS] ? s->loss_rank : -1;
}

// The local loss alone stands out: no site was looked at, or none is odd enough.
static void tell_loss(const state *s, const keel_detector_input *in, keel_odd_sites *odd) {
    const keel_odd_site site = {.site = -1,
                                .op = "loss_max",
                                .value = in->row->scalars[s->loss_max],
                                .expected = in->row->scalars[s->loss],
                                .score = 1};
    keel_odd_sites_add(odd, in->index, &site);
}

static void emit(const state *s, const keel_detector_input *in, keel_findings *findings) {
    const keel_site_trouble *t = &s->trouble;
    keel_finding f = keel_site_trouble_finding(t);
    char clause[KEEL_CLAUSE_BYTES] = "", who[48];
    if (s->rank >= 0)
        snprintf(who, sizeof who, "rank %" PRId64, s->rank);
    else
        snprintf(who, sizeof who, "one of %" PRIu32 " ranks", in->info->world_size);
    if (s->always_told)
        keel_text_append(clause, sizeof clause, "%s has differed from the others at most sites since step %" PRIu64,
                         who, t->first_step);
    else
        keel_text_append(clause, sizeof clause, "%s differs from the others since step %" PRIu64 ": %s", who,
                         t->first_step, t->clause);
    f.rank = s->rank;
    f.clause = clause;
    keel_findings_add(findings, &f);
}

static bool is_again(const memory *m, int64_t rank) {
    return rank >= 0 && rank == m->rank && (m->recent & 3);
}

static void remember(memory *m, int64_t rank) {
    m->recent = m->recent << 1 | (rank >= 0);
    if (rank >= 0) m->rank = rank;
}

static void update(void *bytes, const keel_detector_input *in, keel_findings *findings) {
    state *s = bytes;
    if (in->info->world_size < 2 || (in->row->step.flags & (KEEL_STEP_SKIPPED | KEEL_STEP_DROPPED))) return;
    judgement j = {.sites = 0};
    judge_sites(in, &j);
    int64_t by_loss = judge_loss(s, in->row, in->params[P_RATIO], in->params[P_Z]);
    if (j.sites) follow_always(s, &j);
    const int64_t voted = winner(&j.odd_votes, j.stage_sites, in->params[P_SHARE]);
    const int64_t rank = voted >= 0 ? voted : by_loss;
    if (voted < 0) {
        j.odd = (keel_odd_sites){.count = 0};
        if (by_loss >= 0) tell_loss(s, in, &j.odd);
    }
    bool always = j.sites && is_always(s, in) && rank < 0;
    bool lasts = is_again(&s->of_sites, rank) || is_again(&s->of_loss, rank);
    if (j.sites) remember(&s->of_sites, voted);
    remember(&s->of_loss, by_loss);
    if (always && !s->trouble.active) {
        s->always_told = 1;
        s->rank = suspect(s, in);
    }
    if (always && s->always_told) {
        // The sites that show it are most of them: the first in the order of the data flow stands for all.
        keel_odd_sites_add(
            &j.odd, in->index,
            &(keel_odd_site){.site = j.first, .op = "norm_high", .value = s->always, .score = s->always});
        lasts = true;
    }
    bool was_active = s->trouble.active;
    if (!was_active) s->by_sites = 0;
    if (voted >= 0 || (always && s->always_told)) s->by_sites = 1;
    if (j.odd.count == 0 && s->by_sites && !j.sites) return;
    if (!keel_site_trouble_row(&s->trouble, in, &j.odd, lasts ? KEEL_WARNING : KEEL_INFO, "is")) return;
    if (!was_active && !always) s->always_told = 0;
    if (rank >= 0 && (!was_active || s->rank < 0 || lasts)) s->rank = rank;
    emit(s, in, findings);
    if (!s->trouble.active) s->rank = -1;
}

const keel_detector keel_detect_rank_outlier = {
    .rule = "rank_outlier",
    .doc = "one rank's data or arithmetic differs from that of the others",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .from_outside = true,
    .reach = 8,
    .ops = UINT64_C(1) << KEEL_OP_norm_low | UINT64_C(1) << KEEL_OP_norm_high | UINT64_C(1) << KEEL_OP_rank_low |
           UINT64_C(1) << KEEL_OP_rank_high | UINT64_C(1) << KEEL_OP_log_norm_mean,
    .state_bytes = sizeof(state),
    .site_bytes = sizeof(part),
    .init = init,
    .start = start,
    .update = update,
};
