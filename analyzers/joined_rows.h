// Two runs side by side: their series matched by name, and their rows by step.
#ifndef KEEL_ANALYZERS_JOINED_ROWS_H
#define KEEL_ANALYZERS_JOINED_ROWS_H

#include "analyzers/run_rows.h"

typedef enum keel_run_side { KEEL_RUN_A, KEEL_RUN_B, KEEL_RUN_SIDES } keel_run_side;

// A scalar, or an op at a site.
typedef struct keel_joined_series {
    char name[KEEL_INCIDENT_SITE_BYTES]; // a scalar's, or a site's "NAME:QUANTITY"
    bool is_site;
    bool in[KEEL_RUN_SIDES];
    keel_site_info site; // A's if A has it
    // Place in a step's data flow; scalars have one too: the loss at the end of the forward phase, the gradient norm at
    // the end of the reduction.
    keel_phase phase;
    uint32_t order;
} keel_joined_series;

typedef enum keel_joined_state {
    KEEL_JOINED_ABSENT, // not collected at this step
    KEEL_JOINED_FINITE, // not measured, but its flags say that there is no NaN and no Inf
    KEEL_JOINED_VALUE,
} keel_joined_state;

typedef struct keel_joined_value {
    keel_joined_state state;
    double value; // of KEEL_JOINED_VALUE
} keel_joined_value;

typedef struct keel_joined {
    keel_op op; // at sites. A norm is NaN also where it was not measured and the flags say NaN or Inf
    const keel_joined_series *series;
    size_t count;
    uint64_t first_step, last_step; // what is walked over
    // While a common step is visited:
    uint64_t step;
    const keel_joined_value *values[KEEL_RUN_SIDES]; // [count]
    // After a walk:
    uint64_t common, only[KEEL_RUN_SIDES]; // steps
    struct keel_joiner *joiner;            // private
} keel_joined;

// Ops that the rows must give for a comparison of OP.
void keel_joined_ops(keel_op op, bool ops[KEEL_OP_COUNT]);
// The rows are borrowed and must outlive it.
keel_status keel_joined_open(keel_run_rows *a, keel_run_rows *b, keel_op op, uint64_t first_step, uint64_t last_step,
                             keel_joined *joined);
void keel_joined_close(keel_joined *joined); // zeros are fine

// Goes over the steps that both runs have, in order.
typedef keel_status keel_joined_visit(void *context, const keel_joined *joined);
keel_status keel_joined_walk(keel_joined *joined, keel_joined_visit *visit, void *context);

#endif
