// One record of a log: the step it is about and the scalars it gives.
#ifndef KEEL_TOOLS_IMPORT_IMPORT_RECORD_H
#define KEEL_TOOLS_IMPORT_IMPORT_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "probe/frame.h"

// Where a value of a log goes: a scalar (its bit in a set, its place among the values), or something about the record.
typedef enum keel_import_field {
    KEEL_IMPORT_LOSS,
    KEEL_IMPORT_GRAD_NORM,
    KEEL_IMPORT_LR,
    KEEL_IMPORT_LOSS_SCALE,
    KEEL_IMPORT_PERPLEXITY,
    KEEL_IMPORT_AUX_LOSS,
    KEEL_IMPORT_Z_LOSS,
    KEEL_IMPORT_EVAL_LOSS,
    KEEL_IMPORT_EVAL_PERPLEXITY,
    KEEL_IMPORT_SKIPPED, // skipped_iterations: updates not applied since the record before, where the record stands for
                         // several
    KEEL_IMPORT_STANDARD,
    KEEL_IMPORT_SCALARS = 64, // from STANDARD on: those a user named
    KEEL_IMPORT_STEP = KEEL_IMPORT_SCALARS,
    KEEL_IMPORT_EPOCH,
    KEEL_IMPORT_PHASE,   // text: "train", "val", ...
    KEEL_IMPORT_SUMMARY, // its presence marks a summary of the whole run, which is no record
    KEEL_IMPORT_NOTHING,
} keel_import_field;

#define KEEL_IMPORT_BIT(field) (UINT64_C(1) << (field))

// Scalars that are measured after a step on other data: they say nothing of the step's own health.
#define KEEL_IMPORT_EVALUATION (KEEL_IMPORT_BIT(KEEL_IMPORT_EVAL_LOSS) | KEEL_IMPORT_BIT(KEEL_IMPORT_EVAL_PERPLEXITY))

typedef struct keel_import_record {
    uint64_t set; // bit field: values[field] holds a value
    double values[KEEL_IMPORT_SCALARS];
    bool has_step; // false: the log does not say; counted from 1
    uint64_t step;
    double epoch;   // as printed, whole or broken; NaN: the log does not say
    uint32_t flags; // KEEL_STEP_*
    int32_t rank;   // who printed it; -1: unknown
    uint64_t base;  // what of STEP was added to the printed one, where steps begin anew in every epoch;
                    // import_assembly.c sets it
} keel_import_record;

void keel_import_record_clear(keel_import_record *record);
// Sets a scalar. Where a value that is not finite can only mean that there is none (a learning rate, an overflowed
// perplexity, a validation that did not happen) the scalar stays unset.
void keel_import_record_set(keel_import_record *record, keel_import_field field, double value);
const char *keel_import_field_name(keel_import_field field); // of a standard scalar: "loss", ...

#endif
