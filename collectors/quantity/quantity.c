#include "collectors/quantity/quantity.h"

#include <string.h>

#define LAYOUT(name) (1u << KEEL_LAYOUT_##name)
#define PHASE(name)  (1u << KEEL_PHASE_##name)
#define OP(name)     (UINT64_C(1) << KEEL_OP_##name)

enum {
    STATE_LAYOUTS = LAYOUT(WHOLE) | LAYOUT(SHARD) | LAYOUT(REPLICA), // a tensor that exists once, however it is kept
    ANY_LAYOUT = STATE_LAYOUTS | LAYOUT(PARTIAL) | LAYOUT(SAMPLE),
    ANY_PHASE = (1u << KEEL_PHASE_COUNT) - 1,
};

static const keel_quantity_info quantities[KEEL_QUANTITY_COUNT] = {
    [KEEL_WEIGHT] = {"weight", "parameter after the update", STATE_LAYOUTS, PHASE(OPTIMIZER), .half = true},
    [KEEL_GRAD_UNREDUCED] = {"gradient", "gradient before the data-parallel reduction",
                             LAYOUT(WHOLE) | LAYOUT(SHARD) | LAYOUT(PARTIAL), PHASE(BACKWARD), .per_micro = true,
                             .half = true},
    [KEEL_GRAD_REDUCED] = {"gradient", "gradient after the reduction, before clipping", STATE_LAYOUTS,
                           PHASE(BACKWARD) | PHASE(REDUCTION) | PHASE(OPTIMIZER), .half = true},
    [KEEL_ACTIVATION] = {"activation", "forward output of a module", ANY_LAYOUT, PHASE(FORWARD) | PHASE(RECOMPUTE),
                         .per_micro = true, .half = true},
    [KEEL_ACTIVATION_GRAD] = {"activation", "gradient of the loss by a module's output", ANY_LAYOUT, PHASE(BACKWARD),
                              .per_micro = true, .half = true},
    // The optimizer's own tensors stay in float32 where the rest is fp16.
    [KEEL_EXP_AVG] = {"optimizer", "first moment after the update", STATE_LAYOUTS, PHASE(OPTIMIZER), .half = false},
    [KEEL_EXP_AVG_SQ] = {"optimizer", "second moment after the update", STATE_LAYOUTS, PHASE(OPTIMIZER), .half = false},
    [KEEL_UPDATE] = {"optimizer", "parameter after the update less before it", STATE_LAYOUTS, PHASE(OPTIMIZER),
                     .half = false},
    [KEEL_ADAM_DIRECTION] = {"optimizer", "m_hat / (sqrt(v_hat) + eps)", STATE_LAYOUTS, PHASE(OPTIMIZER),
                             .half = false},
    [KEEL_COLLECTIVE_IN] = {"collective", "what a rank gives to a collective", ANY_LAYOUT, ANY_PHASE, .per_micro = true,
                            .half = true},
    [KEEL_COLLECTIVE_OUT] = {"collective", "what a rank gets from a collective", ANY_LAYOUT, ANY_PHASE,
                             .per_micro = true, .half = true},
    [KEEL_ADAM_RMS] = {"optimizer", "sqrt(mean(g^2 / max(v_hat, eps^2))) of a parameter", STATE_LAYOUTS,
                       PHASE(OPTIMIZER), .half = false},
};

static const uint64_t precision_ops = OP(not_bf16) | OP(not_fp16) | OP(not_tf32);
static const uint64_t rank_ops = OP(norm_low) | OP(norm_high) | OP(rank_low) | OP(rank_high) | OP(log_norm_mean) |
                                 OP(log_norm_std) | OP(replica_residual);

static const char *const known_names[] = {
#define KEEL_OP(name, type, need, doc) #name,
#include "probe/stats_ops.def"
#undef KEEL_OP
    "precision", "rank", "all"};

const keel_quantity_info *keel_quantity_get(keel_quantity quantity) {
    return &quantities[quantity];
}

keel_status keel_quantity_check(const keel_site_info *site) {
    const char *quantity = keel_quantity_name(site->quantity);
    const keel_quantity_info *info = &quantities[site->quantity];
    if (!(info->layouts & 1u << site->layout))
        return keel_fail(KEEL_ERR_USAGE, "site %s: quantity %s cannot have layout %s", site->name, quantity,
                         keel_layout_name(site->layout));
    if (!(info->phases & 1u << site->phase))
        return keel_fail(KEEL_ERR_USAGE, "site %s: quantity %s does not arise in phase %s", site->name, quantity,
                         keel_phase_name(site->phase));
    return KEEL_OK;
}

static uint64_t ops_that_need(uint32_t fields) {
    uint64_t ops = 0;
    for (int op = 0; op < KEEL_OP_COUNT; op++)
        if (keel_op_get((keel_op)op)->fields & fields) ops |= UINT64_C(1) << op;
    return ops;
}

uint64_t keel_ops_flags(void) {
    return ops_that_need(KEEL_FIELDS_FLAGS);
}

uint64_t keel_ops_of_one_rank(void) {
    const uint64_t of_a_merge = rank_ops | OP(replica_rank) | OP(replica_peer) | OP(rank_nonfinite);
    return (UINT64_MAX >> (64 - KEEL_OP_COUNT)) & ~of_a_merge;
}

uint64_t keel_ops_named(const char *name, keel_quantity quantity) {
    if (strcmp(name, "precision") == 0) return precision_ops;
    if (strcmp(name, "rank") == 0) return rank_ops;
    if (strcmp(name, "all") == 0) {
        const uint64_t every = UINT64_MAX >> (64 - KEEL_OP_COUNT);
        return quantities[quantity].half ? every : every & ~ops_that_need(KEEL_FIELDS_HALF);
    }
    const keel_op op = keel_op_find(name);
    return op == KEEL_OP_COUNT ? 0 : UINT64_C(1) << op;
}

const char *const *keel_ops_known(size_t *count) {
    *count = sizeof known_names / sizeof *known_names;
    return known_names;
}

uint32_t keel_ops_fields(uint64_t ops) {
    uint32_t fields = KEEL_FIELDS_FLAGS;
    for (int op = 0; op < KEEL_OP_COUNT; op++)
        if (ops >> op & 1) fields |= keel_op_get((keel_op)op)->fields;
    return fields;
}
