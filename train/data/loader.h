// Batches of token sequences, the same for the same (seed, epoch, position), disjoint over data-parallel ranks.
//
// The run consumes one endless order of samples, counted from 0. Sample p belongs to epoch e = p / count and is
// sequence perm(seed, e)[p mod count] of the data. A micro-batch of all ranks is the next dp * B samples, rank r taking
// the r-th B of them; so neither accumulation nor the number of ranks changes which samples a step of a given size
// consumes, and the position alone is the loader's state.
#ifndef KEEL_TRAIN_DATA_LOADER_H
#define KEEL_TRAIN_DATA_LOADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

// What batches are drawn from: shards, or anything else.
typedef struct keel_sequences {
    void *context;
    uint64_t count;
    const char *identity; // what the data is, for checkpoints; lives as long as the context
    // Sequence INDEX into TOKENS [T + 1].
    keel_status (*read)(void *context, uint64_t index, uint32_t *tokens);
    void (*close)(void *context); // NULL: nothing to do
} keel_sequences;

// The shards of a folder as sequences of T + 1 tokens, each starting at the last token of the one before it, so that
// every token but the first is a target once. KEEL_ERR_CONFIG if a token may not be below VOCAB_SIZE.
keel_status keel_sequences_open_shards(const char *folder, size_t seq_length, uint64_t vocab_size,
                                       keel_sequences *sequences);
void keel_sequences_close(keel_sequences *sequences);

typedef struct keel_loader_plan {
    const keel_sequences *sequences; // borrowed, outlives the loader
    size_t seq_length;               // T
    size_t batch_size;               // B: sequences of one micro-batch on one rank
    size_t accumulation;             // micro-batches of a step
    uint32_t dp_rank, dp_size;
    uint64_t seed;
    bool shuffle; // false: sequences in their order, the same in every epoch
} keel_loader_plan;

typedef struct keel_loader {
    keel_loader_plan plan;
    uint64_t position; // samples consumed so far, by all ranks: the state
} keel_loader;

// KEEL_ERR_CONFIG, with the numbers, if the data is too little for one step.
keel_status keel_loader_init(const keel_loader_plan *plan, keel_loader *loader);

// The next micro-batch of this rank into TOKENS [B, T + 1]; the position moves on by dp * B, also on failure.
keel_status keel_loader_next(keel_loader *loader, uint32_t *tokens);
// Number of the next micro-batch of all ranks, from 0.
uint64_t keel_loader_batch(const keel_loader *loader);
// True if the next step holds the first sample of an epoch.
bool keel_loader_at_epoch(const keel_loader *loader);

// The sequence that is sample POSITION. A permutation of 0 .. count - 1 in each epoch, made by a Feistel network over
// the next power of four, which is walked until it falls below COUNT (Black and Rogaway 2002): no memory, any place at
// once.
uint64_t keel_loader_sequence(uint64_t seed, uint64_t count, uint64_t position);

#endif
