#include "analyzers/report/advice.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct advice {
    const char *rule;
    const char *cause; // NULL: any
    const char *text;
} advice;

// The first row that fits.
static const advice table[] = {
    {"", "loss scale too large", "lower the loss scale, or make it dynamic"},
    {"", "learning rate jump",
     "compare the learning rate schedule with what was meant, and go back to a checkpoint before the jump"},
    {"", "bit flip in a weight",
     "take the weights from a healthy replica or from a checkpoint before the first step, and test that rank's memory"},
    {"", "replica out of step",
     "go back to a checkpoint before the first step; look for an update that one rank made or skipped alone"},
    {"", "softmax in low precision", "compute the softmax of attention in float32"},
    {"", "fake float32", "look for a cast of this tensor on its way into the optimizer, and keep it in float32"},
    {"", "gradients reduced in low precision", "sum gradients over ranks in float32"},
    {"", "fp16 underflow", "raise the loss scale, or make it dynamic; bfloat16 needs none"},
    {"", "dead layer", "look at what this layer gets and at its weights; go back to a checkpoint from when it lived"},
    {"", "bad initialisation", "start again with a standard deviation near 0.02, less for residual projections"},
    {"", "Adam epsilon too large", "lower Adam's epsilon well below the root of its second moment, to 1e-8"},
    {"", "beta2 too large", "lower beta2 (0.95 is usual), or clip the updates of this parameter"},
    {"", "attention logit growth", "normalise queries and keys, or lower the learning rate"},
    {"", "repeated batch", "look at the position of the data loader: it serves the same batch again"},
    {"", "corrupt data on one rank", "look at that rank's shard of the data; if it is sound, at its hardware"},
    {"", "no warm-up", "warm the learning rate up over some hundreds of steps"},
    {"", "clip threshold above the gradient norm", "lower the clip threshold to a few times the usual gradient norm"},
    {"", "learning rate too high", "lower the learning rate, and go back to a checkpoint before the first step"},
    {"", "vanishing gradient", "look at normalisation, initial scale and residual paths of the first layers"},
    {"", "straggler", "look at that rank's host: other load, heat, a slow disk or link"},
    {"", "memory leak", "look at what that rank keeps from step to step, before its host runs out of memory"},
    {"", "router collapse", "raise the weight of the balance loss, or start the router again"},
    {"", "experts drop tokens", "raise the capacity factor, or the weight of the balance loss"},
    {"", "dead rank",
     "look at the end of that rank's own output and at its host's kernel log (out of memory, hardware), then resume "
     "from the "
     "last checkpoint"},
    {"", "hang", "look at the stacks of all ranks: the one that is not in the collective is what the others wait for"},
    {"nonfinite", "non-finite tensor",
     "go back to the last checkpoint before the first step; if it happens again there, look at this tensor's input and "
     "dtype, else suspect that rank's hardware"},
    {"nonfinite", NULL,
     "go back to the last checkpoint before the first step and run on with non-finite flags on every site, so that the "
     "origin is seen"},
    {"loss_divergence", NULL,
     "stop; go back to a checkpoint before the first step, and lower the learning rate or clip harder before going on"},
    {"loss_spike", "bad batch", "look at the batch of the first step; if it is bad, skip it"},
    {"loss_spike", NULL,
     "if the loss does not come back within some tens of steps, go back to a checkpoint before the first step and skip "
     "its batches"},
    {"grad_norm_spike", NULL,
     "watch the loss of the next steps; look at the batch of the first step if this comes again"},
    {"loss_scale_collapse", NULL,
     "look for overflowing activations or gradients; bfloat16 or a lower learning rate are the usual ways out"},
    {"resume_discontinuity", NULL,
     "compare what the checkpoint holds with the run before it: optimizer state, schedule and data position must go "
     "on"},
    {"data_order", NULL, "look at how the data is shuffled between epochs, and whether batches are served twice"},
    {"clip_ineffective", NULL, "lower the clip threshold to a few times the usual gradient norm"},
    {"clip_constant", NULL, "raise the clip threshold or lower the learning rate: clipping now sets the step size"},
    {"plateau", NULL, "lower the learning rate, or take the run as done"},
    {"lr_jump", NULL, "compare the learning rate schedule with what was meant"},
    {"precision_policy", NULL, "compute it in float32 if the loss shows more noise than it did there"},
    {"tensor_trend", NULL,
     "compare with a run in float32, and lower the learning rate or clip harder before the loss follows"},
    {"tensor_jump", NULL, "look at what this tensor is made from at the first step; a single outlier may pass"},
    {"rank_outlier", NULL, "look at that rank's batch of the first step"},
    {"fp16_overflow", NULL, "watch these activations: they end at 65504 in float16, which bfloat16 does not"},
};

static const char *from_table(const keel_incident *incident) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].rule[0] && strcmp(table[i].rule, incident->rule) != 0) continue;
        if (table[i].cause && strcmp(table[i].cause, incident->cause) != 0) continue;
        return table[i].text;
    }
    return "look at the series around the first step";
}

void keel_advice(const keel_incident *incident, const keel_incident_extra *extra, char text[KEEL_ADVICE_BYTES]) {
    if (incident->open || extra->skipped == 0) {
        snprintf(text, KEEL_ADVICE_BYTES, "%s", from_table(incident));
        return;
    }
    bool one = extra->skipped == 1;
    snprintf(text, KEEL_ADVICE_BYTES,
             "%" PRIu64
             " update%s skipped and training went on, so that there is nothing to undo; look at the batch of "
             "the first step%s%s%s",
             extra->skipped, one ? " was" : "s were", incident->site[0] ? " and at the input and dtype of " : "",
             incident->site, incident->site[0] ? "" : ", and set non-finite flags on every site if it comes again");
}
