// Copies of one tensor on different ranks whose bits differ: replica_residual is not 0.
//
// The residual is a sum of the copies' checksums with factors that add up to 0, and exact: there are no false alarms,
// and equal norms prove nothing. One record is a warning, two in a row are critical, since a run whose replicas have
// parted trains several models at once. The rank: of three copies or more the one whose checksum most others do not
// have (replica_rank). Where nobody asked for checksums, and no rank holds a part alone, the one whose norm is farther
// from the mean of all. Of two:
// - the one whose norm is to the bit what it was in the record before has missed the update;
// - the first copy's sum must be what it was plus the sum of its update, within what rounding usually leaves: if it is
//   not, that copy is the odd one, else the other;
// - where means are not kept, or for fewer than 8 records, the one whose norm has left its own course, or in the second
//   record its first value, by four times as much as the other's.
// Else it is unknown.
//
// Where each rank updates a part of the weights and gives it to the others, a rank that misses an update leaves no
// copies that differ, but nothing of what it updates has changed: in an applied step the update of a part is zero on
// one and the same rank at every tensor that it has a part in, where it was not before, while other ranks' are not.
#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "analyzers/clipped_text.h"
#include "analyzers/detect/detectors.h"
#include "analyzers/site_trouble.h"

typedef struct part {
    double norm, change; // the norm while all agreed, and its last change
    double mean;         // of the first copy, in the record before
    float error, usual;  // of mean + mean of the update; what is usual is a running mean of magnitudes
    uint16_t known;      // records of norm, up to 2
    uint16_t checked;    // records of usual
    uint32_t moved;      // 1: an update: no rank's part of it was zero in the record before
} part;

enum { CHECKED = 8 };
#define ODD_ERROR 8 // over what is usual

typedef struct state {
    uint32_t in_row;
    uint32_t weights, parted; // weights looked at, and those of them that differ, where the trouble began
    uint32_t missed;          // updates that some rank has missed
    int64_t rank;
    keel_site_trouble trouble;
} state;

typedef struct columns {
    const uint64_t *residual, *rank_low, *rank_high, *odd, *peer;
    const double *low, *high, *mean_log, *mean;
} columns;

// The ranks that hold the two copies that differ: the one that counts first. Both the same where that one is odd.
typedef struct pair {
    int64_t first, second;
} pair;

// Norms of copies can be compared, those of a tensor's parts not.
static bool has_whole_norms(const keel_site_info *site) {
    return site->layout == KEEL_LAYOUT_REPLICA;
}

// Of two copies, by the second and third way above.
static int64_t odd_of_two(const keel_detector_input *in, const columns *c, uint32_t site, const part *p, pair two) {
    const bool whole = has_whole_norms(&in->info->sites[site]) && p->known > 0;
    bool low_stood = c->low[site] == p->norm, high_stood = c->high[site] == p->norm;
    if (whole && low_stood != high_stood) return (int64_t)(low_stood ? c->rank_low[site] : c->rank_high[site]);
    if (p->checked >= CHECKED) {
        const double rounding = 4 * DBL_EPSILON * fabs(p->mean); // sums of few values are often exact
        return fabsf(p->error) > fmax(ODD_ERROR * (double)p->usual, rounding) ? two.first : two.second;
    }
    if (!whole || !(c->high[site] > c->low[site])) return -1;
    double expected = p->norm + p->change;
    double to_low = fabs(c->low[site] - expected), to_high = fabs(c->high[site] - expected);
    if (to_low < 4 * to_high && to_high < 4 * to_low) return -1;
    return (int64_t)(to_high > to_low ? c->rank_high[site] : c->rank_low[site]);
}

