#include "collectors/store/segment_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "collectors/store/checksum.h"
#include "collectors/store/file_copy.h"
#include "collectors/store/h5.h"
#include "collectors/store/reserve.h"
#include "collectors/store/schema.h"
#include "collectors/store/store_files.h"

// What HDF5's own structures (object headers, chunk indexes) may grow by in one step.
enum { METADATA_BYTES = 256 << 10 };
// A new file before its first row, without its tables.
enum { FILE_BYTES = 1 << 20 };

typedef struct column_set { // a dataset that grows
    keel_growing what;
    hid_t dataset, memory_space, file_space;
    hsize_t rows;
    uint64_t chunk_rows, chunk_row_bytes; // of all chunks side by side
    keel_op op;                           // KEEL_OP_COUNT: scalars
    keel_op_group group;
} column_set;

struct keel_segment_writer {
    const keel_run_info *info;
    char *path, *new_path; // new_path is NULL once the file has its name
    bool aside, shown;     // shown: there is a copy
    hid_t file, step_type, incident_type;
    keel_reserve reserve; // its fd belongs to HDF5
    uint64_t end;         // of what HDF5 has allocated; the file is at least that long
    column_set *columns;  // scalars, stats, micro and ranks, then the checksums
    size_t column_count;
    column_set steps, incidents, incident_sums;
    uint32_t *sums;      // [column_count] of a row: of each column but the last, then of the step
    uint64_t chunk_rows; // of the widest dataset
};

// ---- open ----

enum { NO_SUM = -1 };

// SUM: its column among the checksums.
static keel_status open_columns(keel_segment_writer *w, column_set *set, int sum) {
    hsize_t chunk[3];
    keel_growing_chunk(&set->what, false, chunk);
    set->dataset = set->memory_space = set->file_space = -1;
    keel_status status = keel_growing_create(w->file, w->new_path, &set->what, false, 0, &set->dataset);
    if (!status && sum != NO_SUM)
        status = keel_h5_put_u32(set->dataset, w->new_path, KEEL_ATTRIBUTE_CHECKSUM, (uint32_t)sum);
    if (status) return status;
    const hsize_t row[3] = {1, set->what.tail[0], set->what.tail[1]};
    set->memory_space = H5Screate_simple(set->what.rank, row, NULL);
    set->file_space = H5Dget_space(set->dataset);
    if (set->memory_space < 0 || set->file_space < 0)
        return keel_h5_fail(KEEL_ERR_IO, w->new_path, "cannot describe %s", set->what.path);
    const hsize_t columns = keel_growing_columns(&set->what),
                  width = set->what.rank == 1 ? 1 : chunk[set->what.rank - 1];
    set->chunk_rows = chunk[0];
    set->chunk_row_bytes =
        chunk[0] * keel_growing_micros(&set->what) * ((columns + width - 1) / width * width) * set->what.element_bytes;
    return KEEL_OK;
}

static void describe(column_set *set, keel_op_group group, keel_op op, hsize_t micros, hsize_t columns) {
    const keel_op_info *info = keel_op_get(op);
    const int rank = group == KEEL_GROUP_MICRO ? 3 : 2;
    set->op = op;
    set->group = group;
    set->what = (keel_growing){.doc = info->doc,
                               .type = info->is_count ? H5T_STD_U64LE : H5T_IEEE_F64LE,
                               .element_bytes = 8,
                               .rank = rank,
                               .tail = {rank == 3 ? micros : columns, columns}};
    keel_op_path(group, op, set->what.path);
}

