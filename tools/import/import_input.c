#include "tools/import/import_input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { GZIP_BUFFER = 256 << 10 };

struct keel_import_input {
    char *path;
    gzFile file;
    bool cut; // said already
};

static keel_status refuse(const char *path, int file) {
    int error = errno;
    if (file >= 0) close(file);
    return keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(error));
}

keel_status keel_import_input_open(const char *path, keel_import_input **input) {
    // Standard input is duplicated, so that what is closed here is ours.
    bool standard = strcmp(path, "-") == 0;
    int file = standard ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    if (standard) path = "standard input";
    struct stat info;
    if (file < 0 || fstat(file, &info) != 0) return refuse(path, file);
    if (S_ISDIR(info.st_mode)) {
        errno = EISDIR;
        return refuse(path, file);
    }
    keel_import_input *made = calloc(1, sizeof *made);
    if (made) made->path = strdup(path);
    if (made && made->path) made->file = gzdopen(file, "rb");
    if (!made || !made->path || !made->file) {
        close(file);
        keel_import_input_close(made);
        return keel_fail(KEEL_ERR_MEMORY, "%s: no memory to read it", path);
    }
    gzbuffer(made->file, GZIP_BUFFER);
    *input = made;
    return KEEL_OK;
}

void keel_import_input_close(keel_import_input *input) {
    if (!input) return;
    if (input->file) gzclose(input->file);
    free(input->path);
    free(input);
}

keel_status keel_import_input_read(keel_import_input *input, void *bytes, size_t size, size_t *got) {
    const int n = gzread(input->file, bytes, (unsigned)size);
    int error;
    const char *text = gzerror(input->file, &error);
    if (n >= 0) {
        // What was read up to there is sound; the rest is missing, or is still to be written.
        if (error == Z_BUF_ERROR && !input->cut)
            keel_log(KEEL_LOG_WARNING,
                     "%s: the gzip file ends in the middle: what is there was read, the rest is missing", input->path);
        input->cut |= error == Z_BUF_ERROR;
        *got = (size_t)n;
        return KEEL_OK;
    }
    if (error == Z_ERRNO) return keel_fail(KEEL_ERR_IO, "%s: %s", input->path, strerror(errno));
    return keel_fail(KEEL_ERR_FORMAT, "%s: a damaged gzip file: %s", input->path, text);
}
