#include "collectors/row.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Both kinds of op are eight bytes wide, and are kept in one array of columns.
typedef union cell {
    double f64;
    uint64_t u64;
} cell;
_Static_assert(sizeof(cell) == 8, "a column of cells is what HDF5 writes as an array of doubles or counts");

struct keel_row_buffer {
    keel_row row;
    const keel_run_info *info;
    size_t micro_cells;                 // of one op
    cell *columns[KEEL_OP_COUNT];       // [site_count], NULL where not stored
    cell *micro_columns[KEEL_OP_COUNT]; // [micro_cells], NULL where not stored
    cell *rank_columns[KEEL_OP_COUNT];  // [rank_series_count], NULL where not stored
    double *scalars;
    bool *scalar_set;
    cell cells[];
};

// How much of a run's sites a block of records holds that stays in L1 while every op of it is taken.
enum { BLOCK = 64 };

double keel_not_collected(void) {
    return ((cell){.u64 = KEEL_NOT_COLLECTED_BITS}).f64;
}

bool keel_is_not_collected(double value) {
    return ((cell){.f64 = value}).u64 == KEEL_NOT_COLLECTED_BITS;
}

static double value_of(const double *f64, const uint64_t *u64, uint32_t index) {
    if (f64) return f64[index];
    if (!u64 || u64[index] == KEEL_NOT_COLLECTED) return keel_not_collected();
    return (double)u64[index];
}

double keel_row_value(const keel_row *row, keel_op op, uint32_t site) {
    return value_of(row->f64[op], row->u64[op], site);
}

double keel_row_rank_value(const keel_row *row, keel_op op, uint32_t j) {
    return value_of(row->rank_f64[op], row->rank_u64[op], j);
}

int32_t keel_run_scalar(const keel_run_info *info, const char *name) {
    for (uint32_t i = 0; i < info->scalar_count; i++)
        if (strcmp(info->scalar_names[i], name) == 0) return (int32_t)i;
    return -1;
}

static bool keeps(const keel_run_info *info, uint32_t site, unsigned op) {
    return !info->op_mask || (info->op_mask[site] >> op & 1);
}

bool keel_run_keeps_micro(const keel_run_info *info, keel_op op) {
    if (info->micro_count == 0 || !info->op_stored[op]) return false;
    for (uint32_t k = 0; k < info->micro_site_count; k++)
        if (keeps(info, info->micro_sites[k], op)) return true;
    return false;
}

// Cells of one row without its scalars.
static size_t cell_count(const keel_run_info *info) {
    const size_t micro_cells = (size_t)info->micro_count * info->micro_site_count;
    size_t count = 0;
    for (unsigned op = 0; op < KEEL_OP_COUNT; op++) {
        if (info->op_stored[op]) count += info->site_count;
        if (keel_run_keeps_micro(info, (keel_op)op)) count += micro_cells;
        if (info->rank_op_stored[op]) count += info->rank_series_count;
    }
    return count;
}

size_t keel_row_buffer_bytes(const keel_run_info *info) {
    return sizeof(keel_row_buffer) + (cell_count(info) + info->scalar_count) * sizeof(cell) +
           info->scalar_count * sizeof(bool);
}

// COUNT cells at *NEXT become the column of OP, and what the row says of it.
static void take_column(cell **next, size_t count, keel_op op, cell **column, const double **f64,
                        const uint64_t **u64) {
    *column = *next;
    if (keel_op_get(op)->is_count)
        *u64 = &(*next)->u64;
    else
        *f64 = &(*next)->f64;
    *next += count;
}

static void point(keel_row_buffer *buffer) {
    const keel_run_info *info = buffer->info;
    keel_row *row = &buffer->row;
    cell *next = buffer->cells;
    for (unsigned op = 0; op < KEEL_OP_COUNT; op++) {
        if (info->op_stored[op])
            take_column(&next, info->site_count, (keel_op)op, &buffer->columns[op], &row->f64[op], &row->u64[op]);
        if (keel_run_keeps_micro(info, (keel_op)op))
            take_column(&next, buffer->micro_cells, (keel_op)op, &buffer->micro_columns[op], &row->micro_f64[op],
                        &row->micro_u64[op]);
        if (info->rank_op_stored[op])
            take_column(&next, info->rank_series_count, (keel_op)op, &buffer->rank_columns[op], &row->rank_f64[op],
                        &row->rank_u64[op]);
    }
    row->scalars = buffer->scalars = &next->f64;
    row->scalar_set = buffer->scalar_set = (bool *)(next + info->scalar_count);
}

