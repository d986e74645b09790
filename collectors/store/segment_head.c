#include "collectors/store/segment_head.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The superblock, version 2 and 3: signature (8), version, size of offsets, size of lengths, flags, base address (8),
// extension (8), end of file (8), root object header (8), checksum (4); little-endian. HDF5 File Format Specification
// 3.0, II.A.
enum {
    AT_VERSION = 8,
    AT_OFFSET_BYTES = 9,
    AT_LENGTH_BYTES = 10,
    AT_FLAGS = 11,
    AT_BASE = 12,
    AT_END = 28,
    AT_ROOT = 36,
    HEAD_BYTES = 48,
    VERSION = 3, // what SWMR writes
};
enum { MARK_BYTES = 4 };

static uint64_t read_u64(const unsigned char *bytes) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) value = value << 8 | bytes[i];
    return value;
}

static keel_status check(const char *path, const unsigned char *head, int fd, uint64_t size) {
    if (head[AT_VERSION] != VERSION || head[AT_OFFSET_BYTES] != 8 || head[AT_LENGTH_BYTES] != 8 ||
        read_u64(head + AT_BASE) != 0)
        return keel_fail(KEEL_ERR_FORMAT, "%s: an HDF5 file, but not a store of Evenkeel", path);
    // The writer makes the file long enough before it stores its end, so a shorter one was cut.
    const uint64_t end = read_u64(head + AT_END), root = read_u64(head + AT_ROOT);
    if (end > size)
        return keel_fail(KEEL_ERR_FORMAT, "%s: truncated: %llu of %llu bytes", path, (unsigned long long)size,
                         (unsigned long long)end);
    char mark[MARK_BYTES];
    if (root > size - MARK_BYTES || pread(fd, mark, sizeof mark, (off_t)root) != sizeof mark ||
        memcmp(mark, "OHDR", sizeof mark) != 0)
        return keel_fail(KEEL_ERR_FORMAT, "%s: damaged: no root group where its head says", path);
    return KEEL_OK;
}

keel_status keel_segment_head_read(const char *path, keel_segment_head *out) {
    static const unsigned char signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // not to hang on a pipe
    if (fd < 0) return keel_fail(errno == ENOENT ? KEEL_ERR_NOT_FOUND : KEEL_ERR_IO, "%s: %s", path, strerror(errno));
    unsigned char head[HEAD_BYTES];
    struct stat file;
    keel_status status = KEEL_OK;
    // The head before the size: a living writer extends the file first.
    const ssize_t got = pread(fd, head, sizeof head, 0);
    const bool known = fstat(fd, &file) == 0;
    if (known && !S_ISREG(file.st_mode))
        status = keel_fail(KEEL_ERR_FORMAT, "%s: not a file", path);
    else if (!known || got < 0)
        status = keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(errno));
    else if (got >= (ssize_t)sizeof signature && memcmp(head, signature, sizeof signature) != 0)
        status = keel_fail(KEEL_ERR_FORMAT, "%s: not an HDF5 file", path);
    else if (got < HEAD_BYTES)
        status = keel_fail(KEEL_ERR_FORMAT, "%s: %s: %zd bytes", path,
                           got < (ssize_t)sizeof signature ? "not an HDF5 file" : "truncated", got);
    else
        status = check(path, head, fd, (uint64_t)file.st_size);
    close(fd);
    if (status) return status;
    out->bytes = (uint64_t)file.st_size;
    out->open = head[AT_FLAGS] != 0;
    return KEEL_OK;
}
