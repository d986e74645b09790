// What every layer knows of the model it is part of.
#ifndef KEEL_TRAIN_MODEL_CONTEXT_H
#define KEEL_TRAIN_MODEL_CONTEXT_H

#include <omp.h>

#include "train/clock.h"
#include "train/model/model.h"
#include "train/model/stage.h"
#include "train/model/tap.h"
#include "train/tensor/arena.h"
#include "train/tensor/precision.h"

// Rows that are handled together while they are in cache, and whose share of a sum over rows is formed together: sums
// do not depend on the number of threads.
enum { KEEL_BLOCK_ROWS = 16 };
// A join has weight and bias of a norm, and the bias of the branch that joins.
enum { KEEL_JOIN_VECTORS = 3 };

// Where the time goes. Laps follow one another: each is charged to the part that has just ended.
typedef struct keel_clock {
    double last; // seconds
    double seconds[KEEL_PART_COUNT];
} keel_clock;

// What is computed in which format (train_config.h). Every activation, and every gradient by one, is rounded to the
// format of what takes it by the pass that makes it, so that the inputs of a product always have its format.
typedef struct keel_formats {
    keel_precision compute, softmax, norm, loss, value, embedding, head;
} keel_formats;

// Sizes are this rank's: heads, intermediate and vocabulary are shared out over the tensor ranks.
typedef struct keel_context {
    const keel_mesh *mesh;
    bool gpt2; // else LLaMA
    bool tied; // the head takes the embedding's table
    keel_stage stage;
    size_t batch, seq, rows; // B, T, N = B T
    // Of the N rows this rank has these of the residual stream: all, or its share under sequence parallel.
    size_t own_first, own_rows, own_blocks;
    size_t hidden;          // C
    size_t heads, kv_heads; // H and H_k
    size_t head_size;       // D
    size_t core_size;       // H D
    size_t qkv_size;        // (H + 2 H_k) D
    size_t intermediate;    // F
    size_t up_size;         // F, or 2 F (gate and up side by side)
    size_t vocab;           // V: of the tables' rows this rank has [first_token, first_token + V)
    size_t first_token;
    size_t layers;    // of the whole model
    size_t positions; // rows of the learned position table
    keel_moe_config moe;
    size_t experts, chosen; // E, 0: every layer has an mlp; K of them for each token
    size_t local_experts;   // of this rank: E / ep
    size_t capacity;        // assignments of a sequence that an expert takes; 0: all
    float norm_eps;
    double theta; // RoPE base

    keel_clock *clock;
    int threads;
    size_t blocks; // of KEEL_BLOCK_ROWS rows
    keel_formats formats;
    float *master;          // flat: the weights
    float *weights;         // flat: rounded to the formats of their products; MASTER itself where all is float32
    float *grad;            // flat, borrowed from the caller of a pass
    double scale;           // that the sum of the tokens' losses is multiplied by for it
    keel_grad_ready *ready; // who wants to know of gradients, within a backward pass; NULL: nobody
    void *ready_context;
    float *partials;      // [3, blocks, max(C, qkv_size, up_size)]: sums of blocks of rows
    size_t sum_width;     // max(C, qkv_size, up_size)
    float *vectors;       // [KEEL_JOIN_VECTORS, C]: gradients of a join's vectors, this rank's part of them
    keel_status *failure; // of the first collective that failed in a pass
} keel_context;

// Sizes from CONFIG, defaults filled in; KEEL_ERR_CONFIG if they do not fit together. MESH is borrowed. The
// stage is the whole model.
keel_status keel_context_init(const keel_model_config *config, size_t batch, int threads, const keel_mesh *mesh,
                              keel_context *context);
void keel_context_plan(keel_context *context, keel_arena *arena);

// OUT [n] = sum over blocks of PARTIAL [blocks, n], in their order.
void keel_context_sum_partials(const keel_context *context, const float *partial, size_t blocks, size_t n, float *out);
// The K-th area for partial sums, [blocks, n], n <= sum_width; not cleared.
static inline float *keel_context_partial(const keel_context *context, size_t k) {
    return context->partials + k * context->blocks * context->sum_width;
}

static inline void keel_lap_begin(const keel_context *context) {
    context->clock->last = keel_seconds();
}
static inline void keel_lap(const keel_context *context, keel_part part) {
    double last = context->clock->last;
    keel_lap_begin(context);
    context->clock->seconds[part] += context->clock->last - last;
}

// The gradients from BEGIN on are final. The receiver's time is not the model's.
static inline void keel_context_tell(const keel_context *context, size_t begin) {
    if (!context->ready) return;
    context->ready(context->ready_context, begin);
    keel_lap_begin(context);
}
// The last stage's tied table is a copy: its gradient has a place of its own.
static inline bool keel_context_shares_table(const keel_context *context) {
    return context->tied && context->stage.count == 1;
}

static inline size_t keel_block_begin_row(size_t block) {
    return block * KEEL_BLOCK_ROWS;
}
static inline size_t keel_rows_of_block(size_t rows, size_t block) {
    size_t rest = rows - keel_block_begin_row(block);
    return rest < KEEL_BLOCK_ROWS ? rest : KEEL_BLOCK_ROWS;
}
static inline size_t keel_block_rows(const keel_context *context, size_t block) {
    return keel_rows_of_block(context->rows, block);
}
// Of this rank's rows of the stream.
static inline size_t keel_own_block_rows(const keel_context *context, size_t block) {
    return keel_rows_of_block(context->own_rows, block);
}
// They within ALL [N, C].
static inline float *keel_context_own(const keel_context *context, float *all) {
    return all + context->own_first * context->hidden;
}

#endif