keel_status keel_row_buffer_open(const keel_run_info *info, keel_row_buffer **out) {
    const size_t bytes = keel_row_buffer_bytes(info);
    keel_row_buffer *buffer = calloc(1, bytes);
    if (!buffer) return keel_fail(KEEL_ERR_MEMORY, "no memory for a row of %zu bytes", bytes);
    buffer->info = info;
    buffer->micro_cells = (size_t)info->micro_count * info->micro_site_count;
    point(buffer);
    keel_row_buffer_clear(buffer);
    *out = buffer;
    return KEEL_OK;
}

void keel_row_buffer_close(keel_row_buffer *buffer) {
    free(buffer);
}

keel_row *keel_row_buffer_row(keel_row_buffer *buffer) {
    return &buffer->row;
}

static void clear_cells(cell *cells, size_t count, bool is_count) {
    const cell nothing = {.u64 = is_count ? KEEL_NOT_COLLECTED : KEEL_NOT_COLLECTED_BITS};
    for (size_t i = 0; cells && i < count; i++) cells[i] = nothing;
}

void keel_row_buffer_clear(keel_row_buffer *buffer) {
    const keel_run_info *info = buffer->info;
    buffer->row.step = (keel_step){0};
    buffer->row.dropped_frames = 0;
    for (unsigned op = 0; op < KEEL_OP_COUNT; op++) {
        const bool is_count = keel_op_get((keel_op)op)->is_count;
        clear_cells(buffer->columns[op], info->site_count, is_count);
        clear_cells(buffer->micro_columns[op], buffer->micro_cells, is_count);
        clear_cells(buffer->rank_columns[op], info->rank_series_count, is_count);
    }
    for (uint32_t i = 0; i < info->scalar_count; i++) {
        buffer->scalars[i] = keel_not_collected();
        buffer->scalar_set[i] = false;
    }
}

// One NaN for every measured one, whatever arithmetic made it.
static double canonical(double value) {
    return isnan(value) ? ((cell){.u64 = UINT64_C(0x7ff8000000000000)}).f64 : value;
}

static cell view(const keel_stats *stats, keel_op op, const keel_op_info *what, bool kept) {
    if (what->is_count) return (cell){.u64 = kept ? keel_stats_view_count(stats, op) : KEEL_NOT_COLLECTED};
    if (!kept || !(stats->fields & what->fields)) return (cell){.u64 = KEEL_NOT_COLLECTED_BITS};
    return (cell){.f64 = canonical(keel_stats_view(stats, op))};
}

uint64_t keel_op_bits(const keel_stats *stats, keel_op op) {
    return view(stats, op, keel_op_get(op), true).u64;
}

uint64_t keel_op_absent(keel_op op) {
    return keel_op_get(op)->is_count ? KEEL_NOT_COLLECTED : KEEL_NOT_COLLECTED_BITS;
}

static void fill_sites(keel_row_buffer *buffer, const keel_stats *stats) {
    const keel_run_info *info = buffer->info;
    for (uint32_t begin = 0; begin < info->site_count; begin += BLOCK) {
        const uint32_t end = info->site_count - begin < BLOCK ? info->site_count : begin + BLOCK;
        for (unsigned op = 0; op < KEEL_OP_COUNT; op++) {
            cell *column = buffer->columns[op];
            if (!column) continue;
            const keel_op_info *what = keel_op_get((keel_op)op);
            for (uint32_t s = begin; s < end; s++) column[s] = view(&stats[s], (keel_op)op, what, keeps(info, s, op));
        }
    }
}

