#include "collectors/store/segment_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "collectors/store/checked_dataset.h"
#include "collectors/store/checksum.h"
#include "collectors/store/h5.h"
#include "collectors/store/segment_head.h"
#include "collectors/store/segment_tables.h"

// HDF5 sleeps twice as long before each new try to read a piece of metadata that it finds torn: its own 100 tries take
// longer than the age of the world.
enum { METADATA_TRIES = 22 };
#define MOST_ROW_BYTES (UINT64_C(1) << 30)

enum {
    SET_STEPS,
    SET_SCALARS,
    SET_INCIDENTS,
    SET_SUMS,
    SET_INCIDENT_SUMS,
    SET_STATS,
    SET_COUNT = SET_STATS + KEEL_GROUP_COUNT * KEEL_OP_COUNT
};
enum { NO_SUM = -1, BLOCK_BYTES = 4 << 20 };

struct keel_segment_reader {
    char *path;
    hid_t file;
    keel_segment_head head;
    keel_segment_tables tables;
    hid_t step_type, incident_type;
    hid_t sets[SET_COUNT]; // -1 until it is needed
    bool exists[SET_COUNT];
    int64_t sum_column[SET_COUNT]; // its checksums; NO_SUM: none
    uint32_t sum_columns;          // of SET_SUMS
    uint64_t rows;
    dev_t device; // of the file that was opened, or of the one before it
    ino_t inode;
};

// ---- datasets ----

// Of an op, from SET_STATS on.
static keel_op set_op(int set) {
    return (keel_op)((set - SET_STATS) % KEEL_OP_COUNT);
}

static keel_op_group set_group(int set) {
    return (keel_op_group)((set - SET_STATS) / KEEL_OP_COUNT);
}

static int set_of(keel_op_group group, keel_op op) {
    return SET_STATS + (int)group * KEEL_OP_COUNT + (int)op;
}

static void set_path(int set, char path[KEEL_DATASET_PATH_BYTES]) {
    static const char *const first[] = {
        [SET_STEPS] = KEEL_PATH_STEPS,
        [SET_SCALARS] = KEEL_PATH_SCALARS,
        [SET_INCIDENTS] = KEEL_PATH_INCIDENTS,
        [SET_SUMS] = KEEL_PATH_CHECKSUMS,
        [SET_INCIDENT_SUMS] = KEEL_PATH_INCIDENT_CHECKSUMS,
    };
    if (set < SET_STATS)
        snprintf(path, KEEL_DATASET_PATH_BYTES, "%s", first[set]);
    else
        keel_op_path(set_group(set), set_op(set), path);
}

static hid_t set_type(const keel_segment_reader *r, int set) {
    if (set == SET_STEPS) return r->step_type;
    if (set == SET_INCIDENTS) return r->incident_type;
    if (set == SET_SUMS || set == SET_INCIDENT_SUMS) return H5T_STD_U32LE;
    return set >= SET_STATS && keel_op_get(set_op(set))->is_count ? H5T_STD_U64LE : H5T_IEEE_F64LE;
}

// Its rank, and its dimensions after the rows.
static int set_tail(const keel_segment_reader *r, int set, hsize_t tail[2]) {
    const keel_run_info *info = &r->tables.info;
    if (set == SET_STEPS || set == SET_INCIDENTS || set == SET_INCIDENT_SUMS) return 1;
    tail[0] = set == SET_SUMS ? r->sum_columns : info->scalar_count;
    if (set == SET_SCALARS || set == SET_SUMS) return 2;
    switch (set_group(set)) {
    case KEEL_GROUP_MICRO:
        tail[0] = info->micro_count;
        tail[1] = info->micro_site_count;
        return 3;
    case KEEL_GROUP_RANKS:
        tail[0] = info->rank_series_count;
        return 2;
    default:
        tail[0] = info->site_count;
        return 2;
    }
}

