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

// Whether this rank has the token's row of the table: *INDEX of it.
static bool has_token(const keel_context *context, const uint32_t *tokens, size_t row, size_t *index) {
    const size_t token = token_of(context, tokens, row);
    *index = token - context->first_token;
    return token >= context->first_token && *index < context->vocab;
}

// ALL [N, C]: the rows of the table that this rank has, zeros for the others.
static void look_up_own(const keel_context *context, const float *table, const uint32_t *tokens, float *all) {
    const size_t c = context->hidden;
#pragma omp parallel for schedule(static) num_threads(context->threads)
    for (size_t row = 0; row < context->rows; row++) {
        size_t index;
        if (has_token(context, tokens, row, &index))
            memcpy(all + row * c, table + index * c, c * sizeof(float));
        else
            memset(all + row * c, 0, c * sizeof(float));
    }
}

void keel_embedding_forward(const keel_context *context, const keel_embedding *embedding, const uint32_t *tokens,
                            const keel_join *first) {
    size_t c = context->hidden;
    const keel_formats *formats = &context->formats;
    const float *table = context->master + embedding->token;
    float *stream = first->state.stream;
    keel_collective *sum = embedding->crossing->forward;
    if (sum) look_up_own(context, table, tokens, embedding->all);
    keel_cross(context, sum, embedding->all);
    keel_tap_begin(embedding->tap);
    keel_tap_begin(first->norm_tap);
#pragma omp parallel num_threads(context->threads)
    {
        int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (size_t b = 0; b < context->own_blocks; b++) {
            size_t begin = keel_block_begin_row(b), rows = keel_own_block_rows(context, b);
            for (size_t own = begin; own < begin + rows; own++) {
                const size_t row = context->own_first + own;
                const float *from = sum ? embedding->all + row * c : table + token_of(context, tokens, row) * c;
                const float *position = embedding->position == KEEL_NO_PARAM
                                            ? NULL
                                            : context->master + embedding->position + row % context->seq * c;
                look_up(formats->embedding, stream + own * c, from, position, c);
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
                             float *dstream) {
    size_t c = context->hidden;
    const float *dall = keel_cross_rows(context, embedding->crossing->backward, dstream, embedding->all);
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
                size_t index;
                if (!has_token(context, tokens, row, &index)) continue;
                float *sum = dtable + index * c + begin;
                keel_add(sum, dall + row * c + begin, width);
                keel_round(precision, sum, width);
            }
        }
        if (embedding->position != KEEL_NO_PARAM) {
            float *dposition = context->grad + embedding->position;
#pragma omp for schedule(static)
            for (size_t t = 0; t < context->positions; t++) {
                memset(dposition + t * c, 0, c * sizeof(float));
                for (size_t row = t; t < context->seq && row < context->rows; row += context->seq) {
                    keel_add(dposition + t * c, dall + row * c, c);
                    keel_round(precision, dposition + t * c, c);
                }
            }
        }
    }
    keel_lap(context, KEEL_PART_EMBEDDING);
}
