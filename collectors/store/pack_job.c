#include "collectors/store/pack_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectors/row.h"
#include "collectors/store/checksum.h"
#include "collectors/store/h5.h"
#include "collectors/store/reserve.h"
#include "collectors/store/schema.h"
#include "collectors/store/segment_head.h"
#include "collectors/store/store_files.h"

enum { METADATA_BYTES = 256 << 10, OP_PATHS = KEEL_GROUP_COUNT * KEEL_OP_COUNT, MOST_SETS = OP_PATHS + 3 };

typedef struct column_set { // a dataset that grows, in both files
    keel_growing what;
    hid_t type, from, to;
    hsize_t rows;
    size_t chunk_rows, chunk_columns;
    hsize_t piece_columns; // a multiple of chunk_columns
    const char *sums_path; // NULL: it has no checksums
    uint32_t sum_column;
} column_set;

typedef struct place {
    size_t set;
    hsize_t row, column;
} place;

struct keel_pack_job {
    char *path, *packed_path;
    size_t piece_bytes;
    hid_t source, target;
    keel_reserve reserve;       // of the target; its fd belongs to HDF5
    column_set sets[MOST_SETS]; // /steps first
    size_t set_count;
    place next;                   // of the next piece to read
    place read[KEEL_PACK_PIECES]; // of those read and not written, oldest first
    size_t read_count;
    uint32_t *sums; // [chunk_rows, micros] of the band of rows that is read, up to the piece's columns
    size_t sums_capacity;
    uint64_t first_step, last_step;
    bool rising, any_step;
};

// ---- begin ----

static keel_status describe(keel_pack_job *job, const char *path, column_set *set) {
    snprintf(set->what.path, sizeof set->what.path, "%s", path);
    set->to = set->type = -1;
    set->from = H5Dopen2(job->source, path, H5P_DEFAULT);
    const hid_t space = set->from < 0 ? -1 : H5Dget_space(set->from);
    hsize_t dims[H5S_MAX_RANK] = {0};
    const int rank = space < 0 ? -1 : H5Sget_simple_extent_dims(space, dims, NULL);
    if (space >= 0) H5Sclose(space);
    set->type = set->from < 0 ? -1 : H5Dget_type(set->from);
    if (rank < 1 || rank > 3 || set->type < 0) return keel_h5_fail(KEEL_ERR_FORMAT, job->path, "cannot open %s", path);
    set->what.type = set->type;
    set->what.element_bytes = H5Tget_size(set->type);
    set->what.rank = rank;
    set->what.tail[0] = dims[1];
    set->what.tail[1] = dims[2];
    set->rows = dims[0];
    return KEEL_OK;
}

// Where its checksums are; those of a segment that an earlier program wrote are nowhere.
static keel_status find_sums(keel_pack_job *job, column_set *set) {
    const char *path =
        strcmp(set->what.path, KEEL_PATH_INCIDENTS) == 0 ? KEEL_PATH_INCIDENT_CHECKSUMS : KEEL_PATH_CHECKSUMS;
    bool has = false;
    keel_status status =
        keel_h5_has(H5Aexists(set->from, KEEL_ATTRIBUTE_CHECKSUM), job->path, KEEL_ATTRIBUTE_CHECKSUM, &has);
    if (status || !has) return status;
    status = keel_h5_get_u32(set->from, job->path, KEEL_ATTRIBUTE_CHECKSUM, &set->sum_column);
    if (status) return status;
    set->sums_path = path;
    const size_t needed = set->chunk_rows * keel_growing_micros(&set->what);
    if (needed <= job->sums_capacity) return KEEL_OK;
    uint32_t *sums = realloc(job->sums, needed * sizeof *sums);
    if (!sums) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for checksums", job->path);
    job->sums = sums;
    job->sums_capacity = needed;
    return KEEL_OK;
}