// Scalars first, then every op of sites, micro-batches and ranks, then the checksums; none has zero columns.
static keel_status list_columns(keel_segment_writer *w) {
    const keel_run_info *info = w->info;
    w->columns = calloc(KEEL_GROUP_COUNT * KEEL_OP_COUNT + 2, sizeof *w->columns);
    if (!w->columns) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its datasets", w->path);
    size_t count = 0;
    if (info->scalar_count > 0)
        w->columns[count++] = (column_set){.op = KEEL_OP_COUNT,
                                           .what = {.path = KEEL_PATH_SCALARS,
                                                    .doc = "columns as in scalar_names; NaN where not set",
                                                    .type = H5T_IEEE_F64LE,
                                                    .element_bytes = 8,
                                                    .rank = 2,
                                                    .tail = {info->scalar_count}}};
    for (unsigned op = 0; op < KEEL_OP_COUNT; op++) {
        if (info->op_stored[op] && info->site_count > 0)
            describe(&w->columns[count++], KEEL_GROUP_STATS, (keel_op)op, 0, info->site_count);
        if (keel_run_keeps_micro(info, (keel_op)op))
            describe(&w->columns[count++], KEEL_GROUP_MICRO, (keel_op)op, info->micro_count, info->micro_site_count);
        if (info->rank_op_stored[op])
            describe(&w->columns[count++], KEEL_GROUP_RANKS, (keel_op)op, 0, info->rank_series_count);
    }
    w->columns[count++] = (column_set){.what = {.path = KEEL_PATH_CHECKSUMS,
                                                .doc = "crc32 of a row of each dataset, in the column that is its "
                                                       "attribute " KEEL_ATTRIBUTE_CHECKSUM,
                                                .type = H5T_STD_U32LE,
                                                .element_bytes = sizeof *w->sums,
                                                .rank = 2,
                                                .tail = {count}}};
    w->column_count = count;
    w->sums = calloc(count, sizeof *w->sums);
    if (!w->sums) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its datasets", w->path);
    w->incident_sums.what = (keel_growing){.path = KEEL_PATH_INCIDENT_CHECKSUMS,
                                           .doc = "crc32 of each record",
                                           .type = H5T_STD_U32LE,
                                           .element_bytes = sizeof *w->sums,
                                           .rank = 1};
    w->incidents.what = (keel_growing){.path = KEEL_PATH_INCIDENTS,
                                       .doc = "append-only; the highest revision of an id wins",
                                       .type = w->incident_type,
                                       .element_bytes = sizeof(keel_incident_record),
                                       .rank = 1};
    w->steps.what = (keel_growing){.path = KEEL_PATH_STEPS,
                                   .doc = "one row per attempt; rows beyond its length are not complete",
                                   .type = w->step_type,
                                   .element_bytes = sizeof(keel_step_record),
                                   .rank = 1};
    return KEEL_OK;
}

static keel_status open_datasets(keel_segment_writer *w) {
    keel_status status = list_columns(w);
    uint64_t widest = 0;
    for (size_t i = 0; !status && i < w->column_count; i++) {
        column_set *set = &w->columns[i];
        if ((status = open_columns(w, set, i + 1 < w->column_count ? (int)i : NO_SUM))) {
            w->column_count = i + 1; // those that close() has to look at
            break;
        }
        if (set->chunk_row_bytes <= widest) continue;
        widest = set->chunk_row_bytes;
        w->chunk_rows = set->chunk_rows;
    }
    if (!status) status = open_columns(w, &w->incidents, 0);
    if (!status) status = open_columns(w, &w->incident_sums, NO_SUM);
    if (!status) status = open_columns(w, &w->steps, (int)w->column_count - 1);
    if (!status && widest == 0) w->chunk_rows = w->steps.chunk_rows;
    return status;
}

// A disk that is full already: before HDF5 makes the file.
static keel_status check_space(const keel_segment_writer *w, const char *directory, uint64_t bytes) {
    struct statvfs volume;
    if (statvfs(directory, &volume) != 0) return keel_fail(KEEL_ERR_IO, "%s: %s", directory, strerror(errno));
    const uint64_t available = (uint64_t)volume.f_bavail * volume.f_frsize;
    if (available >= bytes) return KEEL_OK;
    return keel_fail(KEEL_ERR_LIMIT, "%s: %llu KiB needed, %llu KiB free", w->path, (unsigned long long)bytes >> 10,
                     (unsigned long long)available >> 10);
}

