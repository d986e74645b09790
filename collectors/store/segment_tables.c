#include "collectors/store/segment_tables.h"

#include <stdlib.h>
#include <string.h>

#include "collectors/store/checked_dataset.h"
#include "collectors/store/h5.h"

enum { COMMAND_BYTES = 4097, MOST_CONFIG_BYTES = 64 << 20 };
enum { MOST_SITES = 1 << 22, MOST_SCALARS = 1 << 16, MOST_MICROS = 1 << 16, MOST_SERIES = 1 << 24 };

static keel_status read_sites(hid_t file, const char *path, keel_segment_tables *t) {
    const hid_t type = keel_record_type(KEEL_RECORD_SITE);
    if (type < 0) return keel_h5_fail(KEEL_ERR_MEMORY, path, "no record types");
    void *table = NULL;
    keel_status status =
        keel_dataset_read_table(file, path, KEEL_PATH_SITES, type, MOST_SITES, &table, &t->info.site_count);
    H5Tclose(type);
    if (status) return status;
    keel_site_record *records = table;
    t->sites = calloc((size_t)t->info.site_count + 1, sizeof *t->sites);
    if (!t->sites) status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its sites", path);
    for (uint32_t i = 0; !status && i < t->info.site_count; i++)
        status = keel_site_from_record(&records[i], path, i, &t->sites[i]);
    free(records);
    t->info.sites = t->sites;
    return status;
}

static keel_status read_scalar_names(hid_t file, const char *path, keel_segment_tables *t) {
    const hid_t type = keel_h5_text_type(KEEL_STORED_SCALAR_BYTES);
    if (type < 0) return keel_h5_fail(KEEL_ERR_MEMORY, path, "no record types");
    void *table = NULL;
    keel_status status =
        keel_dataset_read_table(file, path, KEEL_PATH_SCALAR_NAMES, type, MOST_SCALARS, &table, &t->info.scalar_count);
    H5Tclose(type);
    if (status) return status;
    t->names = table;
    t->scalar_names = calloc((size_t)t->info.scalar_count + 1, sizeof *t->scalar_names);
    if (!t->scalar_names) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its scalars", path);
    for (uint32_t i = 0; i < t->info.scalar_count; i++) {
        if (!memchr(t->names[i], '\0', sizeof t->names[i]))
            return keel_fail(KEEL_ERR_FORMAT, "%s: " KEEL_PATH_SCALAR_NAMES " row %u has no end", path, i);
        keel_h5_clean_text(t->names[i]);
        t->scalar_names[i] = t->names[i];
    }
    t->info.scalar_names = t->scalar_names;
    return KEEL_OK;
}

static keel_status read_micro_sites(hid_t file, const char *path, keel_segment_tables *t) {
    void *table = NULL;
    const keel_status status = keel_dataset_read_table(file, path, KEEL_PATH_MICRO_SITES, H5T_STD_U32LE, MOST_SITES,
                                                       &table, &t->info.micro_site_count);
    if (status) return status;
    t->info.micro_sites = t->micro_sites = table;
    for (uint32_t k = 0; k < t->info.micro_site_count; k++)
        if (t->micro_sites[k] >= t->info.site_count)
            return keel_fail(KEEL_ERR_FORMAT, "%s: " KEEL_PATH_MICRO_SITES " row %u: no site %u", path, k,
                             t->micro_sites[k]);
    return KEEL_OK;
}

static keel_status read_rank_series(hid_t file, const char *path, keel_segment_tables *t) {
    bool exists = false;
    keel_status status = keel_dataset_find(file, path, KEEL_PATH_RANK_SERIES, &exists);
    if (status || !exists) return status; // written before there were any
    const hid_t type = keel_record_type(KEEL_RECORD_RANK_SERIES);
    if (type < 0) return keel_h5_fail(KEEL_ERR_MEMORY, path, "no record types");
    void *table = NULL;
    status = keel_dataset_read_table(file, path, KEEL_PATH_RANK_SERIES, type, MOST_SERIES, &table,
                                     &t->info.rank_series_count);
    H5Tclose(type);
    if (status) return status;
    t->info.rank_series = t->rank_series = table;
    for (uint32_t j = 0; j < t->info.rank_series_count; j++)
        if (t->rank_series[j].site >= t->info.site_count || t->rank_series[j].rank >= t->info.world_size)
            return keel_fail(KEEL_ERR_FORMAT, "%s: " KEEL_PATH_RANK_SERIES " row %u: no rank %u or no site %u", path, j,
                             t->rank_series[j].rank, t->rank_series[j].site);
    return KEEL_OK;
}

static keel_status read_config(hid_t file, const char *path, keel_segment_tables *t) {
    const keel_status status = keel_dataset_read_text(file, path, KEEL_PATH_CONFIG, MOST_CONFIG_BYTES, &t->config_yaml);
    t->info.config_yaml = t->config_yaml;
    return status;
}

