#include "collectors/store/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "collectors/store/h5.h"
#include "collectors/store/rollbacks.h"
#include "collectors/store/row_block.h"
#include "collectors/store/run_lock.h"
#include "collectors/store/segment_reader.h"
#include "collectors/store/store_files.h"

enum { SCAN_ROWS = 4096 };

typedef struct segment {
    keel_segment_reader *reader;
    uint32_t number;
    uint64_t first_row; // over all segments
    uint64_t scanned;   // rows that the rollbacks know
} segment;

struct keel_store_reader {
    char *path;
    bool is_directory;
    segment *segments;
    size_t count;
    keel_segment_reader **replaced; // what was given of them is valid until close
    size_t replaced_count;
    keel_rollbacks rollbacks;

    bool ops[KEEL_OP_COUNT], micro;
    size_t at;             // the cursor's segment
    uint64_t row;          // its next row there
    keel_row_block *block; // of segment AT; NULL until it is needed
};

// ---- segments ----

static keel_status scan_steps(keel_store_reader *r, segment *s) {
    const uint64_t rows = keel_segment_reader_rows(s->reader);
    uint64_t first, last;
    if (s->scanned == 0 && keel_segment_reader_rising(s->reader, &first, &last)) {
        s->scanned = rows;
        return keel_rollbacks_add_rising(&r->rollbacks, first, last, rows);
    }
    keel_step_record *steps = malloc(SCAN_ROWS * sizeof *steps);
    if (!steps) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its steps", r->path);
    keel_status status = KEEL_OK;
    while (!status && s->scanned < rows) {
        const uint64_t left = rows - s->scanned;
        const size_t count = left < SCAN_ROWS ? left : SCAN_ROWS;
        status = keel_segment_reader_steps(s->reader, s->scanned, count, steps);
        if (!status) status = keel_rollbacks_add(&r->rollbacks, &steps->step, count, sizeof *steps);
        s->scanned += count;
    }
    free(steps);
    return status;
}

static keel_status add_segment(keel_store_reader *r, const char *path, uint32_t number) {
    segment *more = realloc(r->segments, (r->count + 1) * sizeof *more);
    if (!more) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
    r->segments = more;
    segment *s = &more[r->count];
    *s = (segment){.number = number, .first_row = keel_store_rows(r)};
    const keel_status status = keel_segment_reader_open(path, &s->reader);
    if (status) return status;
    r->count++;
    return scan_steps(r, s);
}

// Segments of the directory that are newer than those known.
static keel_status add_new_segments(keel_store_reader *r, const uint32_t *numbers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (r->count > 0 && numbers[i] <= r->segments[r->count - 1].number) continue;
        char *path = keel_segment_path(r->path, numbers[i], "");
        const keel_status status =
            path ? add_segment(r, path, numbers[i]) : keel_fail(KEEL_ERR_MEMORY, "%s: no memory", r->path);
        free(path);
        if (status) return status;
    }
    return KEEL_OK;
}

static void warn_missing(const keel_store_reader *r, uint32_t number, uint64_t missing) {
    char *path = keel_segment_path(r->path, number, "");
    if (missing == 1)
        keel_log(KEEL_LOG_WARNING, "%s is missing: the run is read without its steps", path ? path : r->path);
    else
        keel_log(KEEL_LOG_WARNING, "%s and %" PRIu64 " more are missing: the run is read without their steps",
                 path ? path : r->path, missing - 1);
    free(path);
}

// Segments are counted from 0: a number that is passed over was there once.
static void look_for_gaps(const keel_store_reader *r, const uint32_t *numbers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const uint32_t expected = i ? numbers[i - 1] + 1 : 0;
        if (numbers[i] != expected) warn_missing(r, expected, numbers[i] - expected);
    }
}

static keel_status open_segments(keel_store_reader *r) {
    struct stat info;
    if (stat(r->path, &info) != 0)
        return keel_fail(errno == ENOENT ? KEEL_ERR_NOT_FOUND : KEEL_ERR_IO, "%s: %s", r->path, strerror(errno));
    r->is_directory = S_ISDIR(info.st_mode);
    if (!r->is_directory) return add_segment(r, r->path, 0);
    uint32_t *numbers = NULL;
    size_t count = 0;
    keel_status status = keel_segment_list(r->path, &numbers, &count);
    if (!status && count == 0) status = keel_fail(KEEL_ERR_FORMAT, "%s: no store: it holds no keel-NNNN.h5", r->path);
    if (!status) status = add_new_segments(r, numbers, count);
    if (!status) look_for_gaps(r, numbers, count);
    free(numbers);
    return status;
}

