#include "train/model/head.h"

#include <math.h>

#include "train/tensor/ops.h"
#include "train/tensor/rounded_ops.h"

// Floats of the logits of a chunk: a long chunk spreads what the products read of the weights, and a bounded one keeps
// the memory of large batches and vocabularies small. The least number of rows keeps the products fast.
enum { CHUNK_FLOATS = 32 << 20, CHUNK_ROWS_MIN = 64 };

void keel_head_plan(const keel_context *context, keel_arena *arena, keel_head *head) {
    size_t most = CHUNK_FLOATS / context->vocab;
    if (most < CHUNK_ROWS_MIN) most = CHUNK_ROWS_MIN;
    size_t chunks = (context->rows + most - 1) / most;
    head->chunk_rows = (context->rows + chunks - 1) / chunks;
    head->logits = keel_arena_take(arena, head->chunk_rows * context->vocab);
    head->losses = keel_arena_take(arena, context->rows);
    head->dnormed = keel_arena_take(arena, context->rows * context->hidden);
}

// The same with every operation's result in PRECISION.
static double row_loss_rounded(keel_precision precision, float *logits, size_t vocab, uint32_t target, float scale) {
    keel_round(precision, logits, vocab);
    const float chosen = logits[target], greatest = keel_row_max(logits, vocab);
    const float total = keel_round_one(precision, (float)keel_row_exp_rounded(precision, logits, vocab, greatest));
    if (scale != 0) {
        for (size_t i = 0; i < vocab; i++) logits[i] /= total;
        keel_round(precision, logits, vocab);
        logits[target] = keel_round_one(precision, logits[target] - 1);
        keel_scale(logits, scale, vocab);
        keel_round(precision, logits, vocab);
    }
    const float log_total = keel_round_one(precision, greatest + keel_round_one(precision, logf(total)));
    return (double)keel_round_one(precision, log_total - chosen);
}

// Loss of a row; if SCALE is not 0 its logits become scale * (softmax - onehot).
static double row_loss(float *logits, size_t vocab, uint32_t target, float scale) {
    float greatest = keel_row_max(logits, vocab);
    double chosen = (double)logits[target];
    double total = keel_row_exp(logits, vocab, 1.0f, greatest);
    if (scale != 0) {
        keel_scale(logits, (float)((double)scale / total), vocab);
        logits[target] -= scale;
    }
    return (double)greatest + log(total) - chosen;
}

double keel_head_run(const keel_context *context, const keel_head *head, const float *normed, const uint32_t *tokens,
                     double scale) {
    size_t v = context->vocab, c = context->hidden, t = context->seq;
    bool gradients = context->grad != NULL;
    const keel_formats *formats = &context->formats;
    double sum = 0;
    for (size_t begin = 0; begin < context->rows; begin += head->chunk_rows) {
        size_t rest = context->rows - begin, rows = rest < head->chunk_rows ? rest : head->chunk_rows;
        keel_linear_forward(context, head->linear, rows, normed + begin * c, head->logits);
        keel_lap(context, KEEL_PART_HEAD);
        keel_tap_begin(head->tap);
        if (gradients) keel_tap_begin(head->grad_tap);
#pragma omp parallel num_threads(context->threads)
        {
            int thread = omp_get_thread_num();
#pragma omp for schedule(static)
            for (size_t r = 0; r < rows; r++) {
                size_t row = begin + r;
                float *logits = head->logits + r * v;
                uint32_t target = tokens[row / t * (t + 1) + row % t + 1];
                keel_round(formats->head, logits, v);
                keel_tap_piece(head->tap, thread, logits, row * v, v);
                const float factor = gradients ? (float)scale : 0.0f;
                head->losses[row] =
                    (float)(formats->loss == KEEL_FLOAT32 ? row_loss(logits, v, target, factor)
                                                          : row_loss_rounded(formats->loss, logits, v, target, factor));
                if (gradients) keel_tap_piece(head->grad_tap, thread, logits, row * v, v);
                if (gradients) keel_round(formats->head, logits, v);
            }
        }
        keel_tap_end(head->tap);
        keel_tap_end(head->grad_tap);
        for (size_t r = 0; r < rows; r++) sum += (double)head->losses[begin + r];
        keel_lap(context, KEEL_PART_LOSS);
        if (!gradients) continue;
        keel_linear_backward_input(context, head->linear, rows, head->logits, head->dnormed + begin * c);
        keel_linear_backward_weight(context, head->linear, rows, normed + begin * c, head->logits, begin > 0);
    }
    // The embedding's part of a tied gradient comes on top of the head's. Elsewhere it is rounded once it was looked
    // at.
    if (gradients && context->tied) keel_round(formats->head, context->grad + head->linear->weight, v * c);
    keel_lap(context, KEEL_PART_HEAD);
    return sum;
}