static keel_status create_file(keel_segment_writer *w) {
    hid_t access;
    const keel_status status = keel_h5_access_list(&access);
    if (status) return status;
    // No chunk cache: a row goes into its place in each chunk, instead of each chunk being read and written back whole.
    // HDF5 1.10 takes the setting from the file's access list only.
    if (H5Pset_cache(access, 0, 0, 0, 0) >= 0) w->file = H5Fcreate(w->new_path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    void *handle;
    const bool opened = w->file >= 0 && H5Fget_vfd_handle(w->file, access, &handle) >= 0;
    if (opened) {
        w->reserve.fd = *(int *)handle;
        fcntl(w->reserve.fd, F_SETFD, FD_CLOEXEC); // not for the programs that alerts start
    }
    const keel_status failed = opened ? KEEL_OK : keel_h5_fail(KEEL_ERR_IO, w->new_path, "cannot create it");
    H5Pclose(access);
    return failed;
}

// HDF5 stores its end of file when it flushes and only then makes the file that long: a kill between the two would
// leave a file that looks truncated. So the file is made long enough before. *GREW: HDF5 will set the length itself as
// well, and blocks reserved beyond it are lost.
static keel_status settle(keel_segment_writer *w, bool *grew) {
    haddr_t end;
    if (H5Fget_eoa(w->file, &end) < 0) return keel_h5_fail(KEEL_ERR_IO, w->path, "no end of file");
    *grew = end > w->end;
    if (!*grew) return KEEL_OK;
    if (ftruncate(w->reserve.fd, (off_t)end) != 0)
        return keel_fail(KEEL_ERR_IO, "%s: cannot extend it: %s", w->path, strerror(errno));
    w->end = end;
    return KEEL_OK;
}

static keel_status flush(keel_segment_writer *w) {
    bool grew = false;
    const keel_status status = settle(w, &grew);
    if (status) return status;
    if (H5Fflush(w->file, H5F_SCOPE_GLOBAL) < 0) return keel_h5_fail(KEEL_ERR_IO, w->path, "cannot flush");
    if (grew) w->reserve.upto = w->end;
    return KEEL_OK;
}

static keel_status fill_file(keel_segment_writer *w, const char *origin) {
    w->step_type = keel_record_type(KEEL_RECORD_STEP);
    w->incident_type = keel_record_type(KEEL_RECORD_INCIDENT);
    if (w->step_type < 0 || w->incident_type < 0) return keel_h5_fail(KEEL_ERR_IO, w->new_path, "no record types");
    keel_status status = keel_schema_write_tables(w->file, w->new_path, w->info, origin);
    if (!status) status = open_datasets(w);
    if (!status && H5Fstart_swmr_write(w->file) < 0)
        status = keel_h5_fail(KEEL_ERR_IO, w->new_path, "cannot start SWMR");
    return status ? status : flush(w);
}

keel_status keel_segment_writer_open(const char *directory, uint32_t number, const keel_run_info *info,
                                     const char *origin, bool aside, keel_segment_writer **out) {
    keel_segment_writer *w = calloc(1, sizeof *w);
    if (!w) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for a segment", directory);
    w->info = info;
    w->aside = aside;
    w->reserve.fd = -1;
    w->file = w->step_type = w->incident_type = -1;
    w->steps.dataset = w->steps.memory_space = w->steps.file_space = -1;
    w->incidents.dataset = w->incidents.memory_space = w->incidents.file_space = -1;
    w->incident_sums.dataset = w->incident_sums.memory_space = w->incident_sums.file_space = -1;
    w->path = keel_segment_path(directory, number, "");
    w->new_path = keel_segment_path(directory, number, KEEL_SEGMENT_NEW);
    const uint64_t first =
        FILE_BYTES + info->site_count * sizeof(keel_site_record) + (info->config_yaml ? strlen(info->config_yaml) : 0);
    keel_status status = w->path && w->new_path ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "%s: no memory", directory);
    if (!status) status = check_space(w, directory, first);
    if (!status) status = create_file(w);
    if (!status) status = keel_reserve_until(&w->reserve, w->new_path, first, 0);
    if (!status) status = fill_file(w, origin);
    if (status) {
        // The reason is the first failure, not what closing a half made file may add.
        char reason[1024];
        snprintf(reason, sizeof reason, "%s", keel_error());
        keel_segment_writer_close(w);
        return keel_fail(status, "%s", reason);
    }
    *out = w;
    return KEEL_OK;
}

