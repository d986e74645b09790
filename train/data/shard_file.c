#include "train/data/shard_file.h"

#include <errno.h>
#include <hdf5.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/atomic_file.h"

// HDF5 would print its own stack of errors.
#define QUIETLY(statement) H5E_BEGIN_TRY{statement} H5E_END_TRY

uint32_t keel_shard_width(uint32_t vocab_size) {
    return vocab_size <= 1u << 8 ? 1 : vocab_size <= 1u << 16 ? 2 : 4;
}

static hid_t token_type(uint32_t width) {
    return width == 1 ? H5T_STD_U8LE : width == 2 ? H5T_STD_U16LE : H5T_STD_U32LE;
}

static bool write_number(hid_t object, const char *name, uint32_t value) {
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(object, name, H5T_STD_U32LE, space, H5P_DEFAULT, H5P_DEFAULT);
    const bool ok = attribute >= 0 && H5Awrite(attribute, H5T_NATIVE_UINT32, &value) >= 0;
    if (attribute >= 0) H5Aclose(attribute);
    H5Sclose(space);
    return ok;
}

static bool read_number(hid_t object, const char *name, uint32_t *value) {
    const hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
    const bool ok = attribute >= 0 && H5Aread(attribute, H5T_NATIVE_UINT32, value) >= 0;
    if (attribute >= 0) H5Aclose(attribute);
    return ok;
}

static hid_t set_type(void) {
    const hid_t type = H5Tcopy(H5T_C_S1);
    if (type >= 0) H5Tset_size(type, KEEL_SHARD_SET_BYTES);
    return type;
}

static bool write_set(hid_t object, const char *set) {
    const hid_t space = H5Screate(H5S_SCALAR), type = set_type();
    const hid_t attribute = H5Acreate2(object, "set", type, space, H5P_DEFAULT, H5P_DEFAULT);
    const bool ok = attribute >= 0 && H5Awrite(attribute, type, set) >= 0;
    if (attribute >= 0) H5Aclose(attribute);
    H5Tclose(type);
    H5Sclose(space);
    return ok;
}

static bool read_set(hid_t object, char *set) {
    const hid_t attribute = H5Aopen(object, "set", H5P_DEFAULT), type = set_type();
    const bool ok = attribute >= 0 && H5Aread(attribute, type, set) >= 0;
    set[KEEL_SHARD_SET_BYTES - 1] = '\0';
    H5Tclose(type);
    if (attribute >= 0) H5Aclose(attribute);
    return ok;
}

static bool fill(hid_t file, const keel_shard_info *info, const void *tokens) {
    const hid_t type = token_type(keel_shard_width(info->vocab_size));
    const hsize_t count = info->tokens;
    const hid_t space = H5Screate_simple(1, &count, NULL);
    const hid_t data = H5Dcreate2(file, "tokens", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    bool ok = data >= 0 && H5Dwrite(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens) >= 0;
    if (data >= 0) H5Dclose(data);
    H5Sclose(space);
    return ok && write_number(file, "keel_shard_schema", KEEL_SHARD_SCHEMA) &&
           write_number(file, "vocab_size", info->vocab_size) && write_number(file, "index", info->index) &&
           write_set(file, info->set) && H5Fflush(file, H5F_SCOPE_GLOBAL) >= 0;
}

// The bytes of the file; NULL on failure.
static void *make_image(const char *name, const keel_shard_info *info, const void *tokens, size_t *size) {
    enum { GROWTH = 1 << 20 };
    void *image = NULL;
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fapl_core(access, GROWTH, 0);
    const hid_t file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    if (file < 0) return NULL;
    if (fill(file, info, tokens)) {
        const ssize_t bytes = H5Fget_file_image(file, NULL, 0);
        if (bytes > 0) image = malloc((size_t)bytes);
        if (image && H5Fget_file_image(file, image, (size_t)bytes) != bytes) {
            free(image);
            image = NULL;
        }
        *size = (size_t)bytes;
    }
    H5Fclose(file);
    return image;
}

keel_status keel_shard_write(const char *path, const keel_shard_info *info, const void *tokens) {
    size_t size = 0;
    void *image;
    QUIETLY(image = make_image(path, info, tokens, &size);)
    if (!image) return keel_fail(KEEL_ERR_MEMORY, "%s: HDF5 could not build the shard in memory", path);
    const keel_status status = keel_atomic_write_file(path, image, size);
    free(image);
    return status;
}

static const char *inspect(hid_t file, keel_shard_info *info, uint64_t *offset) {
    uint32_t schema = 0;
    if (!read_number(file, "keel_shard_schema", &schema)) return "not a token shard";
    if (schema != KEEL_SHARD_SCHEMA) return "a token shard of another version";
    if (!read_number(file, "vocab_size", &info->vocab_size) || !read_number(file, "index", &info->index) ||
        !read_set(file, info->set))
        return "a token shard without its attributes";
    const hid_t data = H5Dopen2(file, "tokens", H5P_DEFAULT);
    if (data < 0) return "a token shard without /tokens";
    const hid_t type = H5Dget_type(data), space = H5Dget_space(data);
    const haddr_t place = H5Dget_offset(data);
    const hssize_t count = H5Sget_simple_extent_npoints(space);
    const bool fits = H5Tequal(type, token_type(keel_shard_width(info->vocab_size))) > 0 &&
                      H5Sget_simple_extent_ndims(space) == 1 && place != HADDR_UNDEF && count > 0;
    H5Tclose(type);
    H5Sclose(space);
    H5Dclose(data);
    if (!fits) return "a token shard whose /tokens is not as this version writes it";
    info->tokens = (uint64_t)count;
    *offset = place;
    return NULL;
}

keel_status keel_shard_inspect(const char *path, keel_shard_info *info, uint64_t *offset) {
    if (access(path, R_OK) != 0)
        return keel_fail(errno == ENOENT ? KEEL_ERR_NOT_FOUND : KEEL_ERR_IO, "%s: %s", path, strerror(errno));
    keel_shard_info found = {0};
    uint64_t place = 0;
    const char *wrong = "not an HDF5 file, or cut short";
    QUIETLY({
        const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
        H5Pset_file_locking(access, false, true); // a shard never changes, and its file system may have no locks
        const hid_t file = H5Fopen(path, H5F_ACC_RDONLY, access);
        H5Pclose(access);
        if (file >= 0) {
            wrong = inspect(file, &found, &place);
            H5Fclose(file);
        }
    })
    if (wrong) return keel_fail(KEEL_ERR_FORMAT, "%s: %s", path, wrong);
    *info = found;
    *offset = place;
    return KEEL_OK;
}
