#include "collectors/store/h5.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WHAT_BYTES = 256, REASON_BYTES = 200 };

void keel_h5_quiet(void) {
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

static herr_t keep_innermost(unsigned n, const H5E_error2_t *error, void *reason) {
    if (n == 0 && error->desc) snprintf(reason, REASON_BYTES, "%s", error->desc);
    return 0;
}

keel_status keel_h5_fail(keel_status status, const char *path, const char *format, ...) {
    char reason[REASON_BYTES] = "";
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, reason);
    char what[WHAT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return keel_fail(status, "%s: %s%s%s%s", path, what, *reason ? " (HDF5: " : "", reason, *reason ? ")" : "");
}

keel_status keel_h5_has(htri_t answer, const char *path, const char *name, bool *has) {
    if (answer < 0) return keel_h5_fail(KEEL_ERR_FORMAT, path, "cannot look for %s", name);
    *has = answer > 0;
    return KEEL_OK;
}

keel_status keel_h5_access_list(hid_t *list) {
    const hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
    if (fapl < 0 || H5Pset_libver_bounds(fapl, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST) < 0 ||
        H5Pset_file_locking(fapl, false, true) < 0 || H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG) < 0) {
        if (fapl >= 0) H5Pclose(fapl);
        return keel_fail(KEEL_ERR_MEMORY, "HDF5 gives no file access list");
    }
    *list = fapl;
    return KEEL_OK;
}

void keel_h5_write_nowhere(int fd) {
    const int nowhere = memfd_create("keel-nowhere", MFD_CLOEXEC);
    if (nowhere < 0) return;
    dup2(nowhere, fd);
    close(nowhere);
}

hid_t keel_h5_text_type(size_t size) {
    const hid_t type = H5Tcopy(H5T_C_S1);
    if (type >= 0 && H5Tset_size(type, size) >= 0 && H5Tset_cset(type, H5T_CSET_UTF8) >= 0) return type;
    if (type >= 0) H5Tclose(type);
    return -1;
}

static keel_status put(hid_t object, const char *path, const char *name, hid_t type, const void *value) {
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute =
        space < 0 || type < 0 ? -1 : H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    keel_status status = KEEL_OK;
    if (attribute < 0 || H5Awrite(attribute, type, value) < 0)
        status = keel_h5_fail(KEEL_ERR_IO, path, "cannot write attribute %s", name);
    if (attribute >= 0) H5Aclose(attribute);
    if (space >= 0) H5Sclose(space);
    return status;
}

keel_status keel_h5_put_text(hid_t object, const char *path, const char *name, const char *text) {
    const hid_t type = keel_h5_text_type(strlen(text) + 1);
    const keel_status status = put(object, path, name, type, text);
    if (type >= 0) H5Tclose(type);
    return status;
}

keel_status keel_h5_put_u32(hid_t object, const char *path, const char *name, uint32_t value) {
    return put(object, path, name, H5T_STD_U32LE, &value);
}

keel_status keel_h5_put_u64(hid_t object, const char *path, const char *name, uint64_t value) {
    return put(object, path, name, H5T_STD_U64LE, &value);
}

// Opens the scalar attribute NAME. *TYPE is its type.
static keel_status open_scalar(hid_t object, const char *path, const char *name, hid_t *attribute, hid_t *type) {
    bool exists = false;
    const keel_status status = keel_h5_has(H5Aexists(object, name), path, name, &exists);
    if (status) return status;
    if (!exists) return keel_fail(KEEL_ERR_FORMAT, "%s: no attribute %s", path, name);
    *attribute = H5Aopen(object, name, H5P_DEFAULT);
    if (*attribute < 0) return keel_h5_fail(KEEL_ERR_FORMAT, path, "cannot open attribute %s", name);
    const hid_t space = H5Aget_space(*attribute);
    const bool scalar = space >= 0 && H5Sget_simple_extent_npoints(space) == 1;
    if (space >= 0) H5Sclose(space);
    *type = scalar ? H5Aget_type(*attribute) : -1;
    if (*type >= 0) return KEEL_OK;
    H5Aclose(*attribute);
    return keel_fail(KEEL_ERR_FORMAT, "%s: attribute %s is not one value", path, name);
}

keel_status keel_h5_get_text(hid_t object, const char *path, const char *name, char *text, size_t size) {
    hid_t attribute = -1, type = -1;
    keel_status status = open_scalar(object, path, name, &attribute, &type);
    if (status) return status;
    const bool is_text = H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0;
    const size_t bytes = is_text ? H5Tget_size(type) : 0;
    // Read in its own type: a conversion would pad or cut.
    if (bytes == 0 || bytes >= size)
        status = keel_fail(KEEL_ERR_FORMAT, "%s: attribute %s is not a text below %zu bytes", path, name, size);
    else if (H5Aread(attribute, type, text) < 0)
        status = keel_h5_fail(KEEL_ERR_FORMAT, path, "cannot read attribute %s", name);
    H5Tclose(type);
    H5Aclose(attribute);
    if (status) return status;
    text[bytes] = '\0';
    keel_h5_clean_text(text);
    return KEEL_OK;
}

static keel_status get(hid_t object, const char *path, const char *name, hid_t wanted, void *value) {
    hid_t attribute = -1, type = -1;
    keel_status status = open_scalar(object, path, name, &attribute, &type);
    if (status) return status;
    if (H5Tequal(type, wanted) <= 0)
        status = keel_fail(KEEL_ERR_FORMAT, "%s: attribute %s has another type", path, name);
    else if (H5Aread(attribute, wanted, value) < 0)
        status = keel_h5_fail(KEEL_ERR_FORMAT, path, "cannot read attribute %s", name);
    H5Tclose(type);
    H5Aclose(attribute);
    return status;
}

keel_status keel_h5_get_u32(hid_t object, const char *path, const char *name, uint32_t *value) {
    return get(object, path, name, H5T_STD_U32LE, value);
}

keel_status keel_h5_get_u64(hid_t object, const char *path, const char *name, uint64_t *value) {
    return get(object, path, name, H5T_STD_U64LE, value);
}

// Bytes of the UTF-8 character at TEXT; 0 if there is none.
static size_t character_bytes(const unsigned char *text) {
    static const struct {
        unsigned char mask, lead;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 0x20}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    for (size_t more = 0; more < sizeof forms / sizeof *forms; more++) {
        if ((text[0] & forms[more].mask) != forms[more].lead) continue;
        uint32_t code = text[0] & (unsigned char)~forms[more].mask;
        for (size_t i = 1; i <= more; i++) {
            if ((text[i] & 0xc0) != 0x80) return 0;
            code = code << 6 | (text[i] & 0x3f);
        }
        const bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
        const bool valid = code >= forms[more].least && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
        return valid && !control ? more + 1 : 0;
    }
    return 0;
}

void keel_h5_clean_text(char *text) {
    while (*text) {
        const size_t bytes = character_bytes((const unsigned char *)text);
        if (bytes == 0) *text = '?';
        text += bytes ? bytes : 1;
    }
}
