#include "analyzers/run_facts.h"

#include <math.h>
#include <string.h>

void keel_run_facts_init(keel_run_facts *facts) {
    memset(facts, 0, sizeof *facts);
    facts->first_loss = NAN;
    keel_window_init(&facts->grad_norm, KEEL_SERIES_WARMUP);
}

static bool scalar(const keel_run_info *info, const keel_row *row, const char *name, double *value) {
    int32_t id = keel_run_scalar(info, name);
    if (id < 0 || !row->scalar_set[id] || !isfinite(row->scalars[id])) return false;
    *value = row->scalars[id];
    return true;
}

void keel_run_facts_add(keel_run_facts *facts, const keel_run_info *info, const keel_row *row) {
    double value;
    if (row->step.step == 1 && scalar(info, row, "loss", &value)) facts->first_loss = value;
    if (scalar(info, row, "lr", &value)) {
        facts->lr = value;
        if (value > facts->lr_peak) facts->lr_peak = value;
    }
    if (!(row->step.flags & KEEL_STEP_SKIPPED) && scalar(info, row, "grad_norm", &value) && value > 0)
        keel_window_push(&facts->grad_norm, facts->grad_norm_store, value);
    facts->records++;
}
