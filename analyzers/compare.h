// Where two runs part: the first step and series in the order of data flow, and how far each layer is apart.
#ifndef KEEL_ANALYZERS_COMPARE_H
#define KEEL_ANALYZERS_COMPARE_H

#include "analyzers/joined_rows.h"
#include "analyzers/parting.h"

typedef struct keel_compared {
    const keel_joined_series *series;
    bool judged;      // in both runs, and not of the machine, such as a time
    uint64_t records; // common ones
    keel_parting parting;
    double greatest; // difference
    uint64_t greatest_step;
} keel_compared;

// The tensors of one quantity in one layer, or of one kind of module outside the layers: their norms together, the root
// of the sum of squares over those that both runs measured at a step.
typedef struct keel_compared_group {
    keel_quantity quantity;
    int32_t layer;                       // -1: none
    char module[KEEL_MODULE_NAME_BYTES]; // of those without a layer
    uint32_t sites;
    keel_parting parting; // the groups part as series do
} keel_compared_group;

// Values of a series, or of a group, at some steps: [count] each.
typedef struct keel_compared_values {
    size_t index; // of the series or of the group
    size_t count;
    uint64_t *steps;
    double *a, *b;
} keel_compared_values;

typedef struct keel_compare_options {
    double tolerance; // at least 0
    uint64_t first_step, last_step;
    keel_op op;
    keel_left_out left_out[KEEL_RUN_SIDES]; // by the readers of the runs, for the report
} keel_compare_options;

typedef struct keel_comparison {
    keel_compare_options options;
    keel_joined joined;
    keel_compared *list; // every series of either run, in the order of data flow
    size_t count;
    size_t *partings; // indices of those that part: by step, then by data flow
    size_t parting_count;
    keel_compared_group *groups; // by quantity, then early layers first; only where the op is the norm
    size_t group_count;
    uint64_t first_step, last_step; // of the common steps
    // The first series to part with loss and grad_norm, around the step where it does; empty where none parts.
    keel_compared_values tables[3];
    size_t table_count;
    // Of each group at a few steps from the first to the last, the same for all of one quantity.
    keel_compared_values *group_values; // [group_count]
} keel_comparison;

// True if the values of OP are numbers of a rank or of a micro-batch: those are the same or not, and have no
// difference.
bool keel_op_is_label(keel_op op);

// OPTIONS->op is no label. The rows must outlive the comparison, and give what keel_joined_ops asks for.
// KEEL_ERR_NOT_FOUND if they have no step in common.
keel_status keel_compare(keel_run_rows *a, keel_run_rows *b, const keel_compare_options *options,
                         keel_comparison **comparison);
void keel_comparison_free(keel_comparison *comparison); // NULL is fine

#endif
