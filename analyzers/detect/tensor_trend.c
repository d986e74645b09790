// The gradient of a layer rises over hundreds of steps: that of early layers often does so long before the loss.
//
// As a divergence, on the logarithm of a layer's gradient (analyzers/layer_gradients.h): the mean of 16 records (each
// held within e^2 of the mean before) against the lowest such mean of the last 512, a rise by ratio and by four times
// what the means usually change, twice in a row. In a tenth of the layers (two at least) a warning, in fewer a note.
// Weights, activations and the gradients of single small tensors grow in many a healthy training, so that whole layers
// are judged. The first 128 records do not count.
#include <math.h>

#include "analyzers/block_trend.h"
#include "analyzers/detect/detectors.h"
#include "analyzers/layer_gradients.h"
#include "analyzers/site_trouble.h"

enum { P_RATIO, P_WANDER, P_LAYERS, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_RATIO] = {"ratio", 3, 1.1, 1e6, "least rise of a layer's gradient"},
    [P_WANDER] = {"wander", 4, 0, 1e3, "and least rise in usual changes of the mean of 16"},
    [P_LAYERS] = {"layers", 0.1, 0, 1, "share of the layers from which it is a warning"},
};

enum { BLOCK = 16, SKIPPED_BLOCKS = 8, TWICE = 2 };

typedef struct state {
    keel_site_trouble trouble;
    keel_trend layers[KEEL_LAYERS_MAX];
} state;

// True if a block is complete.
static bool add(const keel_detector_input *in, keel_trend *t, const keel_layer_gradient *layer, keel_odd_sites *odd) {
    if (!isfinite(layer->log_rms) || !keel_trend_add(t, (float)layer->log_rms, BLOCK, 2)) return false;
    if (t->blocks <= SKIPPED_BLOCKS) return false;
    float low = keel_trend_low(t), rise = t->mean - low;
    bool high = rise >= (float)log(in->params[P_RATIO]) && rise >= (float)in->params[P_WANDER] * t->wander;
    t->high = (uint8_t)(high ? t->high + (t->high < UINT8_MAX) : 0);
    if (t->high >= TWICE)
        keel_odd_sites_add(odd, in->index,
                           &(keel_odd_site){.site = layer->site,
                                            .op = "rms of the layer",
                                            .value = exp((double)t->mean),
                                            .expected = exp((double)low),
                                            .score = (double)rise});
    keel_trend_keep(t);
    return true;
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    keel_layer_gradient layers[KEEL_LAYERS_MAX];
    if (in->row->step.flags & (KEEL_STEP_SKIPPED | KEEL_STEP_DROPPED)) return;
    uint32_t n = keel_layer_gradients_read(in, layers);
    keel_odd_sites odd = {.count = 0};
    bool complete = false;
    for (uint32_t l = 0; l < n; l++) complete |= add(in, &s->layers[l], &layers[l], &odd);
    if (!complete) return;
    bool many = odd.count >= fmax(fmin(2, n), in->params[P_LAYERS] * n);
    if (!keel_site_trouble_row(&s->trouble, in, &odd, many ? KEEL_WARNING : KEEL_INFO, "has slowly risen to")) return;
    keel_finding f = keel_site_trouble_finding(&s->trouble);
    f.series = "rms";
    keel_findings_add(findings, &f);
}

const keel_detector keel_detect_tensor_trend = {
    .rule = "tensor_trend",
    .doc = "the gradient of a layer rises over hundreds of steps",
    .params = params,
    .param_count = PARAMS,
    .link = KEEL_LINK_EVENT,
    .reach = 64,
    .ops = 1u << KEEL_OP_norm,
    .state_bytes = sizeof(state),
    .update = update,
};
