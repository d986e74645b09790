// The trainer's `faults` section: disturbances on purpose, for experiments and tests. docs/faults.md describes each.
#ifndef KEEL_CONFIGS_FAULT_CONFIG_H
#define KEEL_CONFIGS_FAULT_CONFIG_H

#include "configs/yaml.h"

typedef enum keel_fault_kind {
    KEEL_FAULT_NAN,           // an element of a tensor becomes NaN
    KEEL_FAULT_GARBAGE_BATCH, // tokens at random
    KEEL_FAULT_CORRUPT_DATA,  // the same, from a step on
    KEEL_FAULT_REPEAT_BATCH,  // the loader stands still
    KEEL_FAULT_LEARNING_RATE, // times a factor
    KEEL_FAULT_BIT_FLIP,      // one bit of one weight
    KEEL_FAULT_REPLICA_SKIP,  // a rank does not make an update that the others make
    KEEL_FAULT_STRAGGLER,     // a rank takes longer
    KEEL_FAULT_MEMORY_LEAK,   // a rank's memory grows
    KEEL_FAULT_DEAD_LAYER,    // an activation and its gradient are zero
    KEEL_FAULT_FAKE_FLOAT32,  // a parameter is rounded to bfloat16 with every update
    KEEL_FAULT_INITIAL_SCALE, // a parameter's initial values times a factor
    KEEL_FAULT_QUERY_GROWTH,  // a layer's query weights times a factor in every step
    KEEL_FAULT_KIND_COUNT
} keel_fault_kind;

typedef struct keel_fault_config {
    int kind;                   // keel_fault_kind
    int64_t step;               // first step, from 1
    int64_t steps;              // how many steps
    int64_t rank;               // -1: all
    char *site;                 // of a tensor or a parameter
    char *quantity;             // nan: the site's (weight, activation, activation_grad, grad_unreduced, ...)
    int64_t index;              // nan, bit_flip: element; 0
    int64_t bit;                // bit_flip: 0 the least of the mantissa, 23 to 30 the exponent, 31 the sign
    int64_t layer;              // query_growth
    int64_t bytes;              // memory_leak: per step
    double factor;              // learning_rate, initial_scale, query_growth
    double share;               // garbage_batch, corrupt_data: of the tokens; 1
    double seconds;             // straggler: per step
    const keel_yaml_node *node; // the entry, for error messages
} keel_fault_config;

// LIST is the value of key `faults`; NULL or null: none. A key that a kind needs and that is missing, or that it does
// not know, is KEEL_ERR_CONFIG. malloc'ed, free with keel_fault_configs_free; NULL where there are none. Refers to the
// document of LIST.
keel_status keel_fault_configs_read(const keel_yaml_node *list, keel_fault_config **faults, size_t *count);
void keel_fault_configs_free(keel_fault_config *faults, size_t count);

// True while STEP is one of the fault's.
bool keel_fault_due(const keel_fault_config *fault, uint64_t step);
// True if it is RANK's.
bool keel_fault_concerns(const keel_fault_config *fault, uint32_t rank);

#endif
