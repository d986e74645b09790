#include "tools/import/import_spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPOOL_BYTES = 256 << 10, CURSOR_BYTES = 64 << 10 };

void keel_import_spool_init(keel_import_spool *spool) {
    *spool = (keel_import_spool){.file = -1};
}

void keel_import_spool_free(keel_import_spool *spool) {
    free(spool->buffer);
    if (spool->file >= 0) close(spool->file);
    keel_import_spool_init(spool);
}

uint64_t keel_import_spool_size(const keel_import_spool *spool) {
    return spool->written + spool->used;
}

static keel_status open_file(int *file) {
    const char *folder = getenv("TMPDIR");
    if (!folder || !*folder) folder = "/tmp";
    int made = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (made < 0) { // not every file system has nameless files
        char path[4096];
        if ((size_t)snprintf(path, sizeof path, "%s/keel-import-XXXXXX", folder) < sizeof path) {
            made = mkostemp(path, O_CLOEXEC);
            if (made >= 0) unlink(path);
        }
    }
    if (made < 0) return keel_fail(KEEL_ERR_IO, "%s: no temporary file: %s", folder, strerror(errno));
    *file = made;
    return KEEL_OK;
}

static keel_status spill(keel_import_spool *spool) {
    if (spool->file < 0) {
        keel_status status = open_file(&spool->file);
        if (status) return status;
    }
    for (size_t done = 0; done < spool->used;) {
        ssize_t n = write(spool->file, spool->buffer + done, spool->used - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return keel_fail(KEEL_ERR_IO, "temporary file of the import: %s", strerror(errno));
        done += (size_t)n;
    }
    spool->written += spool->used;
    spool->used = 0;
    return KEEL_OK;
}

keel_status keel_import_spool_write(keel_import_spool *spool, const void *bytes, size_t size) {
    if (!spool->buffer) {
        spool->buffer = malloc(SPOOL_BYTES);
        if (!spool->buffer) return keel_fail(KEEL_ERR_MEMORY, "no memory for the rows of a log");
    }
    if (spool->used + size > SPOOL_BYTES) {
        keel_status status = spill(spool);
        if (status) return status;
    }
    memcpy(spool->buffer + spool->used, bytes, size);
    spool->used += size;
    return KEEL_OK;
}

void keel_import_cursor_init(keel_import_cursor *cursor, const keel_import_spool *spool) {
    *cursor = (keel_import_cursor){.spool = spool};
}

void keel_import_cursor_free(keel_import_cursor *cursor) {
    free(cursor->buffer);
    cursor->buffer = NULL;
}

void keel_import_cursor_seek(keel_import_cursor *cursor, uint64_t offset) {
    cursor->at = offset;
    cursor->filled = cursor->next = 0;
}

static keel_status fill(keel_import_cursor *cursor) {
    const keel_import_spool *spool = cursor->spool;
    if (!cursor->buffer) {
        cursor->buffer = malloc(CURSOR_BYTES);
        if (!cursor->buffer) return keel_fail(KEEL_ERR_MEMORY, "no memory to read the rows of a log");
    }
    cursor->at += cursor->next;
    cursor->filled = cursor->next = 0;
    while (cursor->filled < CURSOR_BYTES) {
        uint64_t at = cursor->at + cursor->filled;
        size_t room = CURSOR_BYTES - cursor->filled;
        if (at >= spool->written) {
            size_t from = (size_t)(at - spool->written);
            if (from >= spool->used) break;
            size_t n = spool->used - from < room ? spool->used - from : room;
            memcpy(cursor->buffer + cursor->filled, spool->buffer + from, n);
            cursor->filled += n;
            continue;
        }
        if (room > spool->written - at) room = (size_t)(spool->written - at);
        ssize_t n = pread(spool->file, cursor->buffer + cursor->filled, room, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return keel_fail(KEEL_ERR_IO, "temporary file of the import: %s", n ? strerror(errno) : "cut short");
        cursor->filled += (size_t)n;
    }
    return KEEL_OK;
}

keel_status keel_import_cursor_read(keel_import_cursor *cursor, void *bytes, size_t size) {
    if (cursor->filled - cursor->next < size) {
        keel_status status = fill(cursor);
        if (status) return status;
        if (cursor->filled < size) return keel_fail(KEEL_ERR_USAGE, "read past the end of a log's rows");
    }
    memcpy(bytes, cursor->buffer + cursor->next, size);
    cursor->next += size;
    return KEEL_OK;
}
