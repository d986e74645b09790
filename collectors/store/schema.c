#include "collectors/store/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectors/store/checksum.h"
#include "collectors/store/h5.h"
#include "collectors/store/pack_worker.h"

enum { LIVE_CHUNK_BYTES = 256 << 10, LIVE_COLUMNS = 2048, LIVE_ROWS = 256 };
enum { PACKED_CHUNK_BYTES = 32 << 10, PACKED_COLUMNS = 16, PACKED_ROWS = 4096 };
enum { INCIDENT_ROWS = 16, TABLE_ROWS = 1024 };

// ---- record types ----

typedef enum member_kind { U32, I32, U64, F64, TEXT, SHAPE } member_kind;

typedef struct member {
    const char *name;
    size_t offset;
    member_kind kind;
    size_t bytes; // TEXT
} member;

#define MEMBER(record, kind, name)                                                                                     \
    { #name, offsetof(record, name), kind, sizeof((record){0}.name) }

static const member step_members[] = {
    MEMBER(keel_step_record, U64, step),           MEMBER(keel_step_record, U64, update),
    MEMBER(keel_step_record, U64, samples),        MEMBER(keel_step_record, U64, first_batch),
    MEMBER(keel_step_record, U64, last_batch),     MEMBER(keel_step_record, F64, time_unix),
    MEMBER(keel_step_record, F64, seconds),        MEMBER(keel_step_record, U64, flags),
    MEMBER(keel_step_record, U64, dropped_frames),
};

static const member site_members[] = {
    MEMBER(keel_site_record, U32, id),        MEMBER(keel_site_record, TEXT, name),
    MEMBER(keel_site_record, TEXT, quantity), MEMBER(keel_site_record, TEXT, module),
    MEMBER(keel_site_record, I32, layer),     MEMBER(keel_site_record, I32, stage),
    MEMBER(keel_site_record, TEXT, phase),    MEMBER(keel_site_record, U32, order),
    MEMBER(keel_site_record, TEXT, dtype),    MEMBER(keel_site_record, U64, numel),
    MEMBER(keel_site_record, U32, ndim),      MEMBER(keel_site_record, SHAPE, shape),
    MEMBER(keel_site_record, TEXT, layout),   MEMBER(keel_site_record, U32, replica_count),
};

static const member incident_members[] = {
    MEMBER(keel_incident_record, U32, id),         MEMBER(keel_incident_record, U32, revision),
    MEMBER(keel_incident_record, TEXT, rule),      MEMBER(keel_incident_record, TEXT, severity),
    MEMBER(keel_incident_record, U32, open),       MEMBER(keel_incident_record, TEXT, series),
    MEMBER(keel_incident_record, TEXT, site),      MEMBER(keel_incident_record, I32, rank),
    MEMBER(keel_incident_record, U64, first_step), MEMBER(keel_incident_record, U64, peak_step),
    MEMBER(keel_incident_record, U64, last_step),  MEMBER(keel_incident_record, F64, value),
    MEMBER(keel_incident_record, F64, expected),   MEMBER(keel_incident_record, F64, score),
    MEMBER(keel_incident_record, TEXT, cause),     MEMBER(keel_incident_record, F64, confidence),
    MEMBER(keel_incident_record, TEXT, message),
};

static const member mesh_members[] = {
    MEMBER(keel_mesh_record, U32, dp),
    MEMBER(keel_mesh_record, U32, tp),
    MEMBER(keel_mesh_record, U32, pp),
    MEMBER(keel_mesh_record, U32, ep),
};

static const member rank_series_members[] = {
    MEMBER(keel_rank_series, U32, rank),
    MEMBER(keel_rank_series, U32, site),
};

static const struct {
    const member *members;
    size_t count, bytes;
} records[] = {
    [KEEL_RECORD_STEP] = {step_members, sizeof step_members / sizeof *step_members, sizeof(keel_step_record)},
    [KEEL_RECORD_SITE] = {site_members, sizeof site_members / sizeof *site_members, sizeof(keel_site_record)},
    [KEEL_RECORD_INCIDENT] = {incident_members, sizeof incident_members / sizeof *incident_members,
                              sizeof(keel_incident_record)},
    [KEEL_RECORD_MESH] = {mesh_members, sizeof mesh_members / sizeof *mesh_members, sizeof(keel_mesh_record)},
    [KEEL_RECORD_RANK_SERIES] = {rank_series_members, sizeof rank_series_members / sizeof *rank_series_members,
                                 sizeof(keel_rank_series)},
};

static hid_t member_type(const member *m) {
    switch (m->kind) {
    case U32:
        return H5Tcopy(H5T_STD_U32LE);
    case I32:
        return H5Tcopy(H5T_STD_I32LE);
    case U64:
        return H5Tcopy(H5T_STD_U64LE);
    case F64:
        return H5Tcopy(H5T_IEEE_F64LE);
    case TEXT:
        return keel_h5_text_type(m->bytes);
    case SHAPE:
        return H5Tarray_create2(H5T_STD_U64LE, 1, (const hsize_t[]){KEEL_MAX_DIMS});
    }
    return -1;
}

hid_t keel_record_type(keel_record_kind kind) {
    const hid_t type = H5Tcreate(H5T_COMPOUND, records[kind].bytes);
    for (size_t i = 0; type >= 0 && i < records[kind].count; i++) {
        const member *m = &records[kind].members[i];
        const hid_t inner = member_type(m);
        const bool inserted = inner >= 0 && H5Tinsert(type, m->name, m->offset, inner) >= 0;
        if (inner >= 0) H5Tclose(inner);
        if (inserted) continue;
        H5Tclose(type);
        return -1;
    }
    return type;
}

size_t keel_record_bytes(keel_record_kind kind) {
    return records[kind].bytes;
}

static bool member_fits(hid_t wanted, unsigned i, hid_t found) {
    char *name = H5Tget_member_name(wanted, i);
    const int index = name ? H5Tget_member_index(found, name) : -1;
    H5free_memory(name);
    const hid_t want = H5Tget_member_type(wanted, i);
    const hid_t have = index < 0 ? -1 : H5Tget_member_type(found, (unsigned)index);
    const bool fits = want >= 0 && have >= 0 && H5Tequal(want, have) > 0;
    if (want >= 0) H5Tclose(want);
    if (have >= 0) H5Tclose(have);
    return fits;
}

bool keel_type_fits(hid_t wanted, hid_t found) {
    if (H5Tequal(wanted, found) > 0) return true;
    if (H5Tget_class(wanted) != H5T_COMPOUND || H5Tget_class(found) != H5T_COMPOUND) return false;
    const int members = H5Tget_nmembers(wanted);
    for (int i = 0; i < members; i++)
        if (!member_fits(wanted, (unsigned)i, found)) return false;
    return members > 0;
}

// ---- records from and to what they stand for ----

void keel_step_to_record(const keel_row *row, keel_step_record *record) {
    const keel_step *step = &row->step;
    *record = (keel_step_record){
        .step = step->step,
        .update = step->update,
        .samples = step->samples,
        .first_batch = step->first_batch,
        .last_batch = step->last_batch,
        .time_unix = step->time_unix,
        .seconds = step->seconds,
        .dropped_frames = row->dropped_frames,
        .flags = step->flags,
    };
}

void keel_step_from_record(const keel_step_record *record, keel_row *row) {
    row->step = (keel_step){
        .step = record->step,
        .update = record->update,
        .samples = record->samples,
        .first_batch = record->first_batch,
        .last_batch = record->last_batch,
        .time_unix = record->time_unix,
        .seconds = record->seconds,
        .flags = (uint32_t)record->flags,
    };
    row->dropped_frames = record->dropped_frames;
}

void keel_site_to_record(const keel_site_info *site, keel_site_record *record) {
    memset(record, 0, sizeof *record); // the rest of each text as well: it is written
    record->id = site->id;
    record->order = site->order;
    record->layer = site->layer;
    record->stage = site->stage;
    record->ndim = site->ndim;
    record->replica_count = site->replica_count;
    record->numel = site->numel;
    memcpy(record->shape, site->shape, sizeof record->shape);
    keel_text_fit(record->name, sizeof record->name, site->name);
    keel_text_fit(record->module, sizeof record->module, site->module);
    keel_text_fit(record->quantity, sizeof record->quantity, keel_quantity_name(site->quantity));
    keel_text_fit(record->dtype, sizeof record->dtype, keel_dtype_name(site->dtype));
    keel_text_fit(record->layout, sizeof record->layout, keel_layout_name(site->layout));
    keel_text_fit(record->phase, sizeof record->phase, keel_phase_name(site->phase));
}

void keel_incident_to_record(const keel_incident *incident, keel_incident_record *record) {
    memset(record, 0, sizeof *record);
    record->id = incident->id;
    record->revision = incident->revision;
    record->rank = incident->rank;
    record->open = incident->open;
    record->first_step = incident->first_step;
    record->peak_step = incident->peak_step;
    record->last_step = incident->last_step;
    record->value = incident->value;
    record->expected = incident->expected;
    record->score = incident->score;
    record->confidence = incident->confidence;
    keel_text_fit(record->severity, sizeof record->severity, keel_severity_name(incident->severity));
    keel_text_fit(record->rule, sizeof record->rule, incident->rule);
    keel_text_fit(record->series, sizeof record->series, incident->series);
    keel_text_fit(record->site, sizeof record->site, incident->site);
    keel_text_fit(record->cause, sizeof record->cause, incident->cause);
    keel_text_fit(record->message, sizeof record->message, incident->message);
}

// Every text of a record ends within its bytes and becomes safe to print.
static keel_status check_texts(keel_record_kind kind, void *record, const char *path, const char *table, size_t row) {
    for (size_t i = 0; i < records[kind].count; i++) {
        const member *m = &records[kind].members[i];
        if (m->kind != TEXT) continue;
        char *text = (char *)record + m->offset;
        if (!memchr(text, '\0', m->bytes))
            return keel_fail(KEEL_ERR_FORMAT, "%s: %s row %zu: %s has no end", path, table, row, m->name);
        keel_h5_clean_text(text);
    }
    return KEEL_OK;
}

// The number whose name is TEXT, or COUNT.
static unsigned find_layout(const char *text) {
    unsigned i = 0;
    while (i < KEEL_LAYOUT_COUNT && strcmp(keel_layout_name((keel_layout)i), text) != 0) i++;
    return i;
}

static unsigned find_phase(const char *text) {
    unsigned i = 0;
    while (i < KEEL_PHASE_COUNT && strcmp(keel_phase_name((keel_phase)i), text) != 0) i++;
    return i;
}

static unsigned find_dtype(const char *text) {
    unsigned i = 0;
    while (i < KEEL_DTYPE_COUNT && strcmp(keel_dtype_name((keel_dtype)i), text) != 0) i++;
    return i;
}

keel_status keel_site_from_record(keel_site_record *record, const char *path, uint32_t row, keel_site_info *site) {
    keel_status status = check_texts(KEEL_RECORD_SITE, record, path, KEEL_PATH_SITES, row);
    if (status) return status;
    const keel_quantity quantity = keel_quantity_find(record->quantity);
    const unsigned dtype = find_dtype(record->dtype), layout = find_layout(record->layout);
    const unsigned phase = find_phase(record->phase);
    const char *unknown = "";
    if (quantity == KEEL_QUANTITY_COUNT) unknown = record->quantity;
    if (dtype == KEEL_DTYPE_COUNT) unknown = record->dtype;
    if (layout == KEEL_LAYOUT_COUNT) unknown = record->layout;
    if (phase == KEEL_PHASE_COUNT) unknown = record->phase;
    if (quantity == KEEL_QUANTITY_COUNT || dtype == KEEL_DTYPE_COUNT || layout == KEEL_LAYOUT_COUNT ||
        phase == KEEL_PHASE_COUNT)
        return keel_fail(KEEL_ERR_FORMAT, "%s: " KEEL_PATH_SITES " row %u: unknown name \"%s\"", path, row, unknown);
    if (record->id != row || record->ndim > KEEL_MAX_DIMS)
        return keel_fail(KEEL_ERR_FORMAT, "%s: " KEEL_PATH_SITES " row %u: id %u, %u dimensions", path, row, record->id,
                         record->ndim);
    *site = (keel_site_info){
        .id = record->id,
        .quantity = quantity,
        .dtype = (keel_dtype)dtype,
        .layout = (keel_layout)layout,
        .phase = (keel_phase)phase,
        .order = record->order,
        .layer = record->layer,
        .stage = record->stage,
        .ndim = record->ndim,
        .numel = record->numel,
        .replica_count = record->replica_count,
    };
    memcpy(site->shape, record->shape, sizeof site->shape);
    memcpy(site->name, record->name, sizeof site->name);
    memcpy(site->module, record->module, sizeof site->module);
    return KEEL_OK;
}

keel_status keel_incident_from_record(keel_incident_record *record, const char *path, size_t row,
                                      keel_incident *incident) {
    keel_status status = check_texts(KEEL_RECORD_INCIDENT, record, path, KEEL_PATH_INCIDENTS, row);
    if (status) return status;
    keel_severity severity;
    if (!keel_severity_find(record->severity, &severity))
        return keel_fail(KEEL_ERR_FORMAT, "%s: " KEEL_PATH_INCIDENTS " row %zu: unknown severity \"%s\"", path, row,
                         record->severity);
    *incident = (keel_incident){
        .id = record->id,
        .revision = record->revision,
        .severity = severity,
        .open = record->open,
        .rank = record->rank,
        .first_step = record->first_step,
        .peak_step = record->peak_step,
        .last_step = record->last_step,
        .value = record->value,
        .expected = record->expected,
        .score = record->score,
        .confidence = record->confidence,
    };
    memcpy(incident->rule, record->rule, sizeof incident->rule);
    memcpy(incident->series, record->series, sizeof incident->series);
    memcpy(incident->site, record->site, sizeof incident->site);
    memcpy(incident->cause, record->cause, sizeof incident->cause);
    memcpy(incident->message, record->message, sizeof incident->message);
    return KEEL_OK;
}

// ---- datasets that grow ----

static const char *const group_paths[KEEL_GROUP_COUNT] = {
    [KEEL_GROUP_STATS] = "/stats", [KEEL_GROUP_MICRO] = "/micro", [KEEL_GROUP_RANKS] = "/ranks"};

const char *keel_op_group_path(keel_op_group group) {
    return group_paths[group];
}

void keel_op_path(keel_op_group group, keel_op op, char path[KEEL_DATASET_PATH_BYTES]) {
    snprintf(path, KEEL_DATASET_PATH_BYTES, "%s/%s", group_paths[group], keel_op_get(op)->name);
}

hsize_t keel_growing_columns(const keel_growing *growing) {
    return growing->rank == 1 ? 1 : growing->tail[growing->rank - 2];
}

hsize_t keel_growing_micros(const keel_growing *growing) {
    return growing->rank == 3 ? growing->tail[0] : 1;
}

static hsize_t divide_up(hsize_t value, hsize_t by) {
    return (value + by - 1) / by;
}

// COLUMNS cut into equal widths of at most WIDEST, multiples of 16, so that little of the last chunk is wasted and a
// band of live chunks is a whole number of packed ones.
static hsize_t chunk_columns(hsize_t columns, hsize_t widest) {
    if (columns <= widest) return columns;
    const hsize_t width = divide_up(columns, divide_up(columns, widest));
    return divide_up(width, PACKED_COLUMNS) * PACKED_COLUMNS;
}

// The greatest power of two of rows that BYTES hold, within 1..MOST.
static hsize_t chunk_rows(hsize_t row_bytes, hsize_t bytes, hsize_t most) {
    hsize_t rows = 1;
    while (2 * rows <= most && 2 * rows * row_bytes <= bytes) rows *= 2;
    return rows;
}

void keel_growing_chunk(const keel_growing *growing, bool packed, hsize_t chunk[3]) {
    packed = packed && !growing->plain;
    const hsize_t micros = keel_growing_micros(growing), all = keel_growing_columns(growing);
    const hsize_t columns = packed ? (all < PACKED_COLUMNS ? all : PACKED_COLUMNS) : chunk_columns(all, LIVE_COLUMNS);
    const hsize_t row_bytes = micros * columns * growing->element_bytes;
    hsize_t rows = packed ? chunk_rows(row_bytes, PACKED_CHUNK_BYTES, PACKED_ROWS)
                          : chunk_rows(row_bytes, LIVE_CHUNK_BYTES, LIVE_ROWS);
    if (!packed && strcmp(growing->path, KEEL_PATH_INCIDENTS) == 0) rows = INCIDENT_ROWS; // rare
    chunk[0] = rows;
    if (growing->rank == 3) chunk[1] = micros;
    if (growing->rank > 1) chunk[growing->rank - 1] = columns;
}

static hid_t creation_list(const hsize_t *chunk, int rank, bool compressed, bool checked) {
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    if (list < 0) return -1;
    // Every value that /steps vouches for was written: filling chunks first would only write them twice.
    if (H5Pset_obj_track_times(list, false) >= 0 && H5Pset_chunk(list, rank, chunk) >= 0 &&
        H5Pset_fill_time(list, H5D_FILL_TIME_NEVER) >= 0 &&
        (!compressed || (H5Pset_shuffle(list) >= 0 && H5Pset_deflate(list, KEEL_DEFLATE_LEVEL) >= 0)) &&
        (!checked || H5Pset_fletcher32(list) >= 0))
        return list;
    H5Pclose(list);
    return -1;
}

keel_status keel_growing_create(hid_t file, const char *file_path, const keel_growing *growing, bool packed,
                                hsize_t rows, hid_t *out) {
    hsize_t dims[3] = {rows, growing->tail[0], growing->tail[1]};
    hsize_t most[3] = {H5S_UNLIMITED, growing->tail[0], growing->tail[1]}, chunk[3];
    keel_growing_chunk(growing, packed, chunk);
    const hid_t list = creation_list(chunk, growing->rank, packed && !growing->plain, packed);
    const hid_t space = H5Screate_simple(growing->rank, dims, most);
    const hid_t dataset = list < 0 || space < 0
                              ? -1
                              : H5Dcreate2(file, growing->path, growing->type, space, H5P_DEFAULT, list, H5P_DEFAULT);
    keel_status status = KEEL_OK;
    if (dataset < 0) status = keel_h5_fail(KEEL_ERR_IO, file_path, "cannot create %s", growing->path);
    if (space >= 0) H5Sclose(space);
    if (list >= 0) H5Pclose(list);
    if (!status && growing->doc) {
        status = keel_h5_put_text(dataset, file_path, "doc", growing->doc);
        if (status) H5Dclose(dataset);
    }
    if (status) return status;
    *out = dataset;
    return KEEL_OK;
}

// ---- tables ----

static keel_status write_table(hid_t file, const char *path, const char *name, hid_t type, hsize_t rows,
                               const void *data) {
    const hsize_t chunk = rows < TABLE_ROWS ? rows : TABLE_ROWS;
    const hid_t space = H5Screate_simple(1, &rows, NULL);
    const hid_t list = rows == 0 ? H5Pcreate(H5P_DATASET_CREATE) : creation_list(&chunk, 1, true, true);
    const hid_t dataset =
        space < 0 || list < 0 || type < 0 ? -1 : H5Dcreate2(file, name, type, space, H5P_DEFAULT, list, H5P_DEFAULT);
    keel_status status = KEEL_OK;
    if (dataset < 0 || (rows > 0 && H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0))
        status = keel_h5_fail(KEEL_ERR_IO, path, "cannot write %s", name);
    if (dataset >= 0) H5Dclose(dataset);
    if (list >= 0) H5Pclose(list);
    if (space >= 0) H5Sclose(space);
    return status;
}

static keel_status write_sites(hid_t file, const char *path, const keel_run_info *info) {
    keel_site_record *sites = calloc((size_t)info->site_count + 1, sizeof *sites);
    if (!sites) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for %u sites", path, info->site_count);
    for (uint32_t s = 0; s < info->site_count; s++) keel_site_to_record(&info->sites[s], &sites[s]);
    const hid_t type = keel_record_type(KEEL_RECORD_SITE);
    keel_status status = write_table(file, path, KEEL_PATH_SITES, type, info->site_count, sites);
    if (type >= 0) H5Tclose(type);
    free(sites);
    return status;
}

static keel_status write_scalar_names(hid_t file, const char *path, const keel_run_info *info) {
    char(*names)[KEEL_STORED_SCALAR_BYTES] = calloc((size_t)info->scalar_count + 1, sizeof *names);
    if (!names) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for %u scalars", path, info->scalar_count);
    keel_status status = KEEL_OK;
    for (uint32_t i = 0; !status && i < info->scalar_count; i++)
        if (!keel_text_fit(names[i], sizeof names[i], info->scalar_names[i])) // cut, it could equal another
            status = keel_fail(KEEL_ERR_LIMIT, "%s: scalar %s: a name has at most %zu bytes", path,
                               info->scalar_names[i], sizeof names[i] - 1);
    const hid_t type = status ? -1 : keel_h5_text_type(KEEL_STORED_SCALAR_BYTES);
    if (!status) status = write_table(file, path, KEEL_PATH_SCALAR_NAMES, type, info->scalar_count, names);
    if (type >= 0) H5Tclose(type);
    free(names);
    return status;
}

static keel_status write_rank_series(hid_t file, const char *path, const keel_run_info *info) {
    const hid_t type = keel_record_type(KEEL_RECORD_RANK_SERIES);
    const keel_status status =
        write_table(file, path, KEEL_PATH_RANK_SERIES, type, info->rank_series_count, info->rank_series);
    if (type >= 0) H5Tclose(type);
    return status;
}

static keel_status write_config(hid_t file, const char *path, const char *yaml) {
    const hid_t type = keel_h5_text_type(strlen(yaml) + 1);
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t dataset = type < 0 || space < 0
                              ? -1
                              : H5Dcreate2(file, KEEL_PATH_CONFIG, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    keel_status status = KEEL_OK;
    if (dataset < 0 || H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, yaml) < 0)
        status = keel_h5_fail(KEEL_ERR_IO, path, "cannot write " KEEL_PATH_CONFIG);
    // HDF5 has filters for what is in chunks alone.
    if (!status)
        status = keel_h5_put_u32(dataset, path, KEEL_ATTRIBUTE_CRC32, keel_row_checksum(0, yaml, strlen(yaml) + 1));
    if (dataset >= 0) H5Dclose(dataset);
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    return status;
}

static keel_status write_mesh(hid_t file, const char *path, const keel_run_info *info) {
    const keel_mesh_record mesh = {.dp = info->dp, .tp = info->tp, .pp = info->pp, .ep = info->ep};
    const hid_t type = keel_record_type(KEEL_RECORD_MESH);
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute =
        type < 0 || space < 0 ? -1 : H5Acreate2(file, "mesh", type, space, H5P_DEFAULT, H5P_DEFAULT);
    keel_status status = KEEL_OK;
    if (attribute < 0 || H5Awrite(attribute, type, &mesh) < 0)
        status = keel_h5_fail(KEEL_ERR_IO, path, "cannot write attribute mesh");
    if (attribute >= 0) H5Aclose(attribute);
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    return status;
}

static keel_status write_attributes(hid_t file, const char *path, const keel_run_info *info, const char *origin) {
    // A command line may be longer than an attribute can be.
    char command[4096];
    keel_text_fit(command, sizeof command, info->command ? info->command : "");
    const struct {
        const char *name, *text;
    } texts[] = {{"run_id", info->run_id}, {"created_utc", info->created_utc}, {"host", info->host},
                 {"command", command},     {KEEL_ATTRIBUTE_ORIGIN, origin},    {"keel_version", KEEL_VERSION}};
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {
        {KEEL_ATTRIBUTE_SCHEMA, KEEL_SCHEMA}, {"world_size", info->world_size}, {"micro_count", info->micro_count}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const keel_status status = keel_h5_put_text(file, path, texts[i].name, texts[i].text);
        if (status) return status;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const keel_status status = keel_h5_put_u32(file, path, numbers[i].name, numbers[i].value);
        if (status) return status;
    }
    return write_mesh(file, path, info);
}

keel_status keel_schema_make_groups(hid_t file, const char *path) {
    for (size_t i = 0; i < KEEL_GROUP_COUNT; i++) {
        const hid_t group = H5Gcreate2(file, group_paths[i], H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        if (group < 0) return keel_h5_fail(KEEL_ERR_IO, path, "cannot create %s", group_paths[i]);
        H5Gclose(group);
    }
    return KEEL_OK;
}

keel_status keel_schema_write_tables(hid_t file, const char *path, const keel_run_info *info, const char *origin) {
    keel_status status = keel_schema_make_groups(file, path);
    if (!status) status = write_attributes(file, path, info, origin);
    if (!status) status = write_sites(file, path, info);
    if (!status) status = write_scalar_names(file, path, info);
    if (!status)
        status =
            write_table(file, path, KEEL_PATH_MICRO_SITES, H5T_STD_U32LE, info->micro_site_count, info->micro_sites);
    if (!status) status = write_rank_series(file, path, info);
    if (!status) status = write_config(file, path, info->config_yaml ? info->config_yaml : "");
    return status;
}
