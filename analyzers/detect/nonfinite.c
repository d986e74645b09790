// Any NaN or infinity, in a scalar or at a site.
//
// The origin is the first bad site in the order of the data flow: over steps; within a step over (micro-batch, phase,
// position), where phases before the reduction come first, since what lies downstream of it is contaminated, not the
// culprit. All that follows is one incident with it, for as long as it goes on; non-finite values that come back now
// and then are one incident too.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "analyzers/clipped_text.h"
#include "analyzers/detect/detectors.h"

enum { P_REPEAT, P_IN_A_ROW, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_REPEAT] = {"repeat_records", 1024, 16, 1e9, "a return within this many records continues the incident"},
    [P_IN_A_ROW] = {"in_a_row_critical", 3, 1, 1e6, "records in a row from which any non-finite value is critical"},
};

enum { QUIET = 8, KNOWN_EPISODES = 3, SEARCH = 64 };

// The scalars that a run lives by. Others (a metric that is undefined for a batch) are worth no more than a note.
static const char *const vital[] = {"loss", "loss_total", "aux_loss", "z_loss", "grad_norm"};
enum { VITAL = sizeof vital / sizeof *vital, GRAD_NORM = VITAL - 1 };

// What is known of the values at a place. The counts are those of the first replica; a weight that went bad on another
// one is told by the rank alone.
enum { KIND_NAN, KIND_INF, KIND_UNCOUNTED, KINDS };
static const char *const kind_names[KINDS] = {"NaN", "Inf", "NaN or Inf"};
static const char *const kind_series[KINDS] = {"nans", "infs", "rank_nonfinite"};

typedef struct place {
    int64_t site; // -1: none
    uint64_t step;
    uint32_t phase, micro, rank;
    uint32_t kind;
} place;

typedef struct state {
    int32_t vital[VITAL];
    uint32_t active;
    uint32_t key;      // of the incident's finding
    uint32_t episodes; // stretches of bad records so far
    uint32_t quiet;
    uint32_t in_a_row;   // bad records up to this one
    uint32_t sites_seen; // distinct sites in this episode
    uint32_t sampled;    // 1: some site had its flags looked at when it began
    uint32_t evidence_count;
    uint32_t scalar_mask; // vital scalars that were bad
    uint32_t spoilt;      // 1: parameters or the optimizer's state were bad under this key
    keel_severity severity;
    uint64_t bad_records; // under this key
    uint64_t skipped;     // of them, those whose update was skipped
    uint64_t first_step, last_step, last_record;
    place origin;
    uint64_t origin_hash;            // of its site
    char where[KEEL_EVIDENCE_BYTES]; // it is
    double bad[VITAL];               // the latest value that was not finite
    double finite[VITAL];            // the latest before
    char clause[KEEL_CLAUSE_BYTES];
    char evidence[KEEL_EVIDENCE_MAX][KEEL_EVIDENCE_BYTES];
} state;

static void init(void *memory) {
    state *s = memory;
    s->origin.site = -1;
    for (int i = 0; i < VITAL; i++) s->finite[i] = NAN;
}

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    for (int i = 0; i < VITAL; i++) s->vital[i] = keel_run_scalar(info, vital[i]);
}

// ---- sites ----

static uint64_t count_at(const keel_row *row, keel_op op, uint32_t site) {
    uint64_t n = row->u64[op] ? row->u64[op][site] : KEEL_NOT_COLLECTED;
    return n == KEEL_NOT_COLLECTED ? 0 : n;
}

static bool any_bad(const uint64_t *counts, uint32_t n) {
    uint64_t bad = 0;
    if (!counts) return false;
    for (uint32_t i = 0; i < n; i++) bad |= counts[i] + 1 > 1; // neither 0 nor not collected
    return bad != 0;
}

// KEEL_RANK_NONE where no rank is named.
static uint32_t bad_rank(const keel_row *row, uint32_t site) {
    uint64_t rank = row->u64[KEEL_OP_rank_nonfinite] ? row->u64[KEEL_OP_rank_nonfinite][site] : KEEL_NOT_COLLECTED;
    return rank < KEEL_RANK_NONE ? (uint32_t)rank : KEEL_RANK_NONE;
}

