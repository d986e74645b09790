// The size of a tensor jumps: its norm (where that is not kept, rms or std) or its greatest magnitude, at any site.
//
// Judged on the logarithm by a track of each (analyzers/track.h): z >= 12 with sigma at least 0.05, and four times the
// expected size. An update is judged by its share of the learning rate, so that a schedule is no jump. One record at
// one or two sites is a note: single outliers are common among thousands of heavy-tailed series. Two of three records
// at one site, or three sites at once, are a warning. The first 64 records of a series only teach.
//
// Whose part has jumped is known where the ranks' norms are kept: of a tensor that one rank alone holds, that rank; of
// one that lies on several, the one that stands out, if the spread ln(greatest norm of a rank / least) has left its own
// history by z >= 8 and a factor of 1.5.
//
// A weight that its optimizer has not changed so: its norm is above `ratio` times what it was in the step before and
// the norm of its update together, which by the triangle inequality it can never exceed. It is told apart from the
// other jumps (series "weight"), since what else jumps then follows from it. Of tensors of which there are copies on
// other ranks replica_divergence tells.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "analyzers/clipped_text.h"
#include "analyzers/detect/detectors.h"
#include "analyzers/site_trouble.h"
#include "analyzers/track.h"

enum { P_Z, P_RATIO, P_FLOOR, P_SITES, P_SHARE, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_Z] = {"z", 12, 3, 1e4, "robust sigmas above the expected logarithm"},
    [P_RATIO] = {"ratio", 4, 1, 1e6, "least size over the expected size"},
    [P_FLOOR] = {"floor", 0.05, 0.001, 10, "sigma of the logarithm is at least this"},
    [P_SITES] = {"sites", 3, 1, 1e6, "sites at once that are a warning in their first record"},
    [P_SHARE] = {"share", 0.05, 0, 1, "and least share of the sites judged"},
};

enum { NORM, GREATEST, MEASURES };
static const char *const measure_names[MEASURES] = {"norm", "max"};

typedef struct part {
    keel_track tracks[MEASURES];
    keel_track spread, mean; // over ranks
    double weight;           // its norm in the record before; 0: not known
} part;

#define SPREAD_Z     8.0f
#define SPREAD_RATIO 1.5

typedef struct state {
    uint64_t step;    // of the record before
    uint32_t changed; // weights that were told to have changed by themselves
    int32_t lr;
    int32_t rank; // whose part of the first site has jumped; -1: not known
    uint32_t reserved;
    keel_site_trouble trouble;
} state;

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->lr = keel_run_scalar(info, "lr");
}

// What a row offers.
typedef struct columns {
    const double *norm, *rms, *std, *max, *min;
    const double *low, *high, *mean; // over ranks, of their norms; MEAN of the logarithm
    const uint64_t *rank_low, *rank_high;
} columns;

// 0 where there is none, of a tensor of zeros, and of one that is not finite.
static double norm_of(const columns *c, uint32_t site) {
    double value = c->norm ? c->norm[site] : 0;
    if (!(value > 0) && c->rms) value = c->rms[site];
    if (!(value > 0) && c->std) value = c->std[site];
    return value > 0 ? value : 0;
}

static double greatest_of(const columns *c, uint32_t site) {
    double high = c->max ? fabs(c->max[site]) : 0, low = c->min ? fabs(c->min[site]) : 0;
    double value = low > high ? low : high; // a NaN loses either comparison
    return value > 0 ? value : 0;
}

