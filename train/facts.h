// What a run is, key by key: kept in checkpoints, and compared when one is taken up again.
#ifndef KEEL_TRAIN_FACTS_H
#define KEEL_TRAIN_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "configs/train_config.h"

enum { KEEL_FACT_COUNT = 80, KEEL_FACT_BYTES = 64 };

typedef struct keel_fact {
    const char *key;             // as in the YAML: "model_config.hidden_size"; or what keys make together
    char value[KEEL_FACT_BYTES]; // numbers exactly
    bool required;      // a checkpoint with another value does not fit; otherwise the run goes on, but not bit for bit
    const char *absent; // what a file without the key holds; NULL: nothing is known
} keel_fact;

typedef struct keel_facts {
    keel_fact list[KEEL_FACT_COUNT];
    size_t count;
} keel_facts;

// DATA: the identity of the sequences. RANKS: of data parallelism.
void keel_facts_of(const keel_train_config *config, const char *data, uint32_t ranks, keel_facts *facts);

#endif
