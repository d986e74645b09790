#include "train/model/dispatch.h"

#include <string.h>

#include "train/tensor/vector.h"

size_t keel_dispatch_most_rows(const keel_context *context) {
    const size_t all = context->rows * context->chosen, taken = context->batch * context->experts * context->capacity;
    return context->capacity && taken < all ? taken : all;
}

void keel_dispatch_plan(const keel_context *context, keel_arena *arena, keel_dispatch *dispatch) {
    dispatch->slot = (uint32_t *)keel_arena_take(arena, context->rows * context->chosen);
    dispatch->source = (uint32_t *)keel_arena_take(arena, keel_dispatch_most_rows(context));
    dispatch->counts = (uint32_t *)keel_arena_take(arena, context->experts);
}

// Marks what is dropped of the sequence at CHOSEN [T, K]; USED [E] is what its experts have taken.
static void drop(const keel_context *context, const uint32_t *chosen, uint32_t *used, uint32_t *slot) {
    const size_t k = context->chosen;
    memset(used, 0, context->experts * sizeof *used);
    for (size_t j = 0; j < k; j++)
        for (size_t t = 0; t < context->seq; t++) {
            const size_t a = t * k + j;
            const bool full = context->capacity && used[chosen[a]] == context->capacity;
            slot[a] = full ? KEEL_DROPPED : 0;
            used[chosen[a]] += !full;
        }
}

void keel_dispatch_make(const keel_context *context, const uint32_t *chosen, uint32_t *next, keel_dispatch *dispatch) {
    const size_t experts = context->experts, assignments = context->rows * context->chosen;
    const size_t of_sequence = context->seq * context->chosen;
    uint32_t *counts = dispatch->counts, *slot = dispatch->slot;
    memset(counts, 0, experts * sizeof *counts);
    for (size_t at = 0; at < assignments; at += of_sequence) {
        drop(context, chosen + at, next, slot + at);
        for (size_t e = 0; e < experts; e++) counts[e] += next[e];
    }
    uint32_t rows = 0;
    for (size_t e = 0; e < experts; e++) {
        next[e] = rows;
        rows += counts[e];
    }
    for (size_t a = 0; a < assignments; a++) {
        if (slot[a] == KEEL_DROPPED) continue;
        slot[a] = next[chosen[a]]++;
        dispatch->source[slot[a]] = (uint32_t)a;
    }
    dispatch->rows = rows;
}

void keel_dispatch_to_rows(const keel_context *context, const keel_dispatch *dispatch, const float *tokens,
                           float *scratch, float *rows) {
    const size_t c = context->hidden, k = context->chosen, assignments = context->rows * k, count = dispatch->rows;
#pragma omp parallel num_threads(context->threads)
    {
        if (scratch) {
#pragma omp for schedule(static)
            for (size_t a = 0; a < assignments; a++) memcpy(scratch + a * c, tokens + a / k * c, c * sizeof *rows);
        }
#pragma omp for schedule(static)
        for (size_t r = 0; r < count; r++) {
            const size_t a = dispatch->source[r];
            memcpy(rows + r * c, scratch ? scratch + a * c : tokens + a / k * c, c * sizeof *rows);
        }
    }
    keel_lap(context, KEEL_PART_ROUTING);
}

// SCRATCH [N K, C] = the rows of the assignments; those that were dropped are left as they are.
static void unsort(const keel_context *context, const keel_dispatch *dispatch, const float *rows, float *scratch) {
    const size_t c = context->hidden, count = dispatch->rows;
#pragma omp parallel for schedule(static) num_threads(context->threads)
    for (size_t r = 0; r < count; r++) memcpy(scratch + dispatch->source[r] * c, rows + r * c, c * sizeof *rows);
}

static void add_scaled(float *restrict y, const float *restrict x, float factor, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) y[i] += factor * x[i];
}

void keel_dispatch_to_tokens(const keel_context *context, const keel_dispatch *dispatch, const float *rows,
                             const float *weights, float *scratch, float *tokens) {
    const size_t c = context->hidden, k = context->chosen;
    if (scratch) unsort(context, dispatch, rows, scratch);
#pragma omp parallel for schedule(static) num_threads(context->threads)
    for (size_t t = 0; t < context->rows; t++) {
        float *out = tokens + t * c;
        memset(out, 0, c * sizeof *out);
        for (size_t a = t * k; a < (t + 1) * k; a++) {
            const size_t slot = dispatch->slot[a];
            if (slot == KEEL_DROPPED) continue;
            add_scaled(out, scratch ? scratch + a * c : rows + slot * c, weights ? weights[a] : 1, c);
        }
    }
    keel_lap(context, KEEL_PART_ROUTING);
}

static float dot_product(const float *x, const float *y, size_t n) {
    keel_vec lanes = {0};
    size_t i = 0;
    for (; i + KEEL_LANES <= n; i += KEEL_LANES) lanes += keel_vec_load(x + i) * keel_vec_load(y + i);
    float sum = keel_vec_sum(lanes);
    for (; i < n; i++) sum += x[i] * y[i];
    return sum;
}

void keel_dispatch_backward(const keel_context *context, const keel_dispatch *dispatch, const float *dtokens,
                            const float *rows, const float *weights, float *scratch, float *drows, float *dweights) {
    const size_t c = context->hidden, k = context->chosen, count = dispatch->rows;
#pragma omp parallel num_threads(context->threads)
    {
#pragma omp for schedule(static)
        for (size_t a = 0; a < context->rows * k; a++) {
            const size_t slot = dispatch->slot[a];
            const float *dtoken = dtokens + a / k * c;
            dweights[a] = slot == KEEL_DROPPED ? 0 : dot_product(dtoken, rows + slot * c, c);
            float *drow = scratch ? scratch + a * c : drows + slot * c;
            for (size_t i = 0; i < c && slot != KEEL_DROPPED; i++) drow[i] = weights[a] * dtoken[i];
        }
        if (scratch) {
#pragma omp for schedule(static)
            for (size_t r = 0; r < count; r++)
                memcpy(drows + r * c, scratch + dispatch->source[r] * c, c * sizeof *drows);
        }
    }
    keel_lap(context, KEEL_PART_ROUTING);
}