static keel_status open_set(keel_pack_job *job, const char *path, const char *doc) {
    column_set *set = &job->sets[job->set_count++]; // counted first: what is open is closed with the job
    keel_status status = describe(job, path, set);
    if (status) return status;
    // Rows that /steps does not vouch for stay behind.
    if (strcmp(path, KEEL_PATH_INCIDENTS) != 0 && set->rows > job->sets[0].rows) set->rows = job->sets[0].rows;
    set->what.plain = strcmp(path, KEEL_PATH_STEPS) == 0 || strcmp(path, KEEL_PATH_SCALARS) == 0;
    hsize_t chunk[3];
    keel_growing_chunk(&set->what, true, chunk);
    set->chunk_rows = chunk[0];
    set->chunk_columns = set->what.rank == 1 ? 1 : chunk[set->what.rank - 1];
    const size_t chunk_bytes =
        set->chunk_rows * keel_growing_micros(&set->what) * set->chunk_columns * set->what.element_bytes;
    if (chunk_bytes == 0 || chunk_bytes > job->piece_bytes)
        return keel_fail(KEEL_ERR_LIMIT, "%s: %s: its rows are not of a size that can be packed", job->path, path);
    set->piece_columns = job->piece_bytes / chunk_bytes * set->chunk_columns;
    if ((status = find_sums(job, set))) return status;
    set->what.doc = doc;
    return keel_growing_create(job->target, job->packed_path, &set->what, true, set->rows, &set->to);
}

// The path of every op in every group, by turns, and the op.
static const keel_op_info *op_path(unsigned i, char path[KEEL_DATASET_PATH_BYTES]) {
    const keel_op op = (keel_op)(i / KEEL_GROUP_COUNT);
    keel_op_path((keel_op_group)(i % KEEL_GROUP_COUNT), op, path);
    return keel_op_get(op);
}

static keel_status has_link(const keel_pack_job *job, const char *path, bool *has) {
    return keel_h5_has(H5Lexists(job->source, path, H5P_DEFAULT), job->path, path, has);
}

// An op as op_path counts them; a segment of before may lack its group.
static keel_status has_op(const keel_pack_job *job, unsigned i, const char *path, bool *has) {
    const keel_status status = has_link(job, keel_op_group_path((keel_op_group)(i % KEEL_GROUP_COUNT)), has);
    return status || !*has ? status : has_link(job, path, has);
}

static keel_status open_sets(keel_pack_job *job) {
    // Their length is that of all others, and their values are looked at on the way.
    keel_status status = open_set(job, KEEL_PATH_STEPS, NULL);
    if (!status && job->sets[0].what.element_bytes != keel_record_bytes(KEEL_RECORD_STEP))
        status = keel_fail(KEEL_ERR_FORMAT, "%s: " KEEL_PATH_STEPS " has another type", job->path);
    bool has = false;
    if (!status) status = has_link(job, KEEL_PATH_SCALARS, &has);
    if (!status && has) status = open_set(job, KEEL_PATH_SCALARS, NULL);
    if (!status) status = open_set(job, KEEL_PATH_INCIDENTS, NULL);
    for (unsigned i = 0; !status && i < OP_PATHS; i++) {
        char path[KEEL_DATASET_PATH_BYTES];
        const keel_op_info *op = op_path(i, path);
        status = has_op(job, i, path, &has);
        if (!status && has) status = open_set(job, path, op->doc);
    }
    return status;
}

static bool copy_value(hid_t attribute, hid_t type, hid_t space, hid_t to, const char *name) {
    const hssize_t count = H5Sget_simple_extent_npoints(space);
    const bool fixed = H5Tdetect_class(type, H5T_VLEN) == 0 && H5Tis_variable_str(type) <= 0;
    void *value = fixed && count > 0 ? calloc((size_t)count, H5Tget_size(type)) : NULL;
    if (!value) return false;
    bool copied = false;
    if (H5Aread(attribute, type, value) >= 0) {
        const hid_t copy = H5Acreate2(to, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
        copied = copy >= 0 && H5Awrite(copy, type, value) >= 0;
        if (copy >= 0) H5Aclose(copy);
    }
    free(value);
    return copied;
}

static herr_t copy_attribute(hid_t from, const char *name, const H5A_info_t *info, void *to) {
    (void)info;
    const hid_t attribute = H5Aopen(from, name, H5P_DEFAULT);
    if (attribute < 0) return -1;
    const hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    const bool copied = type >= 0 && space >= 0 && copy_value(attribute, type, space, *(const hid_t *)to, name);
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    H5Aclose(attribute);
    return copied ? 0 : -1;
}

static keel_status copy_tables(keel_pack_job *job) {
    static const char *const tables[] = {KEEL_PATH_SITES, KEEL_PATH_SCALAR_NAMES, KEEL_PATH_MICRO_SITES,
                                         KEEL_PATH_RANK_SERIES, KEEL_PATH_CONFIG};
    if (H5Aiterate2(job->source, H5_INDEX_NAME, H5_ITER_INC, NULL, copy_attribute, &job->target) < 0)
        return keel_h5_fail(KEEL_ERR_IO, job->packed_path, "cannot copy attributes");
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        bool has = false;
        const keel_status status = has_link(job, tables[i], &has);
        if (status) return status;
        // A segment of before has no series of ranks.
        if (has && H5Ocopy(job->source, tables[i], job->target, tables[i], H5P_DEFAULT, H5P_DEFAULT) < 0)
            return keel_h5_fail(KEEL_ERR_IO, job->packed_path, "cannot copy %s", tables[i]);
    }
    return keel_schema_make_groups(job->target, job->packed_path);
}