static void fill_micro(keel_row_buffer *buffer, const keel_stats *records) {
    const keel_run_info *info = buffer->info;
    for (uint32_t m = 0; m < info->micro_count; m++) {
        for (uint32_t k = 0; k < info->micro_site_count; k++) {
            const keel_stats *stats = &records[(size_t)m * info->micro_site_count + k];
            for (unsigned op = 0; op < KEEL_OP_COUNT; op++) {
                cell *column = buffer->micro_columns[op];
                if (!column) continue;
                column[(size_t)m * info->micro_site_count + k] =
                    view(stats, (keel_op)op, keel_op_get((keel_op)op), keeps(info, info->micro_sites[k], op));
            }
        }
    }
}

static void fill_ranks(keel_row_buffer *buffer, const uint64_t *values) {
    const keel_run_info *info = buffer->info;
    for (uint32_t j = 0; j < info->rank_series_count; j++)
        for (unsigned op = 0; op < KEEL_OP_COUNT; op++) {
            if (!buffer->rank_columns[op]) continue;
            const bool kept = info->rank_op_mask[j] >> op & 1;
            buffer->rank_columns[op][j].u64 = kept ? *values++ : keel_op_absent((keel_op)op);
        }
}

void keel_row_buffer_set_scalar(keel_row_buffer *buffer, uint32_t scalar, double value) {
    buffer->scalars[scalar] = canonical(value);
    buffer->scalar_set[scalar] = true;
}

void keel_row_buffer_fill(keel_row_buffer *buffer, const keel_frame *merged, const uint64_t *rank_values,
                          uint64_t dropped_frames) {
    const keel_run_info *info = buffer->info;
    const keel_scalar_value *values = (const keel_scalar_value *)(merged + 1);
    const keel_stats *records = (const keel_stats *)(values + merged->scalar_count);
    buffer->row.step = merged->step;
    buffer->row.dropped_frames = dropped_frames;
    for (uint32_t i = 0; i < info->scalar_count; i++) {
        buffer->scalars[i] = keel_not_collected();
        buffer->scalar_set[i] = false;
    }
    uint32_t owner = merged->scalar_count;
    for (uint32_t i = 0; i < merged->scalar_count; i++) {
        const bool set = values[i].owner != KEEL_RANK_NONE;
        if (set) keel_row_buffer_set_scalar(buffer, i, values[i].value);
        if (!keel_scalar_names_rank(values[i].merge)) continue;
        if (set) keel_row_buffer_set_scalar(buffer, owner, values[i].owner);
        owner++;
    }
    fill_sites(buffer, records);
    fill_micro(buffer, records + merged->site_count);
    if (rank_values) fill_ranks(buffer, rank_values);
}

static void copy_cells(cell *to, const double *f64, const uint64_t *u64, size_t count) {
    if (!to) return;
    if (f64)
        memcpy(to, f64, count * sizeof *to);
    else
        memcpy(to, u64, count * sizeof *to);
}

void keel_row_buffer_copy(keel_row_buffer *buffer, const keel_row *row) {
    const keel_run_info *info = buffer->info;
    buffer->row.step = row->step;
    buffer->row.dropped_frames = row->dropped_frames;
    for (unsigned op = 0; op < KEEL_OP_COUNT; op++) {
        copy_cells(buffer->columns[op], row->f64[op], row->u64[op], info->site_count);
        copy_cells(buffer->micro_columns[op], row->micro_f64[op], row->micro_u64[op], buffer->micro_cells);
        copy_cells(buffer->rank_columns[op], row->rank_f64[op], row->rank_u64[op], info->rank_series_count);
    }
    if (info->scalar_count == 0) return;
    memcpy(buffer->scalars, row->scalars, info->scalar_count * sizeof *buffer->scalars);
    memcpy(buffer->scalar_set, row->scalar_set, info->scalar_count * sizeof *buffer->scalar_set);
}

static cell *column_of(const keel_row_buffer *buffer, keel_op op, bool is_count) {
    return keel_op_get(op)->is_count == is_count ? buffer->columns[op] : NULL;
}

double *keel_row_buffer_f64(keel_row_buffer *buffer, keel_op op) {
    cell *column = column_of(buffer, op, false);
    return column ? &column->f64 : NULL;
}

uint64_t *keel_row_buffer_u64(keel_row_buffer *buffer, keel_op op) {
    cell *column = column_of(buffer, op, true);
    return column ? &column->u64 : NULL;
}
