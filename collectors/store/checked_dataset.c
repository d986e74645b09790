#include "collectors/store/checked_dataset.h"

#include <stdlib.h>

#include "collectors/store/checksum.h"
#include "collectors/store/h5.h"
#include "collectors/store/schema.h"

enum { MOST_CHUNK_BYTES = 64 << 20 };

keel_status keel_dataset_find(hid_t file, const char *file_path, const char *path, bool *exists) {
    H5L_info_t link;
    const keel_status status = keel_h5_has(H5Lexists(file, path, H5P_DEFAULT), file_path, path, exists);
    if (status || !*exists) return status;
    if (H5Lget_info(file, path, &link, H5P_DEFAULT) < 0)
        return keel_h5_fail(KEEL_ERR_FORMAT, file_path, "cannot look for %s", path);
    *exists = link.type == H5L_TYPE_HARD;
    return KEEL_OK;
}

// Data in this file alone, behind no filter but ours, in chunks of bearable size.
static bool layout_is_ours(hid_t dataset, size_t element_bytes) {
    const hid_t list = H5Dget_create_plist(dataset);
    if (list < 0) return false;
    const H5D_layout_t layout = H5Pget_layout(list);
    bool ours = (layout == H5D_CHUNKED || layout == H5D_CONTIGUOUS || layout == H5D_COMPACT) &&
                H5Pget_external_count(list) == 0;
    const int filters = H5Pget_nfilters(list);
    for (int i = 0; i < filters; i++) {
        unsigned flags, config;
        size_t parameters = 0;
        const H5Z_filter_t filter = H5Pget_filter2(list, (unsigned)i, &flags, &parameters, NULL, 0, NULL, &config);
        ours =
            ours && (filter == H5Z_FILTER_SHUFFLE || filter == H5Z_FILTER_DEFLATE || filter == H5Z_FILTER_FLETCHER32);
    }
    hsize_t chunk[3];
    const int rank = layout == H5D_CHUNKED ? H5Pget_chunk(list, 3, chunk) : 0;
    uint64_t bytes = element_bytes;
    for (int i = 0; i < rank && i < 3; i++) {
        ours = ours && chunk[i] > 0 && chunk[i] <= MOST_CHUNK_BYTES;
        bytes *= ours ? chunk[i] : 0;
        ours = ours && bytes <= MOST_CHUNK_BYTES;
    }
    H5Pclose(list);
    return ours && rank >= 0 && rank <= 3 && filters >= 0;
}

static keel_status not_of_the_form(const char *file_path, const char *path) {
    return keel_fail(KEEL_ERR_FORMAT, "%s: %s is not of the form that schema %d gives it", file_path, path,
                     KEEL_SCHEMA);
}

static keel_status open_any(hid_t file, const char *file_path, const char *path, hid_t *dataset) {
    bool exists = false;
    const keel_status status = keel_dataset_find(file, file_path, path, &exists);
    if (status) return status;
    if (!exists) return keel_fail(KEEL_ERR_FORMAT, "%s: no dataset %s", file_path, path);
    *dataset = H5Dopen2(file, path, H5P_DEFAULT);
    return *dataset < 0 ? keel_h5_fail(KEEL_ERR_FORMAT, file_path, "cannot open %s", path) : KEEL_OK;
}

keel_status keel_dataset_open(hid_t file, const char *file_path, const char *path, hid_t type, int rank,
                              hsize_t dims[3], hid_t *out) {
    hid_t dataset = -1;
    const keel_status status = open_any(file, file_path, path, &dataset);
    if (status) return status;
    const hid_t space = H5Dget_space(dataset), found = H5Dget_type(dataset);
    const bool shaped =
        space >= 0 && H5Sget_simple_extent_ndims(space) == rank && H5Sget_simple_extent_dims(space, dims, NULL) == rank;
    const bool ours =
        shaped && found >= 0 && keel_type_fits(type, found) && layout_is_ours(dataset, H5Tget_size(found));
    if (space >= 0) H5Sclose(space);
    if (found >= 0) H5Tclose(found);
    if (ours) {
        *out = dataset;
        return KEEL_OK;
    }
    H5Dclose(dataset);
    return not_of_the_form(file_path, path);
}

keel_status keel_dataset_read_text(hid_t file, const char *file_path, const char *path, size_t most, char **out) {
    hid_t dataset = -1;
    keel_status status = open_any(file, file_path, path, &dataset);
    if (status) return status;
    const hid_t type = H5Dget_type(dataset), space = H5Dget_space(dataset);
    const bool is_text = type >= 0 && H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0;
    const size_t bytes = is_text ? H5Tget_size(type) : 0;
    const bool is_one = space >= 0 && H5Sget_simple_extent_type(space) == H5S_SCALAR;
    char *text = NULL;
    if (bytes == 0 || bytes > most || !is_one || !layout_is_ours(dataset, bytes))
        status = not_of_the_form(file_path, path);
    else if (!(text = calloc(1, bytes + 1)))
        status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory for %s", file_path, path);
    else if (H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text) < 0)
        status = keel_h5_fail(KEEL_ERR_FORMAT, file_path, "cannot read %s", path);
    bool checked = false;
    if (!status)
        status = keel_h5_has(H5Aexists(dataset, KEEL_ATTRIBUTE_CRC32), file_path, KEEL_ATTRIBUTE_CRC32, &checked);
    if (checked) {
        uint32_t sum = 0;
        status = keel_h5_get_u32(dataset, file_path, KEEL_ATTRIBUTE_CRC32, &sum);
        if (!status && sum != keel_row_checksum(0, text, bytes)) status = keel_row_checksum_fails(file_path, path, 0);
    }
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    H5Dclose(dataset);
    if (status) {
        free(text);
        return status;
    }
    *out = text;
    return KEEL_OK;
}

keel_status keel_dataset_read_table(hid_t file, const char *file_path, const char *path, hid_t type, uint64_t most,
                                    void **out, uint32_t *out_count) {
    hsize_t dims[3] = {0};
    hid_t dataset = -1;
    keel_status status = keel_dataset_open(file, file_path, path, type, 1, dims, &dataset);
    if (status) return status;
    const size_t bytes = H5Tget_size(type);
    void *data = NULL;
    if (dims[0] > most || dims[0] * bytes > (uint64_t)H5Dget_storage_size(dataset) * KEEL_MOST_RATIO)
        status = keel_fail(KEEL_ERR_FORMAT, "%s: %s has more rows than the file can hold", file_path, path);
    else if (!(data = calloc(dims[0] + 1, bytes)))
        status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory for %s", file_path, path);
    else if (dims[0] > 0 && H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)
        status = keel_h5_fail(KEEL_ERR_FORMAT, file_path, "cannot read %s", path);
    H5Dclose(dataset);
    if (status) {
        free(data);
        return status;
    }
    *out = data;
    *out_count = (uint32_t)dims[0];
    return KEEL_OK;
}