static bool any_rank(const uint64_t *ranks, uint32_t n) {
    uint64_t named = 0;
    if (!ranks) return false;
    for (uint32_t i = 0; i < n; i++) named |= ranks[i] ^ KEEL_NOT_COLLECTED;
    return named != 0;
}

static bool any_collected(const keel_row *row, uint32_t n) {
    const uint64_t *nans = row->u64[KEEL_OP_nans];
    for (uint32_t i = 0; nans && i < n; i++)
        if (nans[i] != KEEL_NOT_COLLECTED) return true;
    return false;
}

static place place_of(const keel_detector_input *in, uint32_t site) {
    uint64_t micro = in->row->u64[KEEL_OP_micro_nonfinite] ? in->row->u64[KEEL_OP_micro_nonfinite][site] : UINT64_MAX;
    bool nan = count_at(in->row, KEEL_OP_nans, site) > 0, inf = count_at(in->row, KEEL_OP_infs, site) > 0;
    return (place){.site = site,
                   .step = in->row->step.step,
                   .phase = (uint32_t)in->info->sites[site].phase,
                   .micro = micro < KEEL_RANK_NONE ? (uint32_t)micro : 0,
                   .rank = bad_rank(in->row, site),
                   .kind = nan   ? KIND_NAN
                           : inf ? KIND_INF
                                 : KIND_UNCOUNTED};
}

static bool comes_before(const keel_detector_input *in, const place *a, const place *b) {
    bool a_after = a->phase >= KEEL_PHASE_REDUCTION, b_after = b->phase >= KEEL_PHASE_REDUCTION;
    if (a_after != b_after) return b_after;
    if (!a_after && a->micro != b->micro) return a->micro < b->micro;
    return keel_site_compare(&in->info->sites[a->site], &in->info->sites[b->site]) < 0;
}

// The bad sites of a row.
typedef struct bad_sites {
    place first[KEEL_EVIDENCE_MAX + 1]; // in order
    uint32_t count;                     // of first
    uint32_t fresh;                     // sites not seen in this episode before
    bool optimizer;                     // the parameters or the optimizer's state are among them
} bad_sites;

static void find_bad_sites(const keel_detector_input *in, bad_sites *bad) {
    unsigned char *seen = in->sites;
    uint32_t n = in->info->site_count;
    bad->count = bad->fresh = 0;
    bad->optimizer = false;
    if (!any_bad(in->row->u64[KEEL_OP_nans], n) && !any_bad(in->row->u64[KEEL_OP_infs], n) &&
        !any_rank(in->row->u64[KEEL_OP_rank_nonfinite], n))
        return;
    for (uint32_t i = 0; i < n; i++) {
        bool counted = count_at(in->row, KEEL_OP_nans, i) || count_at(in->row, KEEL_OP_infs, i);
        if (!counted && bad_rank(in->row, i) == KEEL_RANK_NONE) continue;
        if (in->info->sites[i].phase == KEEL_PHASE_RECOMPUTE) continue;
        if (in->info->sites[i].phase == KEEL_PHASE_OPTIMIZER) bad->optimizer = true;
        if (!seen[i]) bad->fresh++;
        seen[i] = 1;
        place p = place_of(in, i);
        uint32_t at = bad->count;
        while (at > 0 && comes_before(in, &p, &bad->first[at - 1])) at--;
        if (at == KEEL_EVIDENCE_MAX) continue;
        if (bad->count < KEEL_EVIDENCE_MAX) bad->count++;
        memmove(bad->first + at + 1, bad->first + at, (bad->count - 1 - at) * sizeof *bad->first);
        bad->first[at] = p;
    }
}

static void describe_place(const keel_detector_input *in, const place *p, char *text, size_t size) {
    const keel_site_info *site = &in->info->sites[p->site];
    keel_text_append(text, size, "%s (%s)", site->name, keel_quantity_name(site->quantity));
    if (p->rank != KEEL_RANK_NONE) keel_text_append(text, size, " on rank %" PRIu32, p->rank);
    keel_text_append(text, size, " at step %" PRIu64 ", %s", p->step, keel_phase_name((keel_phase)p->phase));
    if (p->phase < KEEL_PHASE_REDUCTION) keel_text_append(text, size, " of micro-batch %" PRIu32, p->micro);
}

