// The way of rows between the ranks that share out the experts of a layer: from the rank of their token to that of
// their expert, and back. Each rank knows the rows it sends, sorted by expert; what it gets comes sorted by the rank it
// is from, and is sorted by expert here.
#ifndef KEEL_TRAIN_MODEL_EXCHANGE_H
#define KEEL_TRAIN_MODEL_EXCHANGE_H

#include "train/model/context.h"

typedef struct keel_exchange_ways { // of a layer; zeros with one rank
    keel_collective *counts;        // of the rows to come
    // Of tokens to experts, of what these give back, and of the gradients on the same ways.
    keel_collective *there, *back, *there_grad, *back_grad;
} keel_exchange_ways;

typedef struct keel_exchange { // of a layer's micro-batch; zeros with one rank
    const keel_exchange_ways *ways;
    uint32_t *sent;        // [ranks] rows for each rank
    uint32_t *got;         // [ranks] rows from each rank
    uint32_t *from;        // [ranks, L] of these, for each of this rank's experts
    uint32_t *counts_here; // [L] rows of each of them in all
} keel_exchange;

typedef struct keel_exchange_scratch { // of all layers; NULL with one rank
    float *rows;                       // [most rows of experts, C] as they come and go
    double *counts;                    // [2, E]
} keel_exchange_scratch;

size_t keel_exchange_most_rows(const keel_context *context); // that this rank's experts may have
void keel_exchange_plan(const keel_context *context, keel_arena *arena, keel_exchange *exchange);
void keel_exchange_plan_scratch(const keel_context *context, keel_arena *arena, keel_exchange_scratch *scratch);
// Declares the ways of layer INDEX; none with one rank. To be called before the places are registered, so that where
// one stands at a place it comes first.
keel_status keel_exchange_open(const keel_context *context, keel_collectives *collectives, size_t index,
                               keel_exchange_ways *ways);

// COUNTS [E]: rows that this rank sends to each expert. All ranks learn what comes to them.
keel_status keel_exchange_begin(const keel_context *context, const keel_exchange *exchange,
                                const keel_exchange_scratch *scratch, const uint32_t *counts);
// By BY (THERE, THERE_GRAD): ROWS [.., C], sorted by expert, become EXPERT_ROWS [.., C] of this rank's experts.
keel_status keel_exchange_there(const keel_context *context, const keel_exchange *exchange,
                                const keel_exchange_scratch *scratch, keel_collective *by, float *rows,
                                float *expert_rows);
// By BY (BACK, BACK_GRAD), the other way.
keel_status keel_exchange_back(const keel_context *context, const keel_exchange *exchange,
                               const keel_exchange_scratch *scratch, keel_collective *by, float *expert_rows,
                               float *rows);

#endif
