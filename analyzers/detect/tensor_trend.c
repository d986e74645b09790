// The gradient of a layer rises over hundreds of steps: that of early layers often does so long before the loss.
//
// As a divergence, on the logarithm of a layer's gradient (analyzers/layer_gradients.h): the mean of 16 records (each
// held within e^2 of the mean before) against the lowest such mean of the last 512, a rise by ratio and by four times
// what the means usually change, twice in a row. In a tenth of the layers (two at least) a warning, in fewer a note.
// A note as well while the model learns, the mean loss having fallen by a twentieth since that lowest mean: gradients
// of healthy runs rise severalfold over their first thousand steps, while the loss falls fast, and where no loss tells.
// Weights, activations and the gradients of single small tensors grow in many a healthy training, so that whole layers
// are judged. The first 128 records do not count.
#include <math.h>

#include "analyzers/block_trend.h"
#include "analyzers/detect/detectors.h"
#include "analyzers/layer_gradients.h"
#include "analyzers/site_trouble.h"

enum { P_RATIO, P_WANDER, P_LAYERS, P_LEARNS, PARAMS };
static const keel_param_info params[PARAMS] = {
    [P_RATIO] = {"ratio", 3, 1.1, 1e6, "least rise of a layer's gradient"},
    [P_WANDER] = {"wander", 4, 0, 1e3, "and least rise in usual changes of the mean of 16"},
    [P_LAYERS] = {"layers", 0.1, 0, 1, "share of the layers from which it is a warning"},
    [P_LEARNS] = {"learns", 0.05, 0, 0.99, "share by which the loss has fallen meanwhile that makes it a note"},
};

enum { BLOCK = 16, SKIPPED_BLOCKS = 8, TWICE = 2 };

typedef struct state {
    int32_t loss_scalar, reserved;
    keel_site_trouble trouble;
    keel_trend loss; // of its logarithm
    keel_trend layers[KEEL_LAYERS_MAX];
} state;

static void start(void *memory, const keel_run_info *info) {
    state *s = memory;
    s->loss_scalar = keel_run_scalar(info, "loss");
}

// How much the logarithm of the loss has fallen since it was AGO blocks before; INFINITY where nothing tells.
static float fall_of_loss(const keel_trend *loss, uint32_t ago) {
    if (ago == 0 || ago > loss->filled) return INFINITY;
    return loss->ring[(loss->at + KEEL_TREND_BLOCKS - ago) % KEEL_TREND_BLOCKS] - loss->mean;
}

// True if a block is complete. *LEARNS: false where a layer is high though the loss has not fallen.
static bool add(const keel_detector_input *in, const keel_trend *loss, keel_trend *t, const keel_layer_gradient *layer,
                keel_odd_sites *odd, bool *learns) {
    if (!isfinite(layer->log_rms) || !keel_trend_add(t, (float)layer->log_rms, BLOCK, 2)) return false;
    if (t->blocks <= SKIPPED_BLOCKS) return false;
    uint32_t ago = 0;
    float low = keel_trend_low(t, &ago), rise = t->mean - low;
    bool high = rise >= (float)log(in->params[P_RATIO]) && rise >= (float)in->params[P_WANDER] * t->wander;
    t->high = (uint8_t)(high ? t->high + (t->high < UINT8_MAX) : 0);
    if (high && fall_of_loss(loss, ago) < -(float)log1p(-in->params[P_LEARNS])) *learns = false;
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
    bool complete = false, learns = true;
    double loss;
    const bool loss_block = n && keel_row_scalar(in->row, s->loss_scalar, &loss) && isfinite(loss) && loss > 0 &&
                            keel_trend_add(&s->loss, (float)log(loss), BLOCK, 2);
    for (uint32_t l = 0; l < n; l++) complete |= add(in, &s->loss, &s->layers[l], &layers[l], &odd, &learns);
    if (loss_block) keel_trend_keep(&s->loss);
    if (!complete) return;
    bool many = odd.count >= fmax(fmin(2, n), in->params[P_LAYERS] * n);
    if (!keel_site_trouble_row(&s->trouble, in, &odd, many && !learns ? KEEL_WARNING : KEEL_INFO,
                               "has slowly risen to"))
        return;
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
    .start = start,
    .update = update,
};
