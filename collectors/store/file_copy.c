#include "collectors/store/file_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectors/store/store_files.h"

enum { PIECE_BYTES = 1 << 20 };

// Through memory, where the system cannot do it within the file system. 0 or errno.
static int copy_through(int in, int out) {
    char *piece = malloc(PIECE_BYTES);
    int error = piece ? 0 : ENOMEM;
    for (ssize_t got = 1; !error && got > 0;) {
        got = read(in, piece, PIECE_BYTES);
        if (got < 0) error = errno;
        for (ssize_t done = 0; !error && done < got;) {
            const ssize_t n = write(out, piece + done, (size_t)(got - done));
            if (n < 0)
                error = errno;
            else
                done += n;
        }
    }
    free(piece);
    return error;
}

static int copy_all(int in, int out) {
    ssize_t got = 1;
    while (got > 0) got = copy_file_range(in, NULL, out, NULL, 1 << 30, 0);
    if (got == 0) return fsync(out) == 0 ? 0 : errno;
    if (errno != EXDEV && errno != ENOSYS && errno != EOPNOTSUPP && errno != EINVAL && errno != EBADF) return errno;
    if (lseek(in, 0, SEEK_SET) != 0 || ftruncate(out, 0) != 0 || lseek(out, 0, SEEK_SET) != 0) return errno;
    const int error = copy_through(in, out);
    return error ? error : fsync(out) == 0 ? 0 : errno;
}

keel_status keel_file_copy(const char *from, const char *to) {
    char *made;
    if (asprintf(&made, "%s" KEEL_SEGMENT_COPY, to) < 0) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", to);
    const int in = open(from, O_RDONLY | O_CLOEXEC);
    const int out = in < 0 ? -1 : open(made, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int error = out < 0 ? errno : copy_all(in, out);
    if (out >= 0 && close(out) != 0 && !error) error = errno; // where NFS says what went wrong
    if (in >= 0) close(in);
    if (!error && rename(made, to) != 0) error = errno;
    if (error) unlink(made);
    free(made);
    return error ? keel_fail(error == ENOSPC || error == EDQUOT ? KEEL_ERR_LIMIT : KEEL_ERR_IO,
                             "%s: cannot copy %s: %s", to, from, strerror(error))
                 : KEEL_OK;
}