static void add_evidence(state *s, const keel_detector_input *in, const place *p) {
    if (s->evidence_count == KEEL_EVIDENCE_MAX) return;
    char *line = s->evidence[s->evidence_count++];
    memset(line, 0, KEEL_EVIDENCE_BYTES);
    describe_place(in, p, line, KEEL_EVIDENCE_BYTES);
    if (p->kind == KIND_UNCOUNTED)
        keel_text_append(line, KEEL_EVIDENCE_BYTES,
                         ": NaN or Inf; the first replica, whose values are counted, has none");
    else
        keel_text_append(line, KEEL_EVIDENCE_BYTES, ": %" PRIu64 " NaN, %" PRIu64 " Inf",
                         count_at(in->row, KEEL_OP_nans, (uint32_t)p->site),
                         count_at(in->row, KEEL_OP_infs, (uint32_t)p->site));
}

// ---- the trouble ----

static const char *kind(double value) {
    return isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf";
}

static void describe(state *s) {
    char *text = s->clause;
    size_t size = sizeof s->clause;
    memset(text, 0, size);
    if (s->origin.site >= 0) {
        keel_text_append(text, size, "%s first seen in %s", kind_names[s->origin.kind], s->where);
        uint32_t later = s->sites_seen > 1 ? s->sites_seen - 1 : 0;
        const char *scalar = s->scalar_mask & 1 ? "loss" : s->scalar_mask >> GRAD_NORM & 1 ? "grad_norm" : "";
        if (later || scalar[0]) keel_text_append(text, size, "; %s", scalar);
        if (later)
            keel_text_append(text, size, "%s%" PRIu32 " later site%s", scalar[0] ? " and " : "", later,
                             later > 1 ? "s" : "");
        if (later || scalar[0]) keel_text_append(text, size, " followed");
    } else {
        int first = 0;
        while (first + 1 < VITAL && !(s->scalar_mask >> first & 1)) first++;
        keel_text_append(text, size, "%s is %s at step %" PRIu64 "; %s", vital[first], kind(s->bad[first]),
                         s->first_step, s->sampled ? "no observed tensor was non-finite" : "origin not sampled");
    }
    if (s->bad_records > 1)
        keel_text_append(text, size, "; %" PRIu64 " records up to step %" PRIu64, s->bad_records, s->last_step);
}

// Critical: the loss or a part of it, a forward pass, or parameters that are spoilt for good. A gradient that was
// caught in time is not.
static keel_severity judge(const state *s, const keel_detector_input *in, uint32_t bad, const bad_sites *sites) {
    bool spoilt =
        (bad & ~(1u << GRAD_NORM)) || sites->optimizer || (sites->count && sites->first[0].phase == KEEL_PHASE_FORWARD);
    return spoilt || s->in_a_row >= (uint32_t)in->params[P_IN_A_ROW] ? KEEL_CRITICAL : KEEL_WARNING;
}

// The search for the loss scale overflows by design, in gradients alone. A log without flags shows it as norms in its
// first records.
static bool is_search(const keel_detector_input *in, uint32_t bad, const bad_sites *sites) {
    if (bad & ~(1u << GRAD_NORM)) return false;
    if (in->row->step.flags & KEEL_STEP_OVERFLOW) return !(sites->count && sites->first[0].phase == KEEL_PHASE_FORWARD);
    return in->record < SEARCH && in->info->site_count == 0;
}

static void begin(state *s, const keel_detector_input *in) {
    bool again = s->episodes > 0 &&
                 (in->record - s->last_record <= (uint64_t)in->params[P_REPEAT] || s->episodes >= KNOWN_EPISODES);
    s->active = 1;
    s->episodes++;
    s->sites_seen = 0;
    if (again) return;
    s->key++;
    s->bad_records = s->skipped = 0;
    s->spoilt = 0;
    s->evidence_count = 0;
    s->scalar_mask = 0;
    s->severity = KEEL_INFO;
    s->first_step = in->row->step.step;
    s->origin = (place){.site = -1};
    s->sampled = any_collected(in->row, in->info->site_count);
}