static keel_status read_mesh(hid_t file, const char *path, keel_segment_tables *t) {
    keel_mesh_record mesh = {0};
    const hid_t type = keel_record_type(KEEL_RECORD_MESH);
    const hid_t attribute = H5Aexists(file, "mesh") > 0 ? H5Aopen(file, "mesh", H5P_DEFAULT) : -1;
    const hid_t found = attribute < 0 ? -1 : H5Aget_type(attribute);
    const hid_t space = attribute < 0 ? -1 : H5Aget_space(attribute);
    const bool read = found >= 0 && space >= 0 && type >= 0 && H5Sget_simple_extent_npoints(space) == 1 &&
                      keel_type_fits(type, found) && H5Aread(attribute, type, &mesh) >= 0;
    if (space >= 0) H5Sclose(space);
    if (found >= 0) H5Tclose(found);
    if (attribute >= 0) H5Aclose(attribute);
    if (type >= 0) H5Tclose(type);
    if (!read) return keel_fail(KEEL_ERR_FORMAT, "%s: no attribute mesh", path);
    t->info.dp = mesh.dp;
    t->info.tp = mesh.tp;
    t->info.pp = mesh.pp;
    t->info.ep = mesh.ep;
    return KEEL_OK;
}

static keel_status read_origin(hid_t file, const char *path, keel_segment_tables *t) {
    char origin[KEEL_ENUM_NAME_BYTES];
    const keel_status status = keel_h5_get_text(file, path, KEEL_ATTRIBUTE_ORIGIN, origin, sizeof origin);
    if (status) return status;
    t->resumed = strcmp(origin, KEEL_ORIGIN_RESUME) == 0;
    if (t->resumed || strcmp(origin, KEEL_ORIGIN_START) == 0 || strcmp(origin, KEEL_ORIGIN_ROLLOVER) == 0)
        return KEEL_OK;
    return keel_fail(KEEL_ERR_FORMAT, "%s: attribute " KEEL_ATTRIBUTE_ORIGIN ": unknown name \"%s\"", path, origin);
}

static keel_status read_packed(hid_t file, const char *path, keel_segment_tables *t) {
    bool packed = false;
    keel_status status = keel_h5_has(H5Aexists(file, KEEL_ATTRIBUTE_RISING), path, KEEL_ATTRIBUTE_RISING, &packed);
    if (status || !packed) return status;
    uint32_t rising = 0;
    status = keel_h5_get_u32(file, path, KEEL_ATTRIBUTE_RISING, &rising);
    if (!status) status = keel_h5_get_u64(file, path, KEEL_ATTRIBUTE_FIRST, &t->first_step);
    if (!status) status = keel_h5_get_u64(file, path, KEEL_ATTRIBUTE_LAST, &t->last_step);
    t->rising = rising == 1;
    return status;
}

static keel_status read_attributes(hid_t file, const char *path, keel_segment_tables *t) {
    keel_run_info *info = &t->info;
    uint32_t schema = 0;
    bool is_store = false;
    keel_status status = keel_h5_has(H5Aexists(file, KEEL_ATTRIBUTE_SCHEMA), path, KEEL_ATTRIBUTE_SCHEMA, &is_store);
    if (status) return status;
    if (!is_store) return keel_fail(KEEL_ERR_FORMAT, "%s: an HDF5 file, but not a store of Evenkeel", path);
    status = keel_h5_get_u32(file, path, KEEL_ATTRIBUTE_SCHEMA, &schema);
    if (!status && schema != KEEL_SCHEMA)
        status = keel_fail(KEEL_ERR_FORMAT, "%s: written with schema %u; this program reads schema %d", path, schema,
                           KEEL_SCHEMA);
    t->command = calloc(1, COMMAND_BYTES);
    if (!status && !t->command) status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
    info->command = t->command;
    if (!status) status = keel_h5_get_text(file, path, "run_id", info->run_id, sizeof info->run_id);
    if (!status) status = keel_h5_get_text(file, path, "created_utc", info->created_utc, sizeof info->created_utc);
    if (!status) status = keel_h5_get_text(file, path, "host", info->host, sizeof info->host);
    if (!status) status = keel_h5_get_text(file, path, "command", t->command, COMMAND_BYTES);
    if (!status) status = keel_h5_get_u32(file, path, "world_size", &info->world_size);
    if (!status) status = keel_h5_get_u32(file, path, "micro_count", &info->micro_count);
    if (!status && info->micro_count > MOST_MICROS)
        status = keel_fail(KEEL_ERR_FORMAT, "%s: %u micro-batches", path, info->micro_count);
    if (!status) status = read_mesh(file, path, t);
    if (!status) status = read_origin(file, path, t);
    return status ? status : read_packed(file, path, t);
}

keel_status keel_segment_tables_read(hid_t file, const char *path, keel_segment_tables *t) {
    keel_status status = read_attributes(file, path, t);
    if (!status) status = read_sites(file, path, t);
    if (!status) status = read_scalar_names(file, path, t);
    if (!status) status = read_micro_sites(file, path, t);
    if (!status) status = read_rank_series(file, path, t);
    return status ? status : read_config(file, path, t);
}

void keel_segment_tables_free(keel_segment_tables *t) {
    free(t->command);
    free(t->config_yaml);
    free(t->sites);
    free(t->names);
    free(t->scalar_names);
    free(t->micro_sites);
    free(t->rank_series);
}
