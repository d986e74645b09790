#include "tools/import/import_record.h"

#include <math.h>

static const char *const names[KEEL_IMPORT_STANDARD] = {
    [KEEL_IMPORT_LOSS] = "loss",
    [KEEL_IMPORT_GRAD_NORM] = "grad_norm",
    [KEEL_IMPORT_LR] = "lr",
    [KEEL_IMPORT_LOSS_SCALE] = "loss_scale",
    [KEEL_IMPORT_PERPLEXITY] = "perplexity",
    [KEEL_IMPORT_AUX_LOSS] = "aux_loss",
    [KEEL_IMPORT_Z_LOSS] = "z_loss",
    [KEEL_IMPORT_EVAL_LOSS] = "eval_loss",
    [KEEL_IMPORT_EVAL_PERPLEXITY] = "eval_perplexity",
    [KEEL_IMPORT_SKIPPED] = "skipped_iterations",
};

const char *keel_import_field_name(keel_import_field field) {
    return names[field];
}

void keel_import_record_clear(keel_import_record *record) {
    record->set = 0;
    record->has_step = false;
    record->step = 0;
    record->epoch = (double)NAN;
    record->flags = 0;
    record->rank = -1;
    record->base = 0;
}

void keel_import_record_set(keel_import_record *record, keel_import_field field, double value) {
    switch (field) {
    case KEEL_IMPORT_LR:
    case KEEL_IMPORT_LOSS_SCALE:
    case KEEL_IMPORT_PERPLEXITY:
    case KEEL_IMPORT_EVAL_PERPLEXITY:
        if (!isfinite(value)) return;
        break;
    case KEEL_IMPORT_EVAL_LOSS:
        if (isnan(value)) return;
        break;
    case KEEL_IMPORT_SKIPPED:
        if (!(isfinite(value) && value > 0)) return;
        break;
    default:
        break;
    }
    record->values[field] = value;
    record->set |= KEEL_IMPORT_BIT(field);
}
