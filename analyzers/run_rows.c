#include "analyzers/run_rows.h"

#include <stdlib.h>

struct keel_run_rows {
    keel_store_reader *reader;     // of a store
    const keel_row_source *source; // of anything else
    // Of a source: the least step of the rows from each on, so that a row is left out where a later one has its step or
    // an earlier one. A store says so itself.
    uint64_t *least;
    size_t count, at;
};

keel_status keel_run_rows_of_store(keel_store_reader *reader, const bool ops[KEEL_OP_COUNT], keel_run_rows **rows) {
    keel_run_rows *made = calloc(1, sizeof *made);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "no memory for the rows of a run");
    made->reader = reader;
    keel_store_want(reader, ops, false);
    *rows = made;
    return KEEL_OK;
}

static keel_status collect_steps(keel_run_rows *rows) {
    size_t capacity = 0;
    for (;;) {
        const keel_row *row;
        const keel_status status = rows->source->next(rows->source->context, &row);
        if (status || !row) return status;
        if (rows->count == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            uint64_t *grown = realloc(rows->least, capacity * sizeof *grown);
            if (!grown) return keel_fail(KEEL_ERR_MEMORY, "no memory for the steps of a run");
            rows->least = grown;
        }
        rows->least[rows->count++] = row->step.step;
    }
}

keel_status keel_run_rows_of_source(const keel_row_source *source, keel_run_rows **rows) {
    keel_run_rows *made = calloc(1, sizeof *made);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "no memory for the rows of a run");
    made->source = source;
    source->rewind(source->context);
    keel_status status = collect_steps(made);
    if (!status) status = keel_run_rows_rewind(made);
    if (status) {
        keel_run_rows_close(made);
        return status;
    }
    for (size_t i = made->count; i-- > 1;)
        if (made->least[i] < made->least[i - 1]) made->least[i - 1] = made->least[i];
    *rows = made;
    return KEEL_OK;
}

void keel_run_rows_close(keel_run_rows *rows) {
    if (!rows) return;
    free(rows->least);
    free(rows);
}

uint32_t keel_run_rows_segments(const keel_run_rows *rows) {
    return rows->reader ? keel_store_segments(rows->reader) : 1;
}

const keel_run_info *keel_run_rows_info(const keel_run_rows *rows, uint32_t segment) {
    return rows->reader ? keel_store_info(rows->reader, segment) : rows->source->info;
}

static keel_status next_of_store(keel_run_rows *rows, const keel_row **row, uint32_t *segment) {
    keel_store_position position = {0};
    keel_status status;
    do status = keel_store_next(rows->reader, row, &position);
    while (!status && *row && position.superseded);
    *segment = position.segment;
    return status;
}

static keel_status next_of_source(keel_run_rows *rows, const keel_row **row) {
    keel_status status;
    bool superseded;
    do {
        status = rows->source->next(rows->source->context, row);
        superseded = !status && *row && rows->at + 1 < rows->count && rows->least[rows->at + 1] <= (*row)->step.step;
        rows->at++;
    } while (superseded);
    return status;
}

keel_status keel_run_rows_next(keel_run_rows *rows, const keel_row **row, uint32_t *segment) {
    *segment = 0;
    return rows->reader ? next_of_store(rows, row, segment) : next_of_source(rows, row);
}

keel_status keel_run_rows_rewind(keel_run_rows *rows) {
    if (rows->reader) return keel_store_rewind(rows->reader);
    rows->at = 0;
    rows->source->rewind(rows->source->context);
    return KEEL_OK;
}