// One finding per series that was hit; the first of them tells the story.
static void emit(state *s, const keel_detector_input *in, keel_findings *findings) {
    describe(s);
    keel_finding f = {.severity = s->severity,
                      .key = s->key,
                      .closed = !s->active,
                      .site = -1,
                      .rank = -1,
                      .skipped = s->skipped == s->bad_records && !s->spoilt ? s->skipped : 0,
                      .first_step = s->first_step,
                      .peak_step = s->first_step,
                      .last_step = s->last_step,
                      .value = NAN,
                      .expected = NAN,
                      .score = (double)s->bad_records,
                      .clause = s->clause,
                      .evidence = (const char(*)[KEEL_EVIDENCE_BYTES])s->evidence,
                      .evidence_count = s->evidence_count};
    if (s->origin.site >= 0) {
        keel_finding at_site = f;
        at_site.series = kind_series[s->origin.kind];
        at_site.site = keel_site_now(in->info, s->origin.site, s->origin_hash);
        at_site.rank = s->origin.rank != KEEL_RANK_NONE ? (int64_t)s->origin.rank : -1;
        keel_findings_add(findings, &at_site);
        f.clause = NULL;
        f.evidence_count = 0;
    }
    for (int i = 0; i < VITAL; i++) {
        if (!(s->scalar_mask >> i & 1)) continue;
        f.series = vital[i];
        f.value = s->bad[i];
        f.expected = s->finite[i];
        keel_findings_add(findings, &f);
        f.clause = NULL;
    }
}

static uint32_t read_scalars(state *s, const keel_row *row) {
    uint32_t bad = 0;
    for (int i = 0; i < VITAL; i++) {
        double v;
        if (!keel_row_scalar(row, s->vital[i], &v)) continue;
        if (isfinite(v)) {
            if (!s->active) s->finite[i] = v;
            continue;
        }
        bad |= 1u << i;
        s->bad[i] = v;
    }
    return bad;
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    uint32_t bad = read_scalars(s, in->row);
    bad_sites sites;
    find_bad_sites(in, &sites);
    if ((!bad && !sites.count) || is_search(in, bad, &sites)) {
        s->in_a_row = 0;
        if (!s->active) return;
        if (++s->quiet < QUIET) return;
        s->active = 0;
        memset(in->sites, 0, in->info->site_count);
        emit(s, in, findings);
        return;
    }
    if (!s->active) begin(s, in);
    s->quiet = 0;
    s->last_step = in->row->step.step;
    s->last_record = in->record;
    s->bad_records++;
    s->in_a_row++;
    if (in->row->step.flags & (KEEL_STEP_SKIPPED | KEEL_STEP_OVERFLOW)) s->skipped++;
    if (sites.optimizer) s->spoilt = 1;
    s->scalar_mask |= bad;
    s->sites_seen += sites.fresh;
    if (sites.count && s->origin.site < 0) {
        s->origin = sites.first[0];
        s->origin_hash = keel_site_hash(&in->info->sites[s->origin.site]);
        memset(s->where, 0, sizeof s->where);
        describe_place(in, &s->origin, s->where, sizeof s->where);
        for (uint32_t i = 0; i < sites.count; i++) add_evidence(s, in, &sites.first[i]);
    }
    keel_severity severity = judge(s, in, bad, &sites);
    if (severity > s->severity) s->severity = severity;
    emit(s, in, findings);
}

const keel_detector keel_detect_nonfinite = {
    .rule = "nonfinite",
    .doc = "any NaN or Inf; the first site in data-flow order, and its rank",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 8,
    .ops = 1u << KEEL_OP_nans | 1u << KEEL_OP_infs | 1u << KEEL_OP_rank_nonfinite | 1u << KEEL_OP_micro_nonfinite,
    .state_bytes = sizeof(state),
    .site_bytes = 1,
    .init = init,
    .start = start,
    .update = update,
};