keel_status keel_store_open(const char *path, keel_store_reader **out) {
    keel_h5_quiet();
    keel_store_reader *r = calloc(1, sizeof *r);
    if (!r) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory to read it", path);
    for (int op = 0; op < KEEL_OP_COUNT; op++) r->ops[op] = true;
    r->micro = true;
    r->path = strdup(path);
    const keel_status status = r->path ? open_segments(r) : keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
    if (status) {
        keel_store_close(r);
        return status;
    }
    keel_rollbacks_settle(&r->rollbacks);
    *out = r;
    return KEEL_OK;
}

void keel_store_close(keel_store_reader *r) {
    if (!r) return;
    keel_h5_quiet();
    keel_row_block_close(r->block);
    for (size_t i = 0; i < r->count; i++) keel_segment_reader_close(r->segments[i].reader);
    for (size_t i = 0; i < r->replaced_count; i++) keel_segment_reader_close(r->replaced[i]);
    free(r->replaced);
    keel_rollbacks_free(&r->rollbacks);
    free(r->segments);
    free(r->path);
    free(r);
}

static void leave_block(keel_store_reader *r) {
    keel_row_block_close(r->block);
    r->block = NULL;
}

// Looks at what the segment is now; another copy of it holds the same rows, and more.
static keel_status look_again(keel_store_reader *r, segment *s) {
    if (!keel_segment_reader_replaced(s->reader)) return keel_segment_reader_refresh(s->reader);
    keel_segment_reader **list = realloc(r->replaced, (r->replaced_count + 1) * sizeof *list);
    if (!list) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", r->path);
    r->replaced = list;
    keel_segment_reader *now;
    const keel_status status = keel_segment_reader_open(keel_segment_reader_path(s->reader), &now);
    if (status) return status;
    if (s == &r->segments[r->at]) leave_block(r);
    list[r->replaced_count++] = s->reader;
    s->reader = now;
    return KEEL_OK;
}

keel_status keel_store_refresh(keel_store_reader *r) {
    keel_h5_quiet();
    // The list first: a segment that has a successor is complete, and its last rows are seen below.
    uint32_t *numbers = NULL;
    size_t count = 0;
    keel_status status = r->is_directory ? keel_segment_list(r->path, &numbers, &count) : KEEL_OK;
    segment *last = &r->segments[r->count - 1];
    if (!status) status = look_again(r, last);
    if (!status) status = scan_steps(r, last);
    if (!status) status = add_new_segments(r, numbers, count);
    free(numbers);
    keel_rollbacks_settle(&r->rollbacks);
    return status;
}

// ---- what it holds ----

uint32_t keel_store_segments(const keel_store_reader *r) {
    return (uint32_t)r->count;
}

const keel_run_info *keel_store_info(const keel_store_reader *r, uint32_t number) {
    return keel_segment_reader_info(r->segments[number].reader);
}

const char *keel_store_segment_path(const keel_store_reader *r, uint32_t number) {
    return keel_segment_reader_path(r->segments[number].reader);
}

uint64_t keel_store_segment_rows(const keel_store_reader *r, uint32_t number) {
    return keel_segment_reader_rows(r->segments[number].reader);
}

uint64_t keel_store_rows(const keel_store_reader *r) {
    if (r->count == 0) return 0;
    const segment *last = &r->segments[r->count - 1];
    return last->first_row + keel_segment_reader_rows(last->reader);
}

char *keel_store_folder(const keel_store_reader *r) {
    if (r->is_directory) return strdup(r->path);
    const char *slash = strrchr(r->path, '/');
    if (!slash) return strdup(".");
    return strndup(r->path, slash == r->path ? 1 : (size_t)(slash - r->path));
}

