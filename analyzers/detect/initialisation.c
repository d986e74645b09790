// A run that begins with bad initial values. Judged once, at step 1 of a run that does not start from given weights.
//
// The first loss against ln(vocabulary), which a model that knows nothing has: one nat more, and a tenth, says that the
// first logits are far from equal. The gain of a layer's matrix, rms times the root of its inputs (Glorot and Bengio
// 2010: about 1 keeps the size of what goes through; with a standard deviation of 0.02 between 0.05 and 2): the median
// matrix above 2.5 or below 0.005, or one four times as large or as small as the median of the same matrix in other
// layers. Of one or two layers, which say nothing of one another, one sixteen times as large or as small as the median
// matrix: roots of inputs differ by two, and what is scaled down with depth by two again. Where the run's settings say
// what standard deviation the matrices begin with, one four times as large. At an embedding or a head rms alone: a
// hundred times that of the median matrix. Read from the norms of the weights.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/series.h"
#include "analyzers/site_trouble.h"

enum { P_NATS, P_GREAT, P_SMALL, P_PEERS, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_NATS] = {"nats", 1, 0.01, 1e6, "first loss above ln(vocabulary)"},
    [P_GREAT] = {"great", 2.5, 0.1, 1e6, "gain of the median matrix of the layers"},
    [P_SMALL] = {"small", 0.005, 0, 1, "the same, at least"},
    [P_PEERS] = {"peers", 4, 1.1, 1e6, "factor between a matrix and the same one in other layers"},
};

enum { MOST = 4096 };
#define OUTER 100.0 // rms of an embedding over that of the median matrix

typedef struct state {
    int32_t loss;
    uint32_t done;
    keel_site_trouble trouble;
} state;

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->loss = keel_run_scalar(info, "loss");
}

static double rms_of(const keel_detector_input *in, uint32_t site) {
    const double *norm = in->row->f64[KEEL_OP_norm], *rms = in->row->f64[KEEL_OP_rms];
    if (norm && norm[site] > 0) return norm[site] / sqrt((double)in->info->sites[site].numel);
    return rms && rms[site] > 0 ? rms[site] : NAN;
}

static double gain_of(const keel_detector_input *in, uint32_t site) {
    const keel_site_info *info = &in->info->sites[site];
    return rms_of(in, site) * sqrt((double)info->numel / (double)info->shape[0]);
}

// The name without its layer: what matrices of different layers share.
static const char *peer_name(const char *name) {
    const char *digits = strpbrk(name, "0123456789");
    return digits ? digits + strspn(digits, "0123456789") : name;
}

// Sorts; NaN of nothing.
static double median(double *values, uint32_t count) {
    if (count == 0) return NAN;
    keel_sort_doubles(values, count);
    return values[count / 2];
}

static bool is_matrix(const keel_site_info *info) {
    return info->ndim >= 2 && info->shape[0] > 0;
}

typedef struct matrices {
    uint32_t count;
    uint32_t site[MOST];
    double gain[MOST];
} matrices;

static void tell(const keel_detector_input *in, uint32_t site, double value, double expected, keel_odd_sites *odd) {
    keel_odd_sites_add(
        odd, in->index,
        &(keel_odd_site){
            .site = site, .op = "rms", .value = value, .expected = expected, .score = fabs(log(value / expected))});
}

// Whether what the weight began with, at least RMS less that of its first update, is far above the setting.
static bool exceeds_setting(const keel_detector_input *in, uint32_t weight, double rms) {
    const double range = in->settings->initializer_range;
    for (uint32_t i = 0; range > 0 && i < in->index->count[KEEL_UPDATE]; i++) {
        const uint32_t update = in->index->sites[KEEL_UPDATE][i];
        if (in->index->weight[update] == (int32_t)weight)
            return rms - rms_of(in, update) >= in->params[P_PEERS] * range; // NaN of an update of zeros: false
    }
    return false;
}

