#include "train/model/head.h"

#include "train/model/cross_entropy.h"

// Floats of the logits of a chunk: a long chunk spreads what the products read of the weights, and a bounded one keeps
// the memory of large batches and vocabularies small. The least number of rows keeps the products fast.
enum { CHUNK_FLOATS = 32 << 20, CHUNK_ROWS_MIN = 64 };

void keel_head_size(const keel_context *context, keel_head *head) {
    size_t most = CHUNK_FLOATS / context->vocab;
    if (most < CHUNK_ROWS_MIN) most = CHUNK_ROWS_MIN;
    size_t chunks = (context->rows + most - 1) / most;
    head->chunk_rows = (context->rows + chunks - 1) / chunks;
}

void keel_head_plan(const keel_context *context, keel_arena *arena, keel_head *head) {
    const size_t sums = sizeof *head->sums / (sizeof(float));
    head->logits = keel_arena_take(arena, head->chunk_rows * context->vocab);
    head->losses = keel_arena_take(arena, context->rows);
    head->dnormed = keel_arena_take(arena, context->rows * context->hidden);
    head->greatest = keel_arena_take(arena, head->chunk_rows);
    head->sums = (void *)keel_arena_take(arena, head->chunk_rows * sums);
}

// A pass over the rows of a chunk takes these steps: one for all, or one for each, where ranks complete what lies
// between.
enum { BEGIN = 1, SUM = 2, END = 4 };

typedef struct chunk {
    size_t begin, rows;
    const uint32_t *tokens;
    float scale; // 0: no gradients
} chunk;

static size_t target_of(const keel_context *context, const uint32_t *tokens, size_t row) {
    const size_t t = context->seq, token = tokens[row / t * (t + 1) + row % t + 1],
                 index = token - context->first_token;
    return token >= context->first_token && index < context->vocab ? index : KEEL_NO_TARGET;
}

static void run_rows(const keel_context *context, const keel_head *head, const chunk *k, int steps) {
    const size_t v = context->vocab;
    const keel_formats *formats = &context->formats;
    if (steps & BEGIN) keel_tap_begin(head->tap);
    if (steps & END && k->scale != 0) keel_tap_begin(head->grad_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t r = 0; r < k->rows; r++) {
            const size_t at = (k->begin + r) * v;
            const keel_row_loss row = {formats->loss, head->logits + r * v, v,
                                       target_of(context, k->tokens, k->begin + r)};
            double *sums = head->sums[r];
            if (steps & BEGIN) {
                keel_round(formats->head, row.logits, v);
                keel_tap_piece(head->tap, thread, row.logits, at, v);
                keel_row_loss_begin(&row, &head->greatest[r], &sums[1]);
            }
            if (steps & SUM) keel_row_loss_sum(&row, head->greatest[r], &sums[0]);
            if (!(steps & END)) continue;
            head->losses[k->begin + r] = (float)keel_row_loss_end(&row, head->greatest[r], sums[0], sums[1], k->scale);
            if (k->scale == 0) continue;
            keel_tap_piece(head->grad_tap, thread, row.logits, at, v);
            keel_round(formats->head, row.logits, v);
        }
    }
    if (steps & BEGIN) keel_tap_end(head->tap);
    if (steps & END) keel_tap_end(head->grad_tap);
}

static void run_chunk(const keel_context *context, const keel_head *head, const chunk *k) {
    const keel_crossings *x = head->crossings;
    if (!x->greatest) {
        run_rows(context, head, k, BEGIN | SUM | END);
        return;
    }
    run_rows(context, head, k, BEGIN);
    keel_cross_first(context, x->greatest, head->greatest, k->rows);
    run_rows(context, head, k, SUM);
    keel_cross_first(context, x->total, head->sums, 2 * k->rows);
    run_rows(context, head, k, END);
}

double keel_head_run(const keel_context *context, const keel_head *head, float *normed, const uint32_t *tokens,
                     double scale) {
    size_t v = context->vocab, c = context->hidden;
    bool gradients = context->grad != NULL;
    const keel_formats *formats = &context->formats;
    double sum = 0;
    keel_cross(context, head->crossings->head.forward, normed);
    for (size_t begin = 0; begin < context->rows; begin += head->chunk_rows) {
        size_t rest = context->rows - begin, rows = rest < head->chunk_rows ? rest : head->chunk_rows;
        keel_linear_forward(context, head->linear, rows, normed + begin * c, head->logits);
        keel_lap(context, KEEL_PART_HEAD);
        run_chunk(context, head, &(chunk){begin, rows, tokens, gradients ? (float)scale : 0.0f});
        for (size_t r = 0; r < rows; r++) sum += (double)head->losses[begin + r];
        keel_lap(context, KEEL_PART_LOSS);
        if (!gradients) continue;
        keel_linear_backward_input(context, head->linear, rows, head->logits, head->dnormed + begin * c);
        keel_linear_backward_weight(context, head->linear, rows, normed + begin * c, head->logits, begin > 0);
    }
    if (gradients) keel_cross(context, head->crossings->head.backward, head->dnormed);
    // The embedding's part of a tied gradient comes on top of the head's. Elsewhere it is rounded once it was looked
    // at.
    if (gradients && context->tied) keel_round(formats->head, context->grad + head->linear->weight, v * c);
    keel_lap(context, KEEL_PART_HEAD);
    return sum;
}