// The rank whose part of SITE stands out in this record; -1: none does, or it is not known.
static int32_t rank_of(const keel_run_info *info, const columns *c, uint32_t site, part *p) {
    if (info->world_size < 2 || !c->low || !c->high || !c->mean || !c->rank_low || !c->rank_high) return -1;
    const uint64_t rank_low = c->rank_low[site], rank_high = c->rank_high[site];
    if (rank_low > INT32_MAX || rank_high > INT32_MAX) return -1; // not collected
    const bool copies = info->sites[site].replica_count > 1;      // whose norms are the same
    if (rank_low == rank_high) return copies ? -1 : (int32_t)rank_high;
    const float low = logf((float)c->low[site]), high = logf((float)c->high[site]), mean = (float)c->mean[site];
    if (!isfinite(low) || !isfinite(high) || !isfinite(mean)) return -1;
    const keel_track_score score = keel_track_look(&p->spread, high - low, 0.02f);
    const keel_track_score usual = keel_track_look(&p->mean, mean, 0.02f);
    const bool odd = score.ready && score.z >= SPREAD_Z && (double)score.distance >= log(SPREAD_RATIO);
    const float centre = usual.ready && keel_halves(low, mean, high) ? p->mean.centre : mean;
    keel_track_add(&p->spread, high - low, &score);
    if (!odd) keel_track_add(&p->mean, mean, &usual);
    if (!odd) return -1;
    return (int32_t)(fabsf(high - centre) >= fabsf(low - centre) ? rank_high : rank_low);
}

typedef struct judgement {
    keel_odd_sites odd;
    int32_t rank;    // of the first odd site in the order of the data flow
    uint32_t judged; // series that had a value
    bool lasts;      // a site is odd in two of three records
    uint32_t fresh;  // odd sites that do not remember earlier records
} judgement;

static const uint32_t remembering =
    1u << KEEL_EXP_AVG | 1u << KEEL_EXP_AVG_SQ | 1u << KEEL_ADAM_DIRECTION | 1u << KEEL_UPDATE;

static void judge(const keel_detector_input *in, uint32_t site, int measure, keel_track *t, double value, double unit,
                  int32_t rank, judgement *j) {
    float x = logf((float)(value * unit));
    if (!isfinite(x)) return;
    j->judged++;
    const keel_track_score score = keel_track_look(t, x, (float)in->params[P_FLOOR]);
    bool sudden = t->outside < 3 || (t->recent & 7);
    bool odd = score.ready && sudden && (double)score.z >= in->params[P_Z] &&
               (double)score.distance >= log(in->params[P_RATIO]);
    if (odd) {
        keel_odd_sites_add(&j->odd, in->index,
                           &(keel_odd_site){.site = site,
                                            .op = measure_names[measure],
                                            .value = value,
                                            .expected = value * exp(-(double)score.distance),
                                            .score = (double)score.z});
        if (j->odd.first[0].site == site) j->rank = rank;
        bool remembers = remembering >> in->info->sites[site].quantity & 1;
        j->lasts |= !remembers && (t->recent & 3) != 0;
        j->fresh += !remembers;
    }
    t->recent = (uint8_t)(t->recent << 1 | odd);
    keel_track_add(t, x, &score);
}

// ---- weights that change by themselves ----

static void tell_weight(state *s, const keel_detector_input *in, const columns *c, uint32_t site, double limit,
                        keel_findings *findings) {
    const uint64_t step = in->row->step.step;
    const bool parts = in->info->world_size > 1 && c->rank_high && c->rank_high[site] <= INT32_MAX;
    char clause[KEEL_CLAUSE_BYTES] = "";
    keel_text_append(clause, sizeof clause,
                     "%s has norm %.4g at step %" PRIu64 ", before and with its update %.4g at most: no update made it",
                     in->info->sites[site].name, c->norm[site], step, limit);
    const keel_finding f = {.series = "weight",
                            .severity = KEEL_WARNING,
                            .key = ++s->changed,
                            .closed = true,
                            .at_once = true,
                            .site = site,
                            .rank = parts ? (int64_t)c->rank_high[site] : -1,
                            .first_step = step,
                            .peak_step = step,
                            .last_step = step,
                            .value = c->norm[site],
                            .expected = limit,
                            .score = c->norm[site] / limit,
                            .clause = clause};
    keel_findings_add(findings, &f);
}