// What a file claims to hold must be in proportion to it; one that is being written may have grown since it was opened.
static bool can_hold(keel_segment_reader *r, uint64_t rows, uint64_t row_bytes) {
    // What is being written is not compressed.
    const uint64_t ratio = r->head.open ? 1 : KEEL_MOST_RATIO;
    if (rows <= r->head.bytes * ratio / row_bytes) return true;
    struct stat file;
    if (r->head.open && stat(r->path, &file) == 0) r->head.bytes = (uint64_t)file.st_size;
    return rows <= r->head.bytes * ratio / row_bytes;
}

static keel_status shape_of(keel_segment_reader *r, int set, const char *path, hsize_t dims[3]) {
    const hid_t space = H5Dget_space(r->sets[set]);
    hsize_t tail[2];
    const bool known = space >= 0 && H5Sget_simple_extent_dims(space, dims, NULL) == set_tail(r, set, tail);
    if (space >= 0) H5Sclose(space);
    return known ? KEEL_OK : keel_h5_fail(KEEL_ERR_FORMAT, r->path, "%s has no length", path);
}

// Which of the checksums are those of a dataset that was just opened. A record with members that this program does not
// know has bytes that it does not see.
static keel_status find_sum(keel_segment_reader *r, int set, const char *path) {
    const int sums = set == SET_INCIDENTS ? SET_INCIDENT_SUMS : SET_SUMS;
    r->sum_column[set] = NO_SUM;
    if (!r->exists[sums]) return KEEL_OK;
    bool has = false;
    keel_status status =
        keel_h5_has(H5Aexists(r->sets[set], KEEL_ATTRIBUTE_CHECKSUM), r->path, KEEL_ATTRIBUTE_CHECKSUM, &has);
    if (status || !has) return status;
    const hid_t found = H5Dget_type(r->sets[set]);
    const bool is_same = found >= 0 && H5Tget_size(found) == H5Tget_size(set_type(r, set));
    if (found >= 0) H5Tclose(found);
    if (!is_same) return KEEL_OK;
    uint32_t column = 0;
    status = keel_h5_get_u32(r->sets[set], r->path, KEEL_ATTRIBUTE_CHECKSUM, &column);
    if (status) return status;
    if (column >= (sums == SET_SUMS ? r->sum_columns : 1))
        return keel_fail(KEEL_ERR_FORMAT, "%s: %s has no checksums in column %u", r->path, path, column);
    r->sum_column[set] = column;
    return KEEL_OK;
}

static keel_status open_set(keel_segment_reader *r, int set, const char *path, int rank, hsize_t dims[3]) {
    keel_status status = keel_dataset_open(r->file, r->path, path, set_type(r, set), rank, dims, &r->sets[set]);
    return status ? status : find_sum(r, set, path);
}

// A dataset that grows: opened, or seen anew with FRESH. *LENGTH: its rows.
static keel_status reach(keel_segment_reader *r, int set, bool fresh, uint64_t *length) {
    char path[KEEL_DATASET_PATH_BYTES];
    set_path(set, path);
    hsize_t tail[2] = {0}, dims[3] = {0};
    const int rank = set_tail(r, set, tail);
    const hid_t type = set_type(r, set);
    keel_status status = KEEL_OK;
    if (r->sets[set] < 0)
        status = open_set(r, set, path, rank, dims);
    else if (fresh && H5Drefresh(r->sets[set]) < 0)
        status = keel_h5_fail(KEEL_ERR_IO, r->path, "cannot refresh %s", path);
    else
        status = shape_of(r, set, path, dims);
    if (status) return status;
    uint64_t row_bytes = H5Tget_size(type);
    for (int i = 1; i < rank; i++) {
        if (dims[i] != tail[i - 1] || dims[i] == 0)
            return keel_fail(KEEL_ERR_FORMAT, "%s: %s has %llu columns where %llu belong", r->path, path,
                             (unsigned long long)dims[i], (unsigned long long)tail[i - 1]);
        row_bytes *= dims[i];
    }
    if (!can_hold(r, dims[0], row_bytes))
        return keel_fail(KEEL_ERR_FORMAT, "%s: %s has more rows than the file can hold", r->path, path);
    *length = dims[0];
    return KEEL_OK;
}

