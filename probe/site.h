// A site is a named place and a quantity: where in a program, and what of it, is observed.
#ifndef KEEL_PROBE_SITE_H
#define KEEL_PROBE_SITE_H

#include <stdbool.h>
#include <stdint.h>

#include "probe/dtype.h"
#include "probe/status.h"

KEEL_C_BEGIN

typedef enum keel_quantity {
    KEEL_WEIGHT,          // parameter after the update
    KEEL_GRAD_UNREDUCED,  // before the data-parallel reduction
    KEEL_GRAD_REDUCED,    // after it, before clipping
    KEEL_ACTIVATION,      // forward output of a module
    KEEL_ACTIVATION_GRAD, // gradient of the loss by it
    KEEL_EXP_AVG,         // Adam m, after the update
    KEEL_EXP_AVG_SQ,      // Adam v, after the update
    KEEL_UPDATE,          // parameter after - before, learning rate and decay included; 0 on a skipped step
    KEEL_ADAM_DIRECTION,  // m_hat / (sqrt(v_hat) + eps)
    KEEL_COLLECTIVE_IN,
    KEEL_COLLECTIVE_OUT,
    KEEL_ADAM_RMS, // sqrt(mean(g^2 / max(v_hat, eps^2))) of a parameter, one number; g after clipping, v_hat with it
    KEEL_QUANTITY_COUNT
} keel_quantity;

typedef enum keel_layout {
    KEEL_LAYOUT_WHOLE,   // one rank holds it
    KEEL_LAYOUT_SHARD,   // parts of one tensor: merge to the whole
    KEEL_LAYOUT_REPLICA, // copies: count once, compared by checksum
    KEEL_LAYOUT_PARTIAL, // summands of a tensor: reported as what they are
    KEEL_LAYOUT_SAMPLE,  // activations split by batch: reported as what they are
    KEEL_LAYOUT_COUNT
} keel_layout;

typedef enum keel_phase {
    KEEL_PHASE_FORWARD,
    KEEL_PHASE_RECOMPUTE,
    KEEL_PHASE_BACKWARD,
    KEEL_PHASE_REDUCTION,
    KEEL_PHASE_OPTIMIZER,
    KEEL_PHASE_COUNT
} keel_phase;

KEEL_API const char *keel_quantity_name(keel_quantity quantity); // "weight", "grad_unreduced", ...
KEEL_API keel_quantity keel_quantity_find(const char *name);     // KEEL_QUANTITY_COUNT if there is none
KEEL_API const char *keel_layout_name(keel_layout layout);       // "whole", "shard", ...
KEEL_API const char *keel_phase_name(keel_phase phase);

enum { KEEL_MAX_DIMS = 4, KEEL_SITE_NAME_BYTES = 128, KEEL_MODULE_NAME_BYTES = 32 };

// What is known of a site when it is registered. Plain data: it is what the store's /sites holds, and what a reader
// gives back.
typedef struct keel_site_info {
    char name[KEEL_SITE_NAME_BYTES];     // "layers.3.attention.qkv.weight"
    char module[KEEL_MODULE_NAME_BYTES]; // module kind: "embedding", "attention", "mlp", "norm", "head", "block",
                                         // "all_reduce", ...
    uint32_t id;                         // index in the site table; set at registration
    keel_quantity quantity;
    keel_dtype dtype;
    keel_layout layout;
    keel_phase phase;
    uint32_t order; // place in the step's data flow within its phase: first has a meaning across ranks
    int32_t layer;  // from 0; -1 where it belongs to no layer
    int32_t stage;  // pipeline stage, from 0
    uint32_t ndim;
    uint64_t shape[KEEL_MAX_DIMS]; // of the whole tensor, however it is cut over ranks, per observation
    uint64_t numel;                // product of shape; 0 at registration: computed. Without a shape (NDIM 0) it is what
                                   // the caller says, 0 where that is not known: rules that need a size then keep still
    // Which of how many ranks that see the same values this one is, whatever the layout: of a REPLICA the copies of the
    // tensor, of a SHARD those of the same part of it, of a SAMPLE or PARTIAL those of the same sample or summand. Only
    // the first counts, and all are compared. 0 of 1 where nobody else has it; a count of 0 is taken for that.
    uint32_t replica_index;
    uint32_t replica_count;
} keel_site_info;

// The least of (micro-batch, phase, order) is first. < 0 if A comes before B in one micro-batch.
KEEL_API int keel_site_compare(const keel_site_info *a, const keel_site_info *b);
// Of its name and quantity, by which a site is the same in other tables.
KEEL_API uint64_t keel_site_hash(const keel_site_info *site);

KEEL_C_END

#endif