// The rank whose copy is the odd one; -1: cannot be told.
static int64_t odd_rank(const keel_detector_input *in, const columns *c, uint32_t site, const part *p,
                        const pair *asked) {
    if (asked && asked->first == asked->second) return asked->first;
    if (!c->low || !c->high || !c->mean_log || !c->rank_low || !c->rank_high) return -1;
    if (c->rank_high[site] == KEEL_NOT_COLLECTED || !(c->low[site] > 0)) return -1;
    if (in->info->sites[site].replica_count == 2) {
        const pair unknown = in->info->world_size == 2 ? (pair){0, 1} : (pair){-1, -1};
        return odd_of_two(in, c, site, p, asked ? *asked : unknown);
    }
    if (!has_whole_norms(&in->info->sites[site])) return -1;
    double low = log(c->low[site]), high = log(c->high[site]), mean = c->mean_log[site];
    if (!(high > low) || !isfinite(mean)) return -1;
    return (int64_t)(high - mean > mean - low ? c->rank_high[site] : c->rank_low[site]);
}

// What the ranks were asked for in this record: one site's.
static bool find_asked(const keel_detector_input *in, const columns *c, pair *asked) {
    if (!c->odd || !c->peer) return false;
    for (uint32_t s = 0; s < in->info->site_count; s++) {
        if (c->odd[s] == KEEL_NOT_COLLECTED) continue;
        *asked = (pair){(int64_t)c->odd[s], (int64_t)c->peer[s]};
        return true;
    }
    return false;
}

// What the first copy's mean says that its own update does not.
static void follow_mean(part *p, double mean, double of_update, bool agreed) {
    double before = p->mean;
    p->mean = mean;
    p->error = (float)(mean - before - of_update);
    if (!isfinite(p->error)) return; // the first record, or no mean
    if (!agreed) return;
    p->usual += (fabsf(p->error) - p->usual) / (p->checked < 31 ? (float)(p->checked + 1) : 32);
    if (p->checked < UINT16_MAX) p->checked++;
}

static void follow_means(const keel_detector_input *in, const columns *c, part *parts) {
    for (uint32_t i = 0; c->mean && i < in->index->count[KEEL_UPDATE]; i++) {
        uint32_t site = in->index->sites[KEEL_UPDATE][i];
        int32_t weight = in->index->weight[site];
        if (weight >= 0 && c->residual[weight] != KEEL_NOT_COLLECTED)
            follow_mean(&parts[weight], c->mean[weight], c->mean[site], c->residual[weight] == 0);
    }
}

static void follow_norm(part *p, double norm) {
    if (!(norm > 0)) return;
    p->change = p->known ? norm - p->norm : 0;
    p->norm = norm;
    if (p->known < 2) p->known++;
}

// ---- a rank that makes no update ----

static bool has_parts(const keel_detector_input *in, const columns *c, uint32_t site) {
    return in->info->sites[site].replica_count <= 1 && c->low[site] >= 0 && c->rank_low[site] != KEEL_NOT_COLLECTED;
}

// RANK's part of some tensor has changed.
static bool has_moved(const keel_detector_input *in, const columns *c, uint64_t rank) {
    for (uint32_t i = 0; i < in->index->count[KEEL_UPDATE]; i++) {
        const uint32_t site = in->index->sites[KEEL_UPDATE][i];
        if (!has_parts(in, c, site)) continue;
        if (c->low[site] > 0 && c->rank_low[site] == rank) return true;
        if (c->high[site] > 0 && c->rank_high[site] == rank) return true;
    }
    return false;
}