keel_status keel_segment_writer_publish(keel_segment_writer *w) {
    if (w->aside) {
        const keel_status status = keel_file_copy(w->new_path, w->path);
        if (!status) w->shown = true;
        return status;
    }
    if (rename(w->new_path, w->path) != 0)
        return keel_fail(KEEL_ERR_IO, "%s: cannot rename it: %s", w->new_path, strerror(errno));
    free(w->new_path);
    w->new_path = NULL;
    return KEEL_OK;
}

// ---- rows ----

static uint64_t growth(const column_set *set) {
    return set->rows % set->chunk_rows == 0 ? set->chunk_row_bytes : 0;
}

static uint64_t growth_of_columns(const keel_segment_writer *w) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < w->column_count; i++) bytes += growth(&w->columns[i]);
    return bytes;
}

// What earlier rows allocated and later ones will fill.
static uint64_t unwritten(const keel_segment_writer *w) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < w->column_count; i++) {
        const column_set *set = &w->columns[i];
        const uint64_t done = set->rows % set->chunk_rows;
        if (done) bytes += set->chunk_row_bytes / set->chunk_rows * (set->chunk_rows - done);
    }
    return bytes;
}

static keel_status reserve(keel_segment_writer *w, uint64_t bytes) {
    return keel_reserve_until(&w->reserve, w->path, w->end + bytes + METADATA_BYTES, unwritten(w));
}