// Reads rows FIRST.. and, where COLUMN is given, one column of them.
static keel_status read_unchecked(keel_segment_reader *r, int set, uint64_t first, size_t count, const uint32_t *column,
                                  void *values) {
    char path[KEEL_DATASET_PATH_BYTES];
    set_path(set, path);
    if (!r->exists[set]) return keel_fail(KEEL_ERR_NOT_FOUND, "%s: no dataset %s", r->path, path);
    uint64_t length = 0;
    keel_status status = reach(r, set, false, &length);
    // Opened before the rows were added that /steps tells of.
    if (!status && length < first + count) status = reach(r, set, true, &length);
    if (status) return status;
    if (first > length || count > length - first)
        return keel_fail(KEEL_ERR_FORMAT, "%s: %s has %llu rows, " KEEL_PATH_STEPS " has more", r->path, path,
                         (unsigned long long)length);
    hsize_t start[3] = {first}, size[3] = {count};
    const int rank = set_tail(r, set, size + 1);
    if (column) {
        start[1] = *column;
        size[1] = 1;
    }
    const hid_t memory = H5Screate_simple(rank, size, NULL), file = H5Dget_space(r->sets[set]);
    if (memory < 0 || file < 0 || H5Sselect_hyperslab(file, H5S_SELECT_SET, start, NULL, size, NULL) < 0 ||
        H5Dread(r->sets[set], set_type(r, set), memory, file, H5P_DEFAULT, values) < 0)
        status = keel_h5_fail(KEEL_ERR_FORMAT, r->path, "cannot read %s", path);
    if (memory >= 0) H5Sclose(memory);
    if (file >= 0) H5Sclose(file);
    return status;
}

static size_t row_bytes_of(const keel_segment_reader *r, int set) {
    hsize_t tail[2];
    const int rank = set_tail(r, set, tail);
    size_t bytes = H5Tget_size(set_type(r, set));
    for (int i = 1; i < rank; i++) bytes *= tail[i - 1];
    return bytes;
}

static keel_status check_rows(keel_segment_reader *r, int set, uint64_t first, size_t count, const void *values) {
    const int64_t column = r->sum_column[set];
    if (column == NO_SUM) return KEEL_OK;
    uint32_t *sums = malloc(count * sizeof *sums);
    if (!sums) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for checksums", r->path);
    const uint32_t of_sums = (uint32_t)column;
    keel_status status = set == SET_INCIDENTS ? read_unchecked(r, SET_INCIDENT_SUMS, first, count, NULL, sums)
                                              : read_unchecked(r, SET_SUMS, first, count, &of_sums, sums);
    const size_t bytes = row_bytes_of(r, set);
    for (size_t i = 0; !status && i < count; i++)
        if (keel_row_checksum(0, (const char *)values + i * bytes, bytes) != sums[i]) {
            char path[KEEL_DATASET_PATH_BYTES];
            set_path(set, path);
            status = keel_row_checksum_fails(r->path, path, first + i);
        }
    free(sums);
    return status;
}

static keel_status read_rows(keel_segment_reader *r, int set, uint64_t first, size_t count, void *values) {
    if (count == 0) return KEEL_OK;
    const keel_status status = read_unchecked(r, set, first, count, NULL, values);
    return status ? status : check_rows(r, set, first, count, values);
}

// One column of eight bytes. Where rows have checksums they are read whole.
static keel_status read_column(keel_segment_reader *r, int set, uint64_t first, size_t count, uint32_t column,
                               void *values) {
    if (count == 0) return KEEL_OK;
    uint64_t length;
    keel_status status = r->exists[set] && r->sets[set] < 0 ? reach(r, set, false, &length) : KEEL_OK;
    if (!status && r->sum_column[set] == NO_SUM) return read_unchecked(r, set, first, count, &column, values);
    const size_t bytes = status ? 1 : row_bytes_of(r, set), most = bytes < BLOCK_BYTES ? BLOCK_BYTES / bytes : 1;
    char *block = status ? NULL : malloc((count < most ? count : most) * bytes);
    if (!status && !block) status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory for rows", r->path);
    for (size_t done = 0; !status && done < count;) {
        const size_t rows = count - done < most ? count - done : most;
        status = read_rows(r, set, first + done, rows, block);
        for (size_t i = 0; !status && i < rows; i++)
            memcpy((char *)values + (done + i) * sizeof(uint64_t), block + i * bytes + column * sizeof(uint64_t),
                   sizeof(uint64_t));
        done += rows;
    }
    free(block);
    return status;
}