static void judge_peers(const keel_detector_input *in, const matrices *m, keel_odd_sites *odd) {
    enum { LEAST_PEERS = 3 };
    const double limit = log(in->params[P_PEERS]);
    double peers[MOST];
    memcpy(peers, m->gain, m->count * sizeof *peers);
    const double of_all = median(peers, m->count);
    for (uint32_t i = 0; i < m->count; i++) {
        const char *name = peer_name(in->info->sites[m->site[i]].name);
        uint32_t n = 0;
        for (uint32_t k = 0; k < m->count; k++)
            if (strcmp(peer_name(in->info->sites[m->site[k]].name), name) == 0) peers[n++] = m->gain[k];
        const bool alone = n < LEAST_PEERS;
        const double usual = alone ? of_all : median(peers, n), rms = rms_of(in, m->site[i]);
        if (exceeds_setting(in, m->site[i], rms) || fabs(log(m->gain[i] / usual)) >= (alone ? 2 : 1) * limit)
            tell(in, m->site[i], rms, rms * usual / m->gain[i], odd);
    }
}

static void judge_weights(const keel_detector_input *in, keel_odd_sites *odd) {
    matrices *m = &(matrices){.count = 0};
    for (uint32_t i = 0; i < in->index->count[KEEL_WEIGHT] && m->count < MOST; i++) {
        uint32_t site = in->index->sites[KEEL_WEIGHT][i];
        const keel_site_info *info = &in->info->sites[site];
        if (!is_matrix(info) || info->layer < 0) continue;
        double gain = gain_of(in, site);
        if (!(gain > 0)) continue;
        m->site[m->count] = site;
        m->gain[m->count++] = gain;
    }
    if (m->count == 0) return;
    judge_peers(in, m, odd);
    double values[MOST];
    memcpy(values, m->gain, m->count * sizeof *values);
    double usual = median(values, m->count);
    if (usual > in->params[P_GREAT] || usual < in->params[P_SMALL])
        for (uint32_t i = 0; i < m->count; i++)
            if (m->gain[i] >= usual) tell(in, m->site[i], rms_of(in, m->site[i]), rms_of(in, m->site[i]) / usual, odd);
    for (uint32_t i = 0; i < m->count; i++) values[i] = rms_of(in, m->site[i]);
    usual = median(values, m->count);
    for (uint32_t i = 0; i < in->index->count[KEEL_WEIGHT]; i++) {
        uint32_t site = in->index->sites[KEEL_WEIGHT][i];
        const keel_site_info *info = &in->info->sites[site];
        double rms = rms_of(in, site);
        if (is_matrix(info) && info->layer < 0 && rms >= OUTER * usual) tell(in, site, rms, usual, odd);
    }
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    if (s->done || in->settings->pretrained) return;
    s->done = 1;
    if (in->row->step.step != 1 || in->resumed || (in->row->step.flags & KEEL_STEP_DROPPED)) return;
    keel_odd_sites odd = {.count = 0};
    judge_weights(in, &odd);
    double loss, know_nothing = in->settings->vocab_size > 1 ? log(in->settings->vocab_size) : INFINITY;
    if (keel_row_scalar(in->row, s->loss, &loss) && isfinite(loss) &&
        loss - know_nothing >= fmax(in->params[P_NATS], 0.1 * know_nothing))
        keel_odd_sites_add(
            &odd, in->index,
            &(keel_odd_site){
                .site = -1, .op = "loss", .value = loss, .expected = know_nothing, .score = loss / know_nothing});
    if (odd.count == 0 || !keel_site_trouble_row(&s->trouble, in, &odd, KEEL_WARNING, "is")) return;
    keel_finding f = keel_site_trouble_finding(&s->trouble);
    if (f.site < 0 && odd.kept > 1) f.site = odd.first[1].site; // the loss stands before it, as what shows it
    f.closed = f.at_once = true;
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_initialisation = {
    .rule = "initialisation",
    .doc = "a run that begins with bad initial values",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 32,
    .ops = 1u << KEEL_OP_norm | 1u << KEEL_OP_rms,
    .state_bytes = sizeof(state),
    .start = start,
    .update = update,
};
