#include "train/model/embedding.h"

#include <string.h>

#include "train/tensor/ops.h"

static uint32_t token_of(const keel_context *context, const uint32_t *tokens, size_t row) {
    return tokens[row / context->seq * (context->seq + 1) + row % context->seq];
}

// TO [n] = TOKEN + POSITION (NULL: none) in PRECISION.
static void look_up(keel_precision precision, float *to, const float *token, const float *position, size_t n) {
    if (!position) {
        keel_round_copy(precision, to, token, n);
    } else if (precision == KEEL_FLOAT32) {
        keel_add_to(to, token, position, n);
    } else {
        keel_round_copy(precision, to, token, n);
        for (size_t i = 0; i < n; i++) to[i] += keel_round_one(precision, position[i]);
        keel_round(precision, to, n);
    }
}

void keel_embedding_forward(const keel_context *context, const keel_embedding *embedding, const uint32_t *tokens,
                            const keel_join *first) {
    size_t c = context->hidden;
    const keel_formats *formats = &context->formats;
    const float *table = context->master + embedding->token;
    float *stream = first->state.stream;
    keel_tap_begin(embedding->tap);
    keel_tap_begin(first->norm_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->blocks; b++) {
            size_t begin = keel_block_begin_row(b), rows = keel_block_rows(context, b);
            for (size_t row = begin; row < begin + rows; row++) {
                const float *from = table + token_of(context, tokens, row) * c;
                const float *position = embedding->position == KEEL_NO_PARAM
                                            ? NULL
                                            : context->master + embedding->position + row % context->seq * c;
                look_up(formats->embedding, stream + row * c, from, position, c);
            }
            keel_round(formats->compute, stream + begin * c, rows * c);
            keel_tap_piece(embedding->tap, thread, stream + begin * c, begin * c, rows * c);
            keel_join_norm(context, first, thread, begin, rows);
        }
    }
    keel_tap_end(embedding->tap);
    keel_tap_end(first->norm_tap);
    keel_lap(context, KEEL_PART_EMBEDDING);
}

void keel_embedding_backward(const keel_context *context, const keel_embedding *embedding, const uint32_t *tokens,
                             const float *dstream) {
    size_t c = context->hidden;
    float *dtable = context->grad + embedding->token;
    const keel_precision precision = context->formats.embedding;
    enum { STRIP = 64 };
    // A strip of columns belongs to one thread, so that a token's rows are added in their order by any number of
    // threads.
    size_t strips = (c + STRIP - 1) / STRIP;
#pragma omp parallel num_threads(context->threads)
    {
        if (!keel_context_shares_table(context)) {
#pragma omp for schedule(static)
            for (size_t v = 0; v < context->vocab; v++) memset(dtable + v * c, 0, c * sizeof(float));
        }
#pragma omp for schedule(static)
        for (size_t s = 0; s < strips; s++) {
            size_t begin = s * STRIP, width = c - begin < STRIP ? c - begin : STRIP;
            for (size_t row = 0; row < context->rows; row++) {
                float *sum = dtable + token_of(context, tokens, row) * c + begin;
                keel_add(sum, dstream + row * c + begin, width);
                keel_round(precision, sum, width);
            }
        }
        if (embedding->position != KEEL_NO_PARAM) {
            float *dposition = context->grad + embedding->position;
#pragma omp for schedule(static)
            for (size_t t = 0; t < context->positions; t++) {
                memset(dposition + t * c, 0, c * sizeof(float));
                for (size_t row = t; t < context->seq && row < context->rows; row += context->seq) {
                    keel_add(dposition + t * c, dstream + row * c, c);
                    keel_round(precision, dposition + t * c, c);
                }
            }
        }
    }
    keel_lap(context, KEEL_PART_EMBEDDING);
}
