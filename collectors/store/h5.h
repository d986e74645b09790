// What the store needs of HDF5 beyond its calls: silence, errors as texts, and attributes.
#ifndef KEEL_COLLECTORS_STORE_H5_H
#define KEEL_COLLECTORS_STORE_H5_H

#include <hdf5.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

// HDF5 prints its errors on standard error unless told otherwise, per thread. To be called by every function through
// which a thread enters the store.
void keel_h5_quiet(void);

// keel_fail with "PATH: WHAT: the innermost reason that HDF5 gives". To be called before any other HDF5 call.
keel_status keel_h5_fail(keel_status status, const char *path, const char *format, ...) KEEL_PRINTF(3, 4);

// ANSWER: of H5Lexists or H5Aexists about NAME, which cannot tell where the file is damaged: KEEL_ERR_FORMAT.
keel_status keel_h5_has(htri_t answer, const char *path, const char *name, bool *has);

// A file access list as every file of the store is opened: no locks by HDF5, since the writer holds one on the
// directory and readers must get in; LATEST format; closing the file closes what is open of it.
keel_status keel_h5_access_list(hid_t *list);

// What HDF5 still writes through FD goes nowhere: before a file is closed that is of no use any more, or that the disk
// refuses. A file that HDF5 1.10 cannot close makes it crash when the program ends.
void keel_h5_write_nowhere(int fd);

// Attributes of OBJECT, fixed-length UTF-8 text and u32. PATH is for messages.
keel_status keel_h5_put_text(hid_t object, const char *path, const char *name, const char *text);
keel_status keel_h5_put_u32(hid_t object, const char *path, const char *name, uint32_t value);
keel_status keel_h5_put_u64(hid_t object, const char *path, const char *name, uint64_t value);
// Fail with KEEL_ERR_FORMAT where there is none, or one of another type, or a text of SIZE bytes or more.
keel_status keel_h5_get_text(hid_t object, const char *path, const char *name, char *text, size_t size);
keel_status keel_h5_get_u32(hid_t object, const char *path, const char *name, uint32_t *value);
keel_status keel_h5_get_u64(hid_t object, const char *path, const char *name, uint64_t *value);

// A fixed-length UTF-8 text type of SIZE bytes, to be closed by the caller; < 0 on failure.
hid_t keel_h5_text_type(size_t size);

// Every byte that a terminal or JSON could not take becomes '?': control characters and what is not UTF-8.
void keel_h5_clean_text(char *text);

#endif
