#include "collectors/store/run_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "collectors/watch/process.h"

#define NAME "keel.lock"
enum { TRIES = 5, PAUSE_NANOSECONDS = 20000000, HOST_BYTES = 64, TEXT_BYTES = 160, SILENT_SECONDS = 120 };

typedef struct owner {
    char host[HOST_BYTES];
    int pid;
    unsigned long long began; // in ticks since the host was booted: another process may get the same number
    unsigned long long space; // of process ids
} owner;

// ---- who ----

static unsigned long long began_at(int pid) {
    enum { FIELD = 22, AFTER_NAME = 2 }; // proc(5)
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    const size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = '\0';
    char *at = strrchr(text, ')');
    for (int field = AFTER_NAME; at && field < FIELD; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

static owner this_process(void) {
    owner me = {.pid = (int)getpid(), .space = keel_process_space()};
    if (gethostname(me.host, sizeof me.host) != 0) strcpy(me.host, "unknown");
    me.host[sizeof me.host - 1] = '\0';
    for (char *c = me.host; *c; c++)
        if (*c == ' ' || *c == '\n') *c = '_';
    me.began = began_at(me.pid);
    return me;
}

static bool lives(const owner *other, time_t touched) {
    const owner me = this_process();
    if (strcmp(other->host, me.host) != 0 || other->space != me.space) return time(NULL) - touched < SILENT_SECONDS;
    return keel_process_state(other->pid) != 0 && began_at(other->pid) == other->began;
}

// ---- the file ----

// Whoever is named in the file and lives: then *OWNER.
static bool held(int directory, owner *other) {
    char text[TEXT_BYTES] = "";
    struct stat about;
    const int fd = openat(directory, NAME, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const ssize_t size = fstat(fd, &about) == 0 ? read(fd, text, sizeof text - 1) : -1;
    close(fd);
    if (size < 0) return false;
    text[size] = '\0';
    *other = (owner){.host = "another process"};
    // One that is being written says nothing yet.
    if (sscanf(text, "%63s %d %llu %llu", other->host, &other->pid, &other->began, &other->space) != 4)
        return time(NULL) - about.st_mtime < SILENT_SECONDS;
    return lives(other, about.st_mtime);
}

static keel_status take_file(const char *path, int directory) {
    owner other;
    int fd = -1;
    for (int i = 0; i < TRIES && fd < 0; i++) {
        fd = openat(directory, NAME, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) break;
        if (errno != EEXIST) return keel_fail(KEEL_ERR_IO, "%s/" NAME ": %s", path, strerror(errno));
        if (held(directory, &other))
            return keel_fail(
                KEEL_ERR_USAGE,
                "%s: another process records a run there (%s, process %d); if that is over, remove %s/" NAME, path,
                other.host, other.pid, path);
        if (unlinkat(directory, NAME, 0) != 0 && errno != ENOENT)
            return keel_fail(KEEL_ERR_IO, "%s/" NAME ": cannot be removed: %s", path, strerror(errno));
    }
    if (fd < 0) return keel_fail(KEEL_ERR_USAGE, "%s: another process records a run there", path);
    char text[TEXT_BYTES];
    const owner me = this_process();
    const int size = snprintf(text, sizeof text, "%s %d %llu %llu\n", me.host, me.pid, me.began, me.space);
    const bool written = write(fd, text, (size_t)size) == size;
    close(fd);
    return written ? KEEL_OK : keel_fail(KEEL_ERR_IO, "%s/" NAME ": cannot be written", path);
}

// ---- the lock ----

// 0: had; else errno, EWOULDBLOCK where another process has it.
static int lock_directory(int fd, int how) {
    int result = -1;
    for (int i = 0; i < TRIES && result != 0; i++) { // a reader may hold it for a moment to see whether a writer does
        if (i > 0) nanosleep(&(struct timespec){.tv_nsec = PAUSE_NANOSECONDS}, NULL);
        result = flock(fd, how | LOCK_NB);
        if (result != 0 && errno != EWOULDBLOCK) break;
    }
    return result ? errno : 0;
}

keel_status keel_run_lock_take(const char *directory, keel_run_lock *lock) {
    const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return keel_fail(KEEL_ERR_IO, "%s: %s", directory, strerror(errno));
    keel_status status = KEEL_OK;
    int error = 0;
    if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) != 0)
        status = keel_fail(KEEL_ERR_IO, "%s: cannot write there: %s", directory, strerror(errno));
    else if ((error = lock_directory(fd, LOCK_EX)) == EWOULDBLOCK)
        status = keel_fail(KEEL_ERR_USAGE, "%s: another process records a run there", directory);
    else if (error)
        status = take_file(directory, fd);
    if (status) {
        close(fd);
        return status;
    }
    *lock = (keel_run_lock){.directory = fd, .by_file = error != 0};
    return KEEL_OK;
}

void keel_run_lock_touch(const keel_run_lock *lock) {
    if (lock->by_file) utimensat(lock->directory, NAME, NULL, 0);
}

void keel_run_lock_release(keel_run_lock *lock) {
    if (lock->by_file) unlinkat(lock->directory, NAME, 0);
    close(lock->directory);
    lock->directory = -1;
}

bool keel_run_lock_holds(const keel_run_lock *lock, const char *directory) {
    struct stat locked, there;
    return fstat(lock->directory, &locked) == 0 && stat(directory, &there) == 0 && locked.st_dev == there.st_dev &&
           locked.st_ino == there.st_ino;
}

bool keel_run_locked(const char *directory) {
    const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return false;
    owner other;
    const int error = flock(fd, LOCK_SH | LOCK_NB) != 0 ? errno : 0;
    const bool locked = error == EWOULDBLOCK || (error && held(fd, &other));
    close(fd);
    return locked;
}