// ---- open ----

static keel_status open_file(keel_segment_reader *r) {
    hid_t access;
    keel_status status = keel_h5_access_list(&access);
    if (status) return status;
    // Torn metadata only while a writer has it; as if one had, where it was killed.
    unsigned flags = H5F_ACC_RDONLY;
    if (r->head.open) {
        flags |= H5F_ACC_SWMR_READ;
        H5Pset_metadata_read_attempts(access, METADATA_TRIES);
    }
    r->file = H5Fopen(r->path, flags, access);
    if (r->file < 0) status = keel_h5_fail(KEEL_ERR_FORMAT, r->path, "cannot open it");
    H5Pclose(access);
    return status;
}

static keel_status find_sets(keel_segment_reader *r) {
    uint64_t row_bytes = sizeof(keel_step_record) + r->tables.info.scalar_count * sizeof(double);
    bool has_group[KEEL_GROUP_COUNT] = {false};
    r->sum_columns = 0;
    for (int group = 0; group < KEEL_GROUP_COUNT; group++) {
        const char *path = keel_op_group_path((keel_op_group)group);
        const keel_status status = keel_dataset_find(r->file, r->path, path, &has_group[group]);
        if (status) return status;
    }
    for (int set = 0; set < SET_COUNT; set++) {
        char path[KEEL_DATASET_PATH_BYTES];
        set_path(set, path);
        if (set < SET_STATS || has_group[set_group(set)]) {
            const keel_status status = keel_dataset_find(r->file, r->path, path, &r->exists[set]);
            if (status) return status;
        }
        r->sum_columns += r->exists[set] && (set == SET_STEPS || set == SET_SCALARS || set >= SET_STATS);
        if (!r->exists[set] || set < SET_STATS) continue;
        keel_run_info *info = &r->tables.info;
        const keel_op_group group = set_group(set);
        if (group == KEEL_GROUP_STATS) info->op_stored[set_op(set)] = true;
        if (group == KEEL_GROUP_RANKS) info->rank_op_stored[set_op(set)] = true;
        hsize_t tail[2];
        row_bytes += sizeof(double) * (set_tail(r, set, tail) == 3 ? tail[0] * tail[1] : tail[0]);
    }
    if (row_bytes > MOST_ROW_BYTES)
        return keel_fail(KEEL_ERR_LIMIT, "%s: rows of %llu MiB", r->path, (unsigned long long)row_bytes >> 20);
    if (r->tables.info.scalar_count > 0 && !r->exists[SET_SCALARS])
        return keel_fail(KEEL_ERR_FORMAT, "%s: no dataset " KEEL_PATH_SCALARS, r->path);
    return reach(r, SET_STEPS, false, &r->rows);
}

keel_status keel_segment_reader_open(const char *path, keel_segment_reader **out) {
    keel_segment_reader *r = calloc(1, sizeof *r);
    if (!r) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory to read it", path);
    r->file = r->step_type = r->incident_type = -1;
    for (int i = 0; i < SET_COUNT; i++) {
        r->sets[i] = -1;
        r->sum_column[i] = NO_SUM;
    }
    r->path = strdup(path);
    keel_status status = r->path ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "%s: no memory to read it", path);
    struct stat file;
    if (!status && stat(path, &file) == 0) {
        r->device = file.st_dev;
        r->inode = file.st_ino;
    }
    if (!status) status = keel_segment_head_read(path, &r->head);
    if (!status) status = open_file(r);
    if (!status) {
        r->step_type = keel_record_type(KEEL_RECORD_STEP);
        r->incident_type = keel_record_type(KEEL_RECORD_INCIDENT);
        if (r->step_type < 0 || r->incident_type < 0) status = keel_h5_fail(KEEL_ERR_MEMORY, path, "no record types");
    }
    if (!status) status = keel_segment_tables_read(r->file, path, &r->tables);
    if (!status) status = find_sets(r);
    if (status) {
        keel_segment_reader_close(r);
        return status;
    }
    *out = r;
    return KEEL_OK;
}

