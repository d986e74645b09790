// The gradient of each layer of a row: the root mean square over the layer's matrices.
#ifndef KEEL_ANALYZERS_LAYER_GRADIENTS_H
#define KEEL_ANALYZERS_LAYER_GRADIENTS_H

#include "analyzers/detector.h"

enum { KEEL_LAYERS_MAX = 512 };

typedef struct keel_layer_gradient {
    double log_rms; // of all matrices of the layer; NaN: none has a gradient that is kept and not zero
    int64_t site;   // the first of them in the order of the data flow; -1: none
} keel_layer_gradient;

// Reduced gradients; where those are not kept, unreduced ones. Vectors and experts are left out. Returns how many
// layers were filled in, from 0: at most KEEL_LAYERS_MAX; 0 where the row has no gradients.
uint32_t keel_layer_gradients_read(const keel_detector_input *input, keel_layer_gradient layers[KEEL_LAYERS_MAX]);

#endif