static keel_status append(keel_segment_writer *w, column_set *set, const void *data) {
    const int rank = set->what.rank;
    const hsize_t dims[3] = {set->rows + 1, set->what.tail[0], set->what.tail[1]};
    const hsize_t most[3] = {H5S_UNLIMITED, set->what.tail[0], set->what.tail[1]};
    const hsize_t start[3] = {set->rows}, count[3] = {1, set->what.tail[0], set->what.tail[1]};
    if (H5Dset_extent(set->dataset, dims) < 0 || H5Sset_extent_simple(set->file_space, rank, dims, most) < 0 ||
        H5Sselect_hyperslab(set->file_space, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Dwrite(set->dataset, set->what.type, set->memory_space, set->file_space, H5P_DEFAULT, data) < 0)
        return keel_h5_fail(KEEL_ERR_IO, w->path, "cannot write %s", set->what.path);
    return KEEL_OK;
}

static size_t row_bytes(const column_set *set) {
    return keel_growing_micros(&set->what) * keel_growing_columns(&set->what) * set->what.element_bytes;
}

static const void *row_data(const column_set *set, const keel_row *row) {
    if (set->op == KEEL_OP_COUNT) return row->scalars;
    const bool is_count = keel_op_get(set->op)->is_count;
    switch (set->group) {
    case KEEL_GROUP_MICRO:
        return is_count ? (const void *)row->micro_u64[set->op] : row->micro_f64[set->op];
    case KEEL_GROUP_RANKS:
        return is_count ? (const void *)row->rank_u64[set->op] : row->rank_f64[set->op];
    default:
        return is_count ? (const void *)row->u64[set->op] : row->f64[set->op];
    }
}

keel_status keel_segment_writer_make_room(keel_segment_writer *w) {
    return reserve(w, growth_of_columns(w) + growth(&w->steps));
}

keel_status keel_segment_writer_row(keel_segment_writer *w, const keel_row *row) {
    const size_t last = w->column_count - 1;
    keel_step_record record;
    keel_step_to_record(row, &record);
    keel_status status = reserve(w, growth_of_columns(w));
    for (size_t i = 0; !status && i < last; i++) {
        const void *data = row_data(&w->columns[i], row);
        w->sums[i] = keel_row_checksum(0, data, row_bytes(&w->columns[i]));
        status = append(w, &w->columns[i], data);
    }
    w->sums[last] = keel_row_checksum(0, &record, sizeof record);
    if (!status) status = append(w, &w->columns[last], w->sums);
    if (!status) status = flush(w);
    // A refusal here leaves the values written and not vouched for: the next try writes them again.
    if (!status) status = reserve(w, growth(&w->steps));
    if (!status) status = append(w, &w->steps, &record);
    if (!status) status = flush(w);
    if (status) return status;
    for (size_t i = 0; i < w->column_count; i++) w->columns[i].rows++;
    w->steps.rows++;
    return KEEL_OK;
}

keel_status keel_segment_writer_incident(keel_segment_writer *w, const keel_incident *incident) {
    keel_incident_record record;
    keel_incident_to_record(incident, &record);
    const uint32_t sum = keel_row_checksum(0, &record, sizeof record);
    keel_status status = reserve(w, growth(&w->incidents) + growth(&w->incident_sums));
    if (!status) status = append(w, &w->incident_sums, &sum);
    if (!status) status = flush(w);
    if (!status) status = append(w, &w->incidents, &record);
    if (!status) status = flush(w);
    if (status) return status;
    w->incident_sums.rows++;
    w->incidents.rows++;
    return KEEL_OK;
}

// ---- the rest ----

const char *keel_segment_writer_path(const keel_segment_writer *w) {
    return w->path;
}

bool keel_segment_writer_full(const keel_segment_writer *w, uint64_t bytes) {
    const uint64_t rows = w->steps.rows;
    return rows > 0 && rows % w->chunk_rows == 0 && w->end + growth_of_columns(w) > bytes;
}

bool keel_segment_writer_gone(const keel_segment_writer *w) {
    struct stat file;
    return fstat(w->reserve.fd, &file) != 0 || file.st_nlink == 0;
}

static void close_columns(column_set *set) {
    if (set->file_space > 0) H5Sclose(set->file_space);
    if (set->memory_space > 0) H5Sclose(set->memory_space);
    if (set->dataset > 0) H5Dclose(set->dataset);
}

keel_status keel_segment_writer_close(keel_segment_writer *w) {
    keel_status status = KEEL_OK;
    const bool unseen = w->new_path && !w->shown;
    if (unseen && w->reserve.fd >= 0) keel_h5_write_nowhere(w->reserve.fd);
    for (size_t i = 0; i < w->column_count; i++) close_columns(&w->columns[i]);
    close_columns(&w->steps);
    close_columns(&w->incidents);
    close_columns(&w->incident_sums);
    if (w->step_type >= 0) H5Tclose(w->step_type);
    if (w->incident_type >= 0) H5Tclose(w->incident_type);
    if (w->file >= 0) {
        // Flushed first: a close that fails cannot be tried again.
        if (H5Fflush(w->file, H5F_SCOPE_GLOBAL) < 0) {
            status = keel_h5_fail(KEEL_ERR_IO, w->path, "cannot flush");
            keel_h5_write_nowhere(w->reserve.fd);
        }
        if (H5Fclose(w->file) < 0 && !status) status = keel_h5_fail(KEEL_ERR_IO, w->path, "cannot close");
    }
    if (unseen)
        unlink(w->new_path);
    else if (w->new_path && rename(w->new_path, w->path) != 0)
        status = keel_fail(KEEL_ERR_IO, "%s: cannot rename it: %s", w->new_path, strerror(errno));
    else
        keel_reserve_trim(w->path);
    free(w->columns);
    free(w->sums);
    free(w->path);
    free(w->new_path);
    free(w);
    return status;
}

void keel_segment_writer_abandon(keel_segment_writer *w) {
    keel_h5_write_nowhere(w->reserve.fd);
    keel_segment_writer_close(w);
}