static void judge_weights(state *s, const keel_detector_input *in, const columns *c, keel_findings *findings) {
    const bool next = in->row->step.step == s->step + 1 && !in->resumed;
    part *parts = in->sites;
    s->step = in->row->step.step;
    for (uint32_t i = 0; c->norm && i < in->index->count[KEEL_UPDATE]; i++) {
        const uint32_t update = in->index->sites[KEEL_UPDATE][i];
        const int32_t site = in->index->weight[update];
        if (site < 0) continue;
        const double now = c->norm[site], step = c->norm[update];
        part *p = &parts[site];
        const double limit = next && p->weight > 0 ? p->weight + step : NAN;
        p->weight = now > 0 ? now : 0;
        if (in->info->sites[site].replica_count <= 1 && now > in->params[P_RATIO] * limit)
            tell_weight(s, in, c, (uint32_t)site, limit, findings);
    }
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    const keel_row *row = in->row;
    if (row->step.flags & KEEL_STEP_DROPPED) return;
    const columns c = {row->f64[KEEL_OP_norm],      row->f64[KEEL_OP_rms],           row->f64[KEEL_OP_std],
                       row->f64[KEEL_OP_max],       row->f64[KEEL_OP_min],           row->f64[KEEL_OP_norm_low],
                       row->f64[KEEL_OP_norm_high], row->f64[KEEL_OP_log_norm_mean], row->u64[KEEL_OP_rank_low],
                       row->u64[KEEL_OP_rank_high]};
    judge_weights(s, in, &c, findings);
    if (row->step.flags & KEEL_STEP_SKIPPED) return;
    part *parts = in->sites;
    double lr = 0;
    bool has_lr = keel_row_scalar(row, s->lr, &lr) && lr > 0;
    judgement j = {.rank = -1};
    for (int q = 0; q < KEEL_QUANTITY_COUNT; q++) {
        if (q == KEEL_ADAM_RMS) continue; // has a rule of its own
        double unit = q == KEEL_UPDATE && has_lr ? 1 / lr : 1;
        for (uint32_t i = 0; i < in->index->count[q]; i++) {
            uint32_t site = in->index->sites[q][i];
            if (in->info->sites[site].numel == 1) continue; // a number of its own, no mean of many: other rules know it
            double norm = norm_of(&c, site), greatest = greatest_of(&c, site);
            const int32_t rank = rank_of(in->info, &c, site, &parts[site]);
            if (norm > 0) judge(in, site, NORM, &parts[site].tracks[NORM], norm, unit, rank, &j);
            if (greatest > 0) judge(in, site, GREATEST, &parts[site].tracks[GREATEST], greatest, unit, rank, &j);
        }
    }
    if (!j.judged) return;
    bool many = j.fresh >= fmax(in->params[P_SITES], in->params[P_SHARE] * j.judged);
    if (!s->trouble.active) s->rank = j.rank;
    if (!keel_site_trouble_row(&s->trouble, in, &j.odd, j.lasts || many ? KEEL_WARNING : KEEL_INFO, "rose to")) return;
    keel_finding f = keel_site_trouble_finding(&s->trouble);
    f.rank = s->rank;
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_tensor_jump = {
    .rule = "tensor_jump",
    .doc = "the size of a tensor jumps",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 8,
    .ops = 1u << KEEL_OP_norm | 1u << KEEL_OP_rms | 1u << KEEL_OP_std | 1u << KEEL_OP_max | 1u << KEEL_OP_min |
           1u << KEEL_OP_norm_low | 1u << KEEL_OP_norm_high | 1u << KEEL_OP_log_norm_mean | 1u << KEEL_OP_rank_low |
           1u << KEEL_OP_rank_high,
    .state_bytes = sizeof(state),
    .site_bytes = sizeof(part),
    .start = start,
    .update = update,
};
