#include "train/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct keel_atomic_file {
    char *path, *partial;
    int fd;
};

static keel_status system_failed(const char *path) {
    return keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(errno));
}

keel_status keel_atomic_open(const char *path, keel_atomic_file **file) {
    keel_status status = KEEL_OK;
    keel_atomic_file *made = calloc(1, sizeof *made);
    if (made) {
        made->path = strdup(path);
        if (asprintf(&made->partial, "%s" KEEL_PARTIAL_SUFFIX, path) < 0) made->partial = NULL;
    }
    if (!made || !made->path || !made->partial) {
        status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
        goto fail;
    }
    made->fd = open(made->partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (made->fd < 0) {
        status = system_failed(made->partial);
        goto fail;
    }
    *file = made;
    return KEEL_OK;
fail:
    if (made) {
        free(made->path);
        free(made->partial);
    }
    free(made);
    return status;
}

static void end(keel_atomic_file *file) {
    free(file->path);
    free(file->partial);
    free(file);
}

keel_status keel_atomic_write(keel_atomic_file *file, const void *data, size_t size) {
    for (const char *p = data; size;) {
        const ssize_t put = write(file->fd, p, size);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return system_failed(file->partial);
        p += put;
        size -= (size_t)put;
    }
    return KEEL_OK;
}

// So that a rename survives a loss of power. Some file systems cannot; then the rename is as safe as they make it.
static void flush_folder(const char *path) {
    char *copy = strdup(path);
    const int fd = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    free(copy);
}

keel_status keel_atomic_commit(keel_atomic_file *file) {
    keel_status status = KEEL_OK;
    if (fsync(file->fd) != 0)
        status = system_failed(file->partial);
    else if (rename(file->partial, file->path) != 0)
        status = system_failed(file->path);
    if (status) {
        keel_atomic_abort(file);
        return status;
    }
    flush_folder(file->path);
    close(file->fd);
    end(file);
    return KEEL_OK;
}

void keel_atomic_abort(keel_atomic_file *file) {
    if (!file) return;
    close(file->fd);
    unlink(file->partial);
    end(file);
}

keel_status keel_atomic_write_file(const char *path, const void *data, size_t size) {
    keel_atomic_file *file = NULL;
    keel_status status = keel_atomic_open(path, &file);
    if (!file) return status;
    status = keel_atomic_write(file, data, size);
    if (status) {
        keel_atomic_abort(file);
        return status;
    }
    return keel_atomic_commit(file);
}

keel_status keel_make_folders(const char *path) {
    char *copy = strdup(path);
    if (!copy) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", path);
    keel_status status = KEEL_OK;
    for (char *p = copy + 1; !status && *copy; p++) {
        const char kept = *p;
        if (kept != '/' && kept != '\0') continue;
        *p = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) status = system_failed(copy);
        *p = kept;
        if (kept == '\0') break;
    }
    struct stat about;
    if (!status && (stat(copy, &about) != 0 || !S_ISDIR(about.st_mode)))
        status = keel_fail(KEEL_ERR_IO, "%s: not a folder", path);
    free(copy);
    return status;
}