// *WORTH: packing gains something: a run of scalars alone is read faster as it is.
static keel_status is_worth_packing(const keel_pack_job *job, bool *worth) {
    bool has = false;
    keel_status status =
        keel_h5_has(H5Aexists(job->source, KEEL_ATTRIBUTE_RISING), job->path, KEEL_ATTRIBUTE_RISING, &has);
    *worth = false;
    if (status || has) return status; // done
    char path[KEEL_DATASET_PATH_BYTES];
    for (unsigned i = 0; !status && !*worth && i < OP_PATHS; i++) {
        op_path(i, path);
        status = has_op(job, i, path, worth);
    }
    return status;
}

static keel_status open_source(keel_pack_job *job, hid_t access, uint64_t *bytes, bool *wanted) {
    keel_segment_head head;
    const keel_status status = keel_segment_head_read(job->path, &head);
    if (status) return status;
    // Pieces are narrower than the source's chunks, which a cache would load again for each.
    H5Pset_cache(access, 0, 0, 0, 0);
    // A killed writer's file is marked as open and is read as if it were.
    job->source = H5Fopen(job->path, H5F_ACC_RDONLY | (head.open ? H5F_ACC_SWMR_READ : 0), access);
    if (job->source < 0) return keel_h5_fail(KEEL_ERR_FORMAT, job->path, "cannot open it");
    *bytes = head.bytes;
    return is_worth_packing(job, wanted);
}

