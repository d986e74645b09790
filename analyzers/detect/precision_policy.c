// A part of the model computed in a dtype that is known to be too weak for it, as the run's settings say; where they
// say nothing, a collective of gradients whose own dtype is short.
//
// Sums over many values lose what is below 2^-8 (bfloat16) or 2^-11 (float16) of the sum so far, and float16 ends at
// 65,504 and 2^-24: softmax and cross entropy (differences of exponentials: a logit of 89 or 12 is infinite without
// care, and the log of a probability of 2^-8 is rounded away), normalisation (a sum of squares), gradients summed over
// ranks, and gradients in float16 without a loss scale (Micikevicius et al. 2018, "Mixed precision training"; OPT, PaLM
// and BLOOM kept all of these in float32) are a warning. The last layer, the embedding and the product of attention's
// probabilities and values, which many runs have in bfloat16 with care, are a note. Told once, with the first record.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "analyzers/detect/detectors.h"

typedef struct policy {
    const char *key; // of the settings; the finding's series
    const char *what, *why;
    keel_severity severity;
} policy;

enum { SOFTMAX, NORM, LOSS, GRAD_REDUCE, SCALE, HEAD, VALUE, EMBEDDING, KINDS };
static const policy policies[KINDS] = {
    [SOFTMAX] = {"softmax_compute_dtype", "softmax of attention", "exponentials and their sum need float32",
                 KEEL_WARNING},
    [NORM] = {"layernorm_compute_dtype", "normalisation", "a sum of squares needs float32", KEEL_WARNING},
    [LOSS] = {"loss_compute_dtype", "cross entropy", "the logarithm of a sum of exponentials needs float32",
              KEEL_WARNING},
    [GRAD_REDUCE] = {"grad_reduce_dtype", "sum of gradients over ranks",
                     "small gradients vanish beside large ones of other ranks", KEEL_WARNING},
    [SCALE] = {"scale_sense", "backward pass", "without a loss scale small gradients become zero", KEEL_WARNING},
    [HEAD] = {"head_compute_dtype", "last layer", "its logits are rounded before the loss", KEEL_INFO},
    [VALUE] = {"attention_value_dtype", "product of probabilities and values", "small probabilities are rounded away",
               KEEL_INFO},
    [EMBEDDING] = {"embedding_compute_dtype", "embedding", "the residual stream begins with rounded values", KEEL_INFO},
};

typedef struct state {
    uint32_t said; // bit per kind
    uint32_t reserved;
} state;

static keel_computed short_gradients(const keel_detector_input *in) {
    for (uint32_t i = 0; i < in->index->count[KEEL_COLLECTIVE_IN]; i++) {
        const keel_site_info *site = &in->info->sites[in->index->sites[KEEL_COLLECTIVE_IN][i]];
        if (!strstr(site->name, "grad")) continue;
        if (site->dtype == KEEL_F16) return KEEL_COMPUTED_FLOAT16;
        if (site->dtype == KEEL_BF16) return KEEL_COMPUTED_BFLOAT16;
    }
    return KEEL_COMPUTED_FLOAT32;
}

static void read_kinds(const keel_detector_input *in, keel_computed kinds[KINDS]) {
    const keel_run_settings *s = in->settings;
    kinds[SOFTMAX] = s->softmax;
    kinds[NORM] = s->norm;
    kinds[LOSS] = s->loss;
    kinds[GRAD_REDUCE] = s->known ? s->grad_reduce : short_gradients(in);
    kinds[SCALE] = s->scaling == KEEL_SCALING_NONE ? s->compute : KEEL_COMPUTED_FLOAT32;
    kinds[HEAD] = s->head;
    kinds[VALUE] = s->value;
    kinds[EMBEDDING] = s->embedding;
    if (in->info->world_size == 1) kinds[GRAD_REDUCE] = KEEL_COMPUTED_FLOAT32;
    if (kinds[SCALE] == KEEL_COMPUTED_BFLOAT16) kinds[SCALE] = KEEL_COMPUTED_FLOAT32; // has the range of float32
}

static void update(void *memory, const keel_detector_input *in, keel_findings *findings) {
    state *s = memory;
    keel_computed kinds[KINDS];
    if (s->said == (1u << KINDS) - 1) return;
    read_kinds(in, kinds);
    for (int k = 0; k < KINDS; k++) {
        if (s->said >> k & 1) continue;
        s->said |= 1u << k;
        if (kinds[k] == KEEL_COMPUTED_FLOAT32) continue;
        char clause[KEEL_CLAUSE_BYTES];
        snprintf(clause, sizeof clause, "%s in %s (%s): %s", policies[k].what, keel_computed_name(kinds[k]),
                 policies[k].key, policies[k].why);
        uint64_t step = in->row->step.step;
        keel_finding f = {.series = policies[k].key,
                          .severity = policies[k].severity,
                          .key = (uint32_t)k + 1,
                          .closed = true,
                          .at_once = true,
                          .site = -1,
                          .rank = -1,
                          .first_step = step,
                          .peak_step = step,
                          .last_step = step,
                          .value = kinds[k] == KEEL_COMPUTED_FLOAT16 ? 11 : 8, // bits of the mantissa
                          .expected = 24,
                          .clause = clause};
        keel_findings_add(findings, &f);
    }
}

const keel_detector keel_detect_precision_policy = {
    .rule = "precision_policy",
    .doc = "a part of the model computed in a dtype that is too weak for it",
    .link = KEEL_LINK_ALONE,
    .reach = 0,
    .state_bytes = sizeof(state),
    .update = update,
};
