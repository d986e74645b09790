#include "analyzers/layer_gradients.h"

#include <math.h>
#include <string.h>

static bool is_judged(const keel_site_info *site) {
    return site->ndim >= 2 && site->layer >= 0 && site->layer < KEEL_LAYERS_MAX && !strstr(site->module, "expert");
}

typedef struct sums {
    double squares, numel;
} sums;

static bool collect(const keel_detector_input *in, keel_quantity quantity, sums *layers, keel_layer_gradient *out) {
    const double *norm = in->row->f64[KEEL_OP_norm];
    bool found = false;
    for (uint32_t i = 0; i < in->index->count[quantity]; i++) {
        uint32_t id = in->index->sites[quantity][i];
        const keel_site_info *site = &in->info->sites[id];
        if (!(norm[id] >= 0) || !is_judged(site)) continue;
        layers[site->layer].squares += norm[id] * norm[id];
        layers[site->layer].numel += (double)site->numel;
        if (out[site->layer].site < 0) out[site->layer].site = id;
        found = true;
    }
    return found;
}

uint32_t keel_layer_gradients_read(const keel_detector_input *in, keel_layer_gradient layers[KEEL_LAYERS_MAX]) {
    uint32_t n = in->index->layers < KEEL_LAYERS_MAX ? in->index->layers : KEEL_LAYERS_MAX;
    sums of[KEEL_LAYERS_MAX];
    if (n == 0 || !in->row->f64[KEEL_OP_norm]) return 0;
    memset(of, 0, n * sizeof *of);
    for (uint32_t l = 0; l < n; l++) layers[l] = (keel_layer_gradient){NAN, -1};
    if (!collect(in, KEEL_GRAD_REDUCED, of, layers) && !collect(in, KEEL_GRAD_UNREDUCED, of, layers)) return 0;
    for (uint32_t l = 0; l < n; l++)
        if (of[l].squares > 0) layers[l].log_rms = 0.5 * log(of[l].squares / of[l].numel);
    return n;
}
