// Gradients that fade with depth: those of the first layers are a thousandth of those of the last, and stay so.
//
// A layer's gradient is the root mean square over its matrices (analyzers/layer_gradients.h). The geometric mean of the
// first third of the layers is compared with that of the last third (Glorot and Bengio 2010 show the fall as what makes
// deep nets stand still). Embeddings and the head belong to no layer, vectors and experts are left out, and so are
// layers all of whose gradients are zero: dead_unit tells of those. Not in the first 64 records, in which
// zero-initialised branches have no gradient.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "analyzers/detect/detectors.h"
#include "analyzers/excursion.h"
#include "analyzers/layer_gradients.h"

enum { P_RATIO, P_RECORDS, P_EARLY, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_RATIO] = {"ratio", 1000, 2, 1e12, "gradient of the last layers over that of the first"},
    [P_RECORDS] = {"records", 20, 1, 1e6, "for so many records"},
    [P_EARLY] = {"early_records", 64, 0, 1e6, "records at the start that are not judged"},
};

enum { LEAST_LAYERS = 3 };

typedef struct state {
    uint32_t records, reserved;
    keel_excursion excursion;
} state;

// Mean log rms of layers [FROM, TO) that have a gradient; NaN: none.
static double level(const keel_layer_gradient *layers, uint32_t from, uint32_t to) {
    double sum = 0, count = 0;
    for (uint32_t l = from; l < to; l++) {
        if (!isfinite(layers[l].log_rms)) continue;
        sum += layers[l].log_rms;
        count++;
    }
    return count > 0 ? sum / count : NAN;
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    keel_layer_gradient layers[KEEL_LAYERS_MAX];
    if (in->index->layers < LEAST_LAYERS || (in->row->step.flags & (KEEL_STEP_SKIPPED | KEEL_STEP_DROPPED))) return;
    uint32_t n = keel_layer_gradients_read(in, layers);
    if (n == 0) return;
    double first = level(layers, 0, n / 3), last = level(layers, n - n / 3, n);
    if (!isfinite(first) || !isfinite(last)) return;
    s->records++;
    double ratio = exp(last - first);
    bool outside = ratio >= in->params[P_RATIO] && s->records > in->params[P_EARLY];
    const keel_excursion_record record = {.step = in->row->step.step,
                                          .value = ratio,
                                          .expected = 1,
                                          .score = ratio,
                                          .outside = outside,
                                          .alarm = outside && s->excursion.records + 1 >= in->params[P_RECORDS]};
    if (!keel_excursion_add(&s->excursion, &record)) return;
    char clause[KEEL_CLAUSE_BYTES];
    snprintf(clause, sizeof clause,
             "gradients fade with depth: those of the first %" PRIu32
             " layer%s are %.3g times smaller than those of the "
             "last at step %" PRIu64,
             n / 3, n / 3 > 1 ? "s" : "", s->excursion.value, s->excursion.peak_step);
    keel_finding f = keel_excursion_finding(&s->excursion);
    f.series = "norm";
    f.severity = KEEL_WARNING;
    f.site = layers[0].site;
    f.clause = clause;
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_vanishing_gradient = {
    .rule = "vanishing_gradient",
    .doc = "gradients fade with depth",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 16,
    .ops = 1u << KEEL_OP_norm,
    .state_bytes = sizeof(state),
    .update = update,
};
