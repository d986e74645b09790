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
    {"nonfinite", "non-finite tensor",
     "go back to the last checkpoint before the first step; if it happens again there, look at this tensor's input and "
     "dtype, else suspect that rank's hardware"},
    {"nonfinite", NULL,
     "go back to the last checkpoint before the first step and run on with non-finite flags on every site, so that the "
     "origin is seen"},
    {"", "learning rate jump",
     "compare the learning rate schedule with what was meant, and go back to a checkpoint before the jump"},
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