keel_store_state keel_store_state_of(const keel_store_reader *r) {
    if (!keel_segment_reader_open_mark(r->segments[r->count - 1].reader)) return KEEL_STORE_CLOSED;
    // A writer that lives has the lock of the directory.
    char *folder = keel_store_folder(r);
    const bool locked = folder && keel_run_locked(folder);
    free(folder);
    return locked ? KEEL_STORE_LIVE : KEEL_STORE_KILLED;
}

// ---- the cursor ----

keel_status keel_store_rewind(keel_store_reader *r) {
    leave_block(r);
    r->at = 0;
    r->row = 0;
    return KEEL_OK;
}

void keel_store_want(keel_store_reader *r, const bool ops[KEEL_OP_COUNT], bool micro) {
    memcpy(r->ops, ops, sizeof r->ops);
    r->micro = micro;
    keel_store_rewind(r);
}

static bool is_fork(const keel_store_reader *r, const segment *s, uint64_t row) {
    if (s->first_row + row == 0) return false;
    if (row == 0 && keel_segment_reader_resumed(s->reader)) return true;
    return keel_rollbacks_at(&r->rollbacks, s->first_row + row);
}

keel_status keel_store_next(keel_store_reader *r, const keel_row **out, keel_store_position *position) {
    while (r->at + 1 < r->count && r->row >= keel_segment_reader_rows(r->segments[r->at].reader)) {
        leave_block(r);
        r->at++;
        r->row = 0;
    }
    const segment *s = &r->segments[r->at];
    if (r->row >= keel_segment_reader_rows(s->reader)) {
        *out = NULL;
        return KEEL_OK;
    }
    keel_status status = r->block ? KEEL_OK : keel_row_block_open(s->reader, r->ops, r->micro, &r->block);
    const keel_row *row = NULL;
    if (!status) status = keel_row_block_row(r->block, r->row, &row);
    if (status) return status;
    *position = (keel_store_position){
        .segment = (uint32_t)r->at,
        .row = r->row,
        .superseded = keel_rollbacks_supersede(&r->rollbacks, s->first_row + r->row, row->step.step),
        .fork = is_fork(r, s, r->row),
    };
    r->row++;
    *out = row;
    return KEEL_OK;
}

// ---- incidents ----

// An incident and where it was written.
typedef struct written {
    keel_incident incident;
    size_t order;
    size_t segment;
} written;

static int by_id(const void *a, const void *b) {
    const written *x = a, *y = b;
    if (x->incident.id != y->incident.id) return x->incident.id < y->incident.id ? -1 : 1;
    if (x->segment != y->segment) return x->segment < y->segment ? -1 : 1;
    if (x->incident.revision != y->incident.revision) return x->incident.revision < y->incident.revision ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static keel_status collect(keel_store_reader *r, written **list, size_t *count) {
    for (size_t i = 0; i < r->count; i++) {
        keel_incident *found = NULL;
        size_t n = 0;
        const keel_status status = keel_segment_reader_incidents(r->segments[i].reader, &found, &n);
        if (status) return status;
        written *more = realloc(*list, (*count + n + 1) * sizeof *more);
        if (!more) {
            free(found);
            return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its incidents", r->path);
        }
        *list = more;
        for (size_t k = 0; k < n; k++, ++*count)
            more[*count] = (written){.incident = found[k], .order = k, .segment = i};
        free(found);
    }
    return KEEL_OK;
}

keel_status keel_store_incidents(keel_store_reader *r, keel_incident **out, size_t *out_count) {
    keel_h5_quiet();
    written *list = NULL;
    size_t count = 0;
    keel_status status = collect(r, &list, &count);
    keel_incident *incidents = status ? NULL : calloc(count + 1, sizeof *incidents);
    if (!incidents) {
        free(list);
        return status ? status : keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its incidents", r->path);
    }
    if (count > 0) qsort(list, count, sizeof *list, by_id);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) // the last of each id
        if (i + 1 == count || list[i + 1].incident.id != list[i].incident.id) incidents[kept++] = list[i].incident;
    free(list);
    *out = incidents;
    *out_count = kept;
    return KEEL_OK;
}

// ---- series ----

typedef struct series {
    uint64_t *steps;
    double *values;
    size_t count, capacity;
} series;