static keel_status create_target(keel_pack_job *job, hid_t access, uint64_t source_bytes) {
    void *handle;
    job->target = H5Fcreate(job->packed_path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    if (job->target < 0 || H5Fget_vfd_handle(job->target, access, &handle) < 0)
        return keel_h5_fail(KEEL_ERR_IO, job->packed_path, "cannot create it");
    job->reserve.fd = *(int *)handle;
    // The tables, which are a part of the source.
    enum { TABLE_BYTES = 4 << 20 };
    keel_status status =
        keel_reserve_until(&job->reserve, job->packed_path, source_bytes < TABLE_BYTES ? source_bytes : TABLE_BYTES, 0);
    if (!status) status = copy_tables(job);
    if (!status) status = open_sets(job);
    return status;
}

static keel_status open_files(keel_pack_job *job, bool *wanted) {
    if (!job->path || !job->packed_path) return keel_fail(KEEL_ERR_MEMORY, "no memory to pack a segment");
    hid_t access;
    keel_status status = keel_h5_access_list(&access);
    if (status) return status;
    uint64_t bytes = 0;
    status = open_source(job, access, &bytes, wanted);
    if (!status && *wanted) status = create_target(job, access, bytes);
    H5Pclose(access);
    return status;
}

static bool close_files(keel_pack_job *job) {
    bool closed = true;
    for (size_t i = 0; i < job->set_count; i++) {
        const column_set *set = &job->sets[i];
        if (set->type >= 0) H5Tclose(set->type);
        if (set->from >= 0) H5Dclose(set->from);
        if (set->to >= 0) H5Dclose(set->to);
    }
    job->set_count = 0;
    if (job->source >= 0) H5Fclose(job->source);
    if (job->target >= 0) {
        closed = H5Fclose(job->target) >= 0;
        keel_reserve_trim(job->packed_path);
    }
    job->source = job->target = -1;
    return closed;
}

keel_status keel_pack_job_open(const char *directory, uint32_t number, size_t piece_bytes, keel_pack_job **out) {
    keel_pack_job *job = calloc(1, sizeof *job);
    if (!job) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory to pack a segment", directory);
    job->piece_bytes = piece_bytes;
    job->source = job->target = -1;
    job->reserve.fd = -1;
    job->rising = true;
    job->path = keel_segment_path(directory, number, "");
    job->packed_path = keel_segment_path(directory, number, KEEL_SEGMENT_PACKED);
    bool wanted = false;
    const keel_status status = open_files(job, &wanted);
    if (status || !wanted) {
        keel_pack_job_close(job);
        job = NULL;
    }
    if (!status) *out = job;
    return status;
}

void keel_pack_job_close(keel_pack_job *job) {
    if (!job) return;
    if (job->target >= 0 && job->reserve.fd >= 0) keel_h5_write_nowhere(job->reserve.fd); // it was given up
    close_files(job);
    if (job->packed_path) unlink(job->packed_path); // it has its final name, or is of no use
    free(job->path);
    free(job->packed_path);
    free(job->sums);
    free(job);
}

const char *keel_pack_job_path(const keel_pack_job *job) {
    return job->path;
}

// ---- pieces ----

static void look_at_steps(keel_pack_job *job, const keel_pack_piece *piece) {
    for (size_t i = 0; i < piece->rows; i++) {
        keel_step_record record;
        memcpy(&record, piece->raw + i * sizeof record, sizeof record);
        if (!job->any_step) job->first_step = record.step;
        if (job->any_step && record.step <= job->last_step) job->rising = false;
        job->last_step = record.step;
        job->any_step = true;
    }
}

static hsize_t smaller(hsize_t a, hsize_t b) {
    return a < b ? a : b;
}

static keel_status read_piece(const keel_pack_job *job, const place *at, keel_pack_piece *piece) {
    const column_set *set = &job->sets[at->set];
    const int rank = set->what.rank;
    piece->rows = smaller(set->rows - at->row, set->chunk_rows);
    piece->columns = smaller(keel_growing_columns(&set->what) - at->column, set->piece_columns);
    piece->micros = keel_growing_micros(&set->what);
    piece->element_bytes = set->what.element_bytes;
    piece->chunk_rows = set->chunk_rows;
    piece->chunk_columns = set->chunk_columns;
    piece->as_is = set->what.plain;
    hsize_t start[3] = {at->row}, count[3] = {piece->rows, piece->micros};
    if (rank > 1) {
        start[rank - 1] = at->column;
        count[rank - 1] = piece->columns;
    }
    const hid_t memory = H5Screate_simple(rank, count, NULL), file = H5Dget_space(set->from);
    keel_status status = KEEL_OK;
    if (memory < 0 || file < 0 || H5Sselect_hyperslab(file, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Dread(set->from, set->type, memory, file, H5P_DEFAULT, piece->raw) < 0)
        status = keel_h5_fail(KEEL_ERR_FORMAT, job->path, "cannot read %s", set->what.path);
    if (memory >= 0) H5Sclose(memory);
    if (file >= 0) H5Sclose(file);
    return status;
}

static keel_status read_sums(const keel_pack_job *job, const column_set *set, hsize_t row, hsize_t rows,
                             uint32_t *sums) {
    const hid_t from = H5Dopen2(job->source, set->sums_path, H5P_DEFAULT), space = from < 0 ? -1 : H5Dget_space(from);
    const hsize_t start[2] = {row, set->sum_column}, count[2] = {rows, 1};
    const hid_t memory = H5Screate_simple(1, &rows, NULL);
    keel_status status = KEEL_OK;
    if (space < 0 || memory < 0 || H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Dread(from, H5T_STD_U32LE, memory, space, H5P_DEFAULT, sums) < 0)
        status = keel_h5_fail(KEEL_ERR_FORMAT, job->path, "cannot read %s", set->sums_path);
    if (memory >= 0) H5Sclose(memory);
    if (space >= 0) H5Sclose(space);
    if (from >= 0) H5Dclose(from);
    return status;
}

// What is damaged must not get a checksum that vouches for it. A row comes in pieces, one after another.
static keel_status check_piece(keel_pack_job *job, const place *at, const keel_pack_piece *piece) {
    const column_set *set = &job->sets[at->set];
    if (!set->sums_path) return KEEL_OK;
    const size_t bytes = piece->columns * piece->element_bytes;
    for (size_t i = 0; i < piece->rows * piece->micros; i++)
        job->sums[i] = keel_row_checksum(at->column ? job->sums[i] : 0, piece->raw + i * bytes, bytes);
    const hsize_t columns = keel_growing_columns(&set->what);
    if (at->column + piece->columns < columns) return KEEL_OK;
    uint32_t *wanted = malloc(piece->rows * sizeof *wanted);
    if (!wanted) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for checksums", job->path);
    keel_status status = read_sums(job, set, at->row, piece->rows, wanted);
    for (size_t i = 0; !status && i < piece->rows; i++) {
        const uint32_t *sums = job->sums + i * piece->micros;
        uint32_t sum = sums[0];
        for (size_t m = 1; m < piece->micros; m++)
            sum = keel_row_checksum_join(sum, sums[m], columns * piece->element_bytes);
        if (sum != wanted[i]) status = keel_row_checksum_fails(job->path, set->what.path, at->row + i);
    }
    free(wanted);
    return status;
}

// The place after AT in its dataset.
static void step_on(const keel_pack_job *job, place *at) {
    const column_set *set = &job->sets[at->set];
    at->column += set->piece_columns;
    if (at->column < keel_growing_columns(&set->what)) return;
    at->column = 0;
    at->row += set->chunk_rows;
}

keel_status keel_pack_job_read(keel_pack_job *job, keel_pack_piece *piece, bool *more) {
    while (job->next.set < job->set_count && job->next.row >= job->sets[job->next.set].rows)
        job->next = (place){.set = job->next.set + 1};
    *more = job->next.set < job->set_count;
    if (!*more) return KEEL_OK;
    keel_status status = read_piece(job, &job->next, piece);
    if (!status) status = check_piece(job, &job->next, piece);
    if (status) return status;
    if (job->next.set == 0) look_at_steps(job, piece);
    job->read[job->read_count++] = job->next;
    step_on(job, &job->next);
    return KEEL_OK;
}

keel_status keel_pack_job_write(keel_pack_job *job, const keel_pack_piece *piece) {
    enum { WITHOUT_DEFLATE = 1u << 1 }; // the second filter of the pipeline
    const place at = job->read[0];
    const column_set *set = &job->sets[at.set];
    job->read_count--;
    memmove(job->read, job->read + 1, job->read_count * sizeof *job->read);
    if (piece->error) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory to compress it", job->path);
    uint64_t bytes = METADATA_BYTES;
    for (size_t i = 0; i < piece->chunk_count; i++) bytes += piece->bytes[i];
    haddr_t end;
    if (H5Fget_eoa(job->target, &end) < 0) return keel_h5_fail(KEEL_ERR_IO, job->packed_path, "no end of file");
    const keel_status status = keel_reserve_until(&job->reserve, job->packed_path, end + bytes, 0);
    if (status) return status;
    for (size_t i = 0; i < piece->chunk_count; i++) {
        hsize_t offset[3] = {at.row};
        if (set->what.rank > 1) offset[set->what.rank - 1] = at.column + i * set->chunk_columns;
        if (H5Dwrite_chunk(set->to, H5P_DEFAULT, piece->plain[i] ? WITHOUT_DEFLATE : 0, offset, piece->bytes[i],
                           piece->packed + piece->offsets[i]) < 0)
            return keel_h5_fail(KEEL_ERR_IO, job->packed_path, "cannot write %s", set->what.path);
    }
    return KEEL_OK;
}

keel_status keel_pack_job_finish(keel_pack_job *job, keel_pack_piece *piece) {
    keel_status status = keel_h5_put_u64(job->target, job->packed_path, KEEL_ATTRIBUTE_FIRST, job->first_step);
    if (!status) status = keel_h5_put_u64(job->target, job->packed_path, KEEL_ATTRIBUTE_LAST, job->last_step);
    if (!status) status = keel_h5_put_u32(job->target, job->packed_path, KEEL_ATTRIBUTE_RISING, job->rising);
    if (!status && H5Fflush(job->target, H5F_SCOPE_LOCAL) < 0)
        status = keel_h5_fail(KEEL_ERR_IO, job->packed_path, "cannot flush");
    if (status) return status;
    if (!close_files(job)) return keel_h5_fail(KEEL_ERR_IO, job->packed_path, "cannot close");
    piece->rows = 0;
    piece->from = job->packed_path;
    piece->to = job->path;
    return KEEL_OK;
}
