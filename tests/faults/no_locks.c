// Preloaded into a program: the file system has no locks, as NFS without its lock service.
#include <errno.h>

#define SHOWN __attribute__((visibility("default")))

SHOWN int flock(int fd, int operation);
SHOWN int lockf(int fd, int how, long size);

SHOWN int flock(int fd, int operation) {
    (void)fd;
    (void)operation;
    errno = ENOLCK;
    return -1;
}

SHOWN int lockf(int fd, int how, long size) {
    (void)fd;
    (void)how;
    (void)size;
    errno = ENOLCK;
    return -1;
}