static void judge_updates(state *s, const keel_detector_input *in, const columns *c, keel_findings *findings) {
    if (in->info->world_size < 2 || !c->low || !c->high || !c->rank_low || !c->rank_high) return;
    if (in->row->step.flags & KEEL_STEP_SKIPPED) return;
    part *parts = in->sites;
    uint32_t stopped = 0, moving = 0;
    int64_t first = -1, rank = -1;
    bool one = true;
    for (uint32_t i = 0; i < in->index->count[KEEL_UPDATE]; i++) {
        const uint32_t site = in->index->sites[KEEL_UPDATE][i];
        if (!has_parts(in, c, site)) continue;
        const bool moved = parts[site].moved;
        parts[site].moved = c->low[site] > 0;
        moving += c->high[site] > 0;
        if (c->low[site] > 0 || !moved) continue;
        if (stopped++ == 0) {
            first = site;
            rank = (int64_t)c->rank_low[site];
        }
        one &= (int64_t)c->rank_low[site] == rank;
    }
    if (stopped == 0 || moving == 0 || !one || has_moved(in, c, (uint64_t)rank)) return;
    const uint64_t step = in->row->step.step;
    char clause[KEEL_CLAUSE_BYTES] = "";
    keel_text_append(clause, sizeof clause,
                     "rank %" PRId64 " made no update at step %" PRIu64 ": its parts of %" PRIu32
                     " tensors stayed as they were, those of other ranks did not",
                     rank, step, stopped);
    const keel_finding f = {.series = "update",
                            .severity = KEEL_WARNING,
                            .key = UINT32_MAX - s->missed++,
                            .closed = true,
                            .at_once = true,
                            .site = first,
                            .rank = rank,
                            .first_step = step,
                            .peak_step = step,
                            .last_step = step,
                            .value = stopped,
                            .expected = 0,
                            .score = stopped,
                            .clause = clause};
    keel_findings_add(findings, &f);
}

static void init_site(void *memory) {
    ((part *)memory)->mean = NAN;
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
    const columns c = {row->u64[KEEL_OP_replica_residual], row->u64[KEEL_OP_rank_low],      row->u64[KEEL_OP_rank_high],
                       row->u64[KEEL_OP_replica_rank],     row->u64[KEEL_OP_replica_peer],  row->f64[KEEL_OP_norm_low],
                       row->f64[KEEL_OP_norm_high],        row->f64[KEEL_OP_log_norm_mean], row->f64[KEEL_OP_mean]};
    part *parts = in->sites;
    if (row->step.flags & KEEL_STEP_DROPPED) return;
    judge_updates(s, in, &c, findings);
    if (!c.residual) return;
    keel_odd_sites odd = {.count = 0};
    uint32_t weights = 0, parted = 0;
    bool any = false;
    pair asked;
    const bool told = find_asked(in, &c, &asked);
    int64_t rank = told && asked.first == asked.second ? asked.first : -1;
    follow_means(in, &c, parts);
    for (uint32_t q = 0; q < KEEL_QUANTITY_COUNT; q++) {
        for (uint32_t i = 0; i < in->index->count[q]; i++) {
            uint32_t site = in->index->sites[q][i];
            if (c.residual[site] == KEEL_NOT_COLLECTED) continue;
            any = true;
            weights += q == KEEL_WEIGHT;
            if (c.residual[site] == 0) {
                if (q == KEEL_WEIGHT && c.low) follow_norm(&parts[site], c.low[site]);
                continue;
            }
            parted += q == KEEL_WEIGHT;
            if (rank < 0 && q == KEEL_WEIGHT) rank = odd_rank(in, &c, site, &parts[site], told ? &asked : NULL);
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
    .doc = "copies of one tensor whose bits differ, or a rank that misses an update",
    .link = KEEL_LINK_EVENT,
    .from_outside = true,
    .reach = 8,
    .ops = UINT64_C(1) << KEEL_OP_replica_residual | UINT64_C(1) << KEEL_OP_replica_rank |
           UINT64_C(1) << KEEL_OP_replica_peer | UINT64_C(1) << KEEL_OP_norm_low | UINT64_C(1) << KEEL_OP_norm_high |
           UINT64_C(1) << KEEL_OP_rank_low | UINT64_C(1) << KEEL_OP_rank_high | UINT64_C(1) << KEEL_OP_log_norm_mean |
           UINT64_C(1) << KEEL_OP_mean,
    .state_bytes = sizeof(state),
    .site_bytes = sizeof(part),
    .init_site = init_site,
    .update = update,
};
