#include "collectors/store/reserve.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

// What a look at the free space leaves to others, since nothing keeps them from taking it a moment later.
enum { MARGIN_BYTES = 16 << 20 };

static keel_status count_free(const keel_reserve *reserve, const char *path, uint64_t end, uint64_t unwritten) {
    struct stat file;
    struct statvfs volume;
    if (fstat(reserve->fd, &file) != 0 || fstatvfs(reserve->fd, &volume) != 0)
        return keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(errno));
    const uint64_t size = (uint64_t)file.st_size;
    const uint64_t needed = (end > size ? end - size : 0) + unwritten + MARGIN_BYTES;
    const uint64_t available = (uint64_t)volume.f_bavail * volume.f_frsize;
    if (needed <= available) return KEEL_OK;
    return keel_fail(KEEL_ERR_LIMIT, "%s: %llu MiB needed, %llu MiB free", path, (unsigned long long)needed >> 20,
                     (unsigned long long)available >> 20);
}

// A refused request may have taken the last blocks all the same: others may need them.
static void give_back(keel_reserve *reserve) {
    struct stat file;
    const int error = errno;
    if (fstat(reserve->fd, &file) == 0 && ftruncate(reserve->fd, file.st_size) == 0)
        reserve->upto = (uint64_t)file.st_size;
    errno = error;
}

keel_status keel_reserve_until(keel_reserve *reserve, const char *path, uint64_t end, uint64_t unwritten) {
    if (reserve->counted) return count_free(reserve, path, end, unwritten);
    if (end <= reserve->upto) return KEEL_OK;
    const off_t length = (off_t)(end - reserve->upto);
    int result;
    do {
        result = fallocate(reserve->fd, FALLOC_FL_KEEP_SIZE, (off_t)reserve->upto, length);
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
        reserve->upto = end;
        return KEEL_OK;
    }
    switch (errno) {
    case EOPNOTSUPP:
    case ENOSYS:
        reserve->counted = true;
        return count_free(reserve, path, end, unwritten);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        give_back(reserve);
        return keel_fail(KEEL_ERR_LIMIT, "%s: no room for %lld more bytes: %s", path, (long long)length,
                         strerror(errno));
    default:
        return keel_fail(KEEL_ERR_IO, "%s: cannot reserve %lld bytes: %s", path, (long long)length, strerror(errno));
    }
}

void keel_reserve_trim(const char *path) {
    struct stat file;
    // Setting the length that a file has frees the blocks beyond it. A failure costs a few blocks.
    if (stat(path, &file) == 0 && truncate(path, file.st_size) != 0) return;
}