void keel_segment_reader_close(keel_segment_reader *r) {
    if (!r) return;
    for (int i = 0; i < SET_COUNT; i++)
        if (r->sets[i] >= 0) H5Dclose(r->sets[i]);
    if (r->step_type >= 0) H5Tclose(r->step_type);
    if (r->incident_type >= 0) H5Tclose(r->incident_type);
    if (r->file >= 0) H5Fclose(r->file);
    keel_segment_tables_free(&r->tables);
    free(r->path);
    free(r);
}

// ---- what it says ----

const char *keel_segment_reader_path(const keel_segment_reader *r) {
    return r->path;
}

const keel_run_info *keel_segment_reader_info(const keel_segment_reader *r) {
    return &r->tables.info;
}

uint64_t keel_segment_reader_rows(const keel_segment_reader *r) {
    return r->rows;
}

bool keel_segment_reader_open_mark(const keel_segment_reader *r) {
    return r->head.open;
}

bool keel_segment_reader_resumed(const keel_segment_reader *r) {
    return r->tables.resumed;
}

bool keel_segment_reader_has_micro(const keel_segment_reader *r, keel_op op) {
    return r->exists[set_of(KEEL_GROUP_MICRO, op)];
}

bool keel_segment_reader_replaced(const keel_segment_reader *r) {
    struct stat file;
    return r->head.open && stat(r->path, &file) == 0 && (file.st_dev != r->device || file.st_ino != r->inode);
}

keel_status keel_segment_reader_refresh(keel_segment_reader *r) {
    return r->head.open ? reach(r, SET_STEPS, true, &r->rows) : KEEL_OK;
}

bool keel_segment_reader_rising(const keel_segment_reader *r, uint64_t *first, uint64_t *last) {
    *first = r->tables.first_step;
    *last = r->tables.last_step;
    return r->tables.rising;
}

keel_status keel_segment_reader_steps(keel_segment_reader *r, uint64_t first, size_t count, keel_step_record *steps) {
    return read_rows(r, SET_STEPS, first, count, steps);
}

keel_status keel_segment_reader_scalars(keel_segment_reader *r, uint64_t first, size_t count, double *values) {
    return read_rows(r, SET_SCALARS, first, count, values);
}

keel_status keel_segment_reader_op(keel_segment_reader *r, keel_op_group group, keel_op op, uint64_t first,
                                   size_t count, void *values) {
    return read_rows(r, set_of(group, op), first, count, values);
}

keel_status keel_segment_reader_column(keel_segment_reader *r, keel_op op, uint32_t index, uint64_t first, size_t count,
                                       void *values) {
    return read_column(r, op == KEEL_OP_COUNT ? SET_SCALARS : set_of(KEEL_GROUP_STATS, op), first, count, index,
                       values);
}

keel_status keel_segment_reader_incidents(keel_segment_reader *r, keel_incident **out, size_t *out_count) {
    uint64_t rows = 0;
    keel_status status = reach(r, SET_INCIDENTS, r->head.open, &rows);
    if (status) return status;
    keel_incident_record *records = calloc(rows + 1, sizeof *records);
    keel_incident *incidents = calloc(rows + 1, sizeof *incidents);
    if (!records || !incidents) status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its incidents", r->path);
    if (!status) status = read_rows(r, SET_INCIDENTS, 0, rows, records);
    for (uint64_t i = 0; !status && i < rows; i++)
        status = keel_incident_from_record(&records[i], r->path, i, &incidents[i]);
    free(records);
    if (status) {
        free(incidents);
        return status;
    }
    *out = incidents;
    *out_count = rows;
    return KEEL_OK;
}
