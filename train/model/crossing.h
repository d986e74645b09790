// Where the ranks of a tensor group meet in a pass through the model.
//
// Products come in pairs: the first shares out its outputs, the second its inputs, and what lies between them stays on
// its rank. The sums of the second are completed over the ranks, and on the way back those of the first (Shoeybi et al.
// 2019). Between the pairs each rank has the stream whole, or, with sequence parallel, its share of the rows: then sums
// are shared out as they are completed, and rows are gathered before a pair (Korthikanti et al. 2022).
#ifndef KEEL_TRAIN_MODEL_CROSSING_H
#define KEEL_TRAIN_MODEL_CROSSING_H

#include "train/model/context.h"

typedef struct keel_crossing {
    keel_collective *forward, *backward; // NULL: nothing is to be done
} keel_crossing;

typedef struct keel_layer_crossings {
    keel_crossing qkv, up;   // into the first product of a pair
    keel_crossing out, down; // out of the second
    // With sequence parallel: gradients of a norm and of the bias that joins before it, each rank's from its rows.
    keel_collective *norm1, *norm2;
    keel_collective *weights; // with experts: gradients by the weights of a token's choices
} keel_layer_crossings;

typedef struct keel_crossings {
    keel_crossing embedding; // out of the table
    keel_layer_crossings *layers;
    keel_crossing head;                // into the logits
    keel_collective *last;             // as norm1, of the last join of the stage
    keel_collective *greatest, *total; // of the rows of a chunk of logits
} keel_crossings;

// Declares them: none with one tensor rank. To be called before the places are registered, so that where a collective
// stands at a place it comes first. CHUNK_ROWS: of the head.
keel_status keel_crossings_open(const keel_context *context, keel_collectives *collectives, size_t chunk_rows,
                                keel_crossings *crossings);
void keel_crossings_close(keel_crossings *crossings);

// COLLECTIVE (NULL: nothing is done) over DATA. The context keeps the first failure, after which nothing more is sent.
void keel_cross(const keel_context *context, keel_collective *collective, void *data);
void keel_cross_first(const keel_context *context, keel_collective *collective, void *data, size_t count);
// What is to be gathered: OWN [own_rows, C] becomes the rank's rows of ALL [N, C], and the others' come beside it. OWN
// itself where nothing is to be done.
float *keel_cross_rows(const keel_context *context, keel_collective *collective, float *own, float *all);

#endif
