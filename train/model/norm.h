// Where a branch joins the residual stream and the next norm is taken, both while a block of rows is in cache.
#ifndef KEEL_TRAIN_MODEL_NORM_H
#define KEEL_TRAIN_MODEL_NORM_H

#include "train/model/context.h"
#include "train/model/linear.h"

typedef struct keel_norm {
    size_t weight, bias; // offsets; bias KEEL_NO_PARAM: RMSNorm
} keel_norm;

// What a join keeps for the backward pass. R: the rank's own rows of the stream, N but under sequence parallel.
typedef struct keel_join_state {
    float *stream; // [R, C] the residual stream after the branch: what the norm sees; with FROM_BELOW, or without a
                   // norm, it is another stage's too, and set for every pass
    float *normed; // [N, C], where only the rank's own rows are set here
    float *mean;   // [R]; LayerNorm only
    float *rstd;   // [R]
} keel_join_state;

typedef struct keel_join {
    const keel_norm *norm;     // NULL: it is the next stage's
    keel_precision taken_as;   // the format of what takes the norm's output
    const keel_linear *branch; // the layer whose output joins: its bias is added here; NULL: none joins here
    bool from_below;           // the stream comes from the stage before, which sees and rounds the gradient by it
    keel_join_state state;
    keel_collective *vectors; // completes the gradients of the norm's parameters and the branch's bias; NULL: they are
    keel_tap *branch_tap, *branch_grad_tap; // of the branch's output
    keel_tap *stream_tap, *stream_grad_tap; // of the stream after it; NULL inside a block
    keel_tap *norm_tap, *norm_grad_tap;
} keel_join;
void keel_join_plan(const keel_context *context, keel_arena *arena, keel_join *join);
// All but the stream.
void keel_join_plan_norm(const keel_context *context, keel_arena *arena, keel_join_state *state);

// branch += bias; stream = STREAM_IN + branch; normed = norm(stream), of the rank's own rows. BRANCH [N, C] is the
// product without its bias; STREAM_IN [R, C].
void keel_join_forward(const keel_context *context, const keel_join *join, float *branch, const float *stream_in);
// The norm alone, of a stream that is there.
void keel_join_enter(const keel_context *context, const keel_join *join);
// The same over rows [BEGIN, BEGIN + ROWS) of the rank's own, by the calling thread; taps are open.
void keel_join_norm(const keel_context *context, const keel_join *join, int thread, size_t begin, size_t rows);

// DNORMED [N, C]: gradient by the norm's output, if there is one. DSTREAM [R, C] += gradient by the stream (= if FIRST,
// where nothing has come in from above), which is the gradient by the branch's output as well. Gradients of the norm's
// parameters and the branch's bias.
void keel_join_backward(const keel_context *context, const keel_join *join, float *dnormed, float *dstream, bool first);

#endif