static keel_status append(series *s, uint64_t step, double value) {
    if (s->count == s->capacity) {
        const size_t capacity = s->capacity ? 2 * s->capacity : 1024;
        uint64_t *steps = realloc(s->steps, capacity * sizeof *steps);
        if (steps) s->steps = steps;
        double *values = realloc(s->values, capacity * sizeof *values);
        if (values) s->values = values;
        if (!steps || !values) return keel_fail(KEEL_ERR_MEMORY, "no memory for a series of %zu values", capacity);
        s->capacity = capacity;
    }
    s->steps[s->count] = step;
    s->values[s->count++] = value;
    return KEEL_OK;
}

// The column of NAME (an op at SITE_KEY, or a scalar) in a segment, or -1.
static int64_t find_column(const keel_run_info *info, const char *name, const char *site_key, keel_op *op) {
    *op = KEEL_OP_COUNT;
    if (!site_key) return keel_run_scalar(info, name);
    *op = keel_op_find(name);
    const char *colon = strrchr(site_key, ':');
    if (*op == KEEL_OP_COUNT || !colon || !info->op_stored[*op]) return -1;
    const keel_quantity quantity = keel_quantity_find(colon + 1);
    const size_t length = (size_t)(colon - site_key);
    for (uint32_t i = 0; i < info->site_count; i++) {
        const keel_site_info *site = &info->sites[i];
        if (site->quantity == quantity && strlen(site->name) == length && memcmp(site->name, site_key, length) == 0)
            return i;
    }
    return -1;
}

// COUNT rows of a column whose 8-byte values are at CELLS.
static keel_status take_values(const keel_store_reader *r, const segment *s, uint64_t first, size_t count,
                               const keel_step_record *steps, const uint64_t *cells, bool is_count, series *out) {
    for (size_t i = 0; i < count; i++) {
        if (cells[i] == (is_count ? KEEL_NOT_COLLECTED : KEEL_NOT_COLLECTED_BITS)) continue;
        if (keel_rollbacks_supersede(&r->rollbacks, s->first_row + first + i, steps[i].step)) continue;
        double value;
        memcpy(&value, &cells[i], sizeof value);
        const keel_status status = append(out, steps[i].step, is_count ? (double)cells[i] : value);
        if (status) return status;
    }
    return KEEL_OK;
}

static keel_status read_series(keel_store_reader *r, const segment *s, keel_op op, uint32_t column, series *out) {
    const uint64_t rows = keel_segment_reader_rows(s->reader);
    const bool is_count = op != KEEL_OP_COUNT && keel_op_get(op)->is_count;
    keel_step_record *steps = malloc(SCAN_ROWS * sizeof *steps);
    uint64_t *cells = malloc(SCAN_ROWS * sizeof *cells);
    keel_status status = KEEL_OK;
    if (!steps || !cells) {
        status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory for a series", r->path);
        goto done;
    }
    for (uint64_t first = 0; !status && first < rows; first += SCAN_ROWS) {
        const size_t count = rows - first < SCAN_ROWS ? rows - first : SCAN_ROWS;
        status = keel_segment_reader_steps(s->reader, first, count, steps);
        if (!status) status = keel_segment_reader_column(s->reader, op, column, first, count, cells);
        if (!status) status = take_values(r, s, first, count, steps, cells, is_count, out);
    }
done:
    free(steps);
    free(cells);
    return status;
}

keel_status keel_store_series(keel_store_reader *r, const char *name, const char *site_key, uint64_t **steps,
                              double **values, size_t *count) {
    keel_h5_quiet();
    series out = {0};
    keel_status status = KEEL_OK;
    bool found = false;
    for (size_t i = 0; !status && i < r->count; i++) {
        const segment *s = &r->segments[i];
        keel_op op;
        const int64_t column = find_column(keel_segment_reader_info(s->reader), name, site_key, &op);
        if (column < 0) continue;
        found = true;
        status = read_series(r, s, op, (uint32_t)column, &out);
    }
    if (!status && !found)
        status = keel_fail(KEEL_ERR_NOT_FOUND, "%s: no series %s%s%s", r->path, name, site_key ? " of " : "",
                           site_key ? site_key : "");
    if (status) {
        free(out.steps);
        free(out.values);
        return status;
    }
    *steps = out.steps;
    *values = out.values;
    *count = out.count;
    return KEEL_OK;
}
