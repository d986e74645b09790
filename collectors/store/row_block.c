#include "collectors/store/row_block.h"

#include <stdlib.h>

#include "collectors/store/h5.h"

// A packed chunk has 256 rows, and a block that cuts it decompresses it again: so many, where they fit. More of them
// where rows are small.
enum { MOST_BYTES = 160 << 20, MOST_ROWS = 4096 };

// One op in the block, eight bytes a value.
typedef struct column {
    keel_op op;
    keel_op_group group;
    size_t width;   // values of a row
    uint64_t *data; // [capacity][width]
} column;

struct keel_row_block {
    keel_segment_reader *segment;
    keel_row row;
    size_t capacity; // rows
    uint64_t first;  // row of the segment
    size_t count;    // rows there
    keel_step_record *steps;
    double *scalars;
    bool *scalar_set; // of the present row
    uint32_t scalar_count;
    column columns[KEEL_GROUP_COUNT * KEEL_OP_COUNT];
    size_t column_count;
};

static void choose(keel_row_block *block, const bool ops[KEEL_OP_COUNT], bool micro) {
    const keel_run_info *info = keel_segment_reader_info(block->segment);
    for (unsigned op = 0; op < KEEL_OP_COUNT; op++) {
        if (!ops[op]) continue;
        if (info->op_stored[op])
            block->columns[block->column_count++] = (column){.op = (keel_op)op, .width = info->site_count};
        if (micro && keel_segment_reader_has_micro(block->segment, (keel_op)op))
            block->columns[block->column_count++] =
                (column){.op = (keel_op)op,
                         .group = KEEL_GROUP_MICRO,
                         .width = (size_t)info->micro_count * info->micro_site_count};
        if (micro && info->rank_op_stored[op])
            block->columns[block->column_count++] =
                (column){.op = (keel_op)op, .group = KEEL_GROUP_RANKS, .width = info->rank_series_count};
    }
}

static size_t choose_capacity(const keel_row_block *block) {
    size_t row_bytes = sizeof(keel_step_record) + block->scalar_count * sizeof(double);
    for (size_t i = 0; i < block->column_count; i++) row_bytes += block->columns[i].width * sizeof(uint64_t);
    size_t rows = 1;
    while (2 * rows <= MOST_ROWS && 2 * rows * row_bytes <= MOST_BYTES) rows *= 2;
    return rows;
}

keel_status keel_row_block_open(keel_segment_reader *segment, const bool ops[KEEL_OP_COUNT], bool micro,
                                keel_row_block **out) {
    keel_row_block *block = calloc(1, sizeof *block);
    if (!block) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for rows", keel_segment_reader_path(segment));
    block->segment = segment;
    block->scalar_count = keel_segment_reader_info(segment)->scalar_count;
    choose(block, ops, micro);
    block->capacity = choose_capacity(block);
    block->steps = malloc(block->capacity * sizeof *block->steps);
    block->scalars = malloc(block->capacity * (block->scalar_count + 1) * sizeof *block->scalars);
    block->scalar_set = calloc(block->scalar_count + 1, sizeof *block->scalar_set);
    bool complete = block->steps && block->scalars && block->scalar_set;
    for (size_t i = 0; i < block->column_count; i++) {
        column *c = &block->columns[i];
        c->data = malloc(block->capacity * c->width * sizeof *c->data);
        complete = complete && c->data;
    }
    if (!complete) {
        keel_row_block_close(block);
        return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for rows", keel_segment_reader_path(segment));
    }
    *out = block;
    return KEEL_OK;
}

void keel_row_block_close(keel_row_block *block) {
    if (!block) return;
    for (size_t i = 0; i < block->column_count; i++) free(block->columns[i].data);
    free(block->steps);
    free(block->scalars);
    free(block->scalar_set);
    free(block);
}

static keel_status load(keel_row_block *block, uint64_t first) {
    keel_h5_quiet();
    const uint64_t left = keel_segment_reader_rows(block->segment) - first;
    const size_t count = left < block->capacity ? left : block->capacity;
    block->count = 0; // nothing, should it fail
    keel_status status = keel_segment_reader_steps(block->segment, first, count, block->steps);
    if (!status && block->scalar_count > 0)
        status = keel_segment_reader_scalars(block->segment, first, count, block->scalars);
    for (size_t i = 0; !status && i < block->column_count; i++) {
        const column *c = &block->columns[i];
        status = keel_segment_reader_op(block->segment, c->group, c->op, first, count, c->data);
    }
    if (status) return status;
    block->first = first;
    block->count = count;
    return KEEL_OK;
}

static void point(keel_row_block *block, size_t i) {
    keel_row *row = &block->row;
    keel_step_from_record(&block->steps[i], row);
    row->scalars = block->scalars + i * block->scalar_count;
    row->scalar_set = block->scalar_set;
    for (uint32_t s = 0; s < block->scalar_count; s++) block->scalar_set[s] = !keel_is_not_collected(row->scalars[s]);
    for (size_t k = 0; k < block->column_count; k++) {
        const column *c = &block->columns[k];
        uint64_t *values = c->data + i * c->width;
        const uint64_t **const counts[KEEL_GROUP_COUNT] = {row->u64, row->micro_u64, row->rank_u64};
        const double **const numbers[KEEL_GROUP_COUNT] = {row->f64, row->micro_f64, row->rank_f64};
        if (keel_op_get(c->op)->is_count)
            counts[c->group][c->op] = values;
        else
            numbers[c->group][c->op] = (const double *)(const void *)values;
    }
}

keel_status keel_row_block_row(keel_row_block *block, uint64_t row, const keel_row **out) {
    if (row < block->first || row - block->first >= block->count) {
        const keel_status status = load(block, row);
        if (status) return status;
    }
    point(block, (size_t)(row - block->first));
    *out = &block->row;
    return KEEL_OK;
}
