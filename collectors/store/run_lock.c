#include "collectors/store/run_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
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
    unsigned long long began, space; // see process.h
} owner;

// ---- who ----

static owner this_process(void) {
    owner me = {.pid = (int)getpid(), .space = keel_process_space()};
    if (gethostname(me.host, sizeof me.host) != 0) strcpy(me.host, "unknown");
    me.host[sizeof me.host - 1] = '\0';
    for (char *c = me.host; *c; c++)
        if (*c == ' ' || *c == '\n') *c = '_';
    me.began = keel_process_began(me.pid);
    return me;
}

static bool lives(const owner *other, time_t touched) {
    const owner me = this_process();
    if (strcmp(other->host, me.host) != 0 || other->space != me.space) return time(NULL) - touched < SILENT_SECONDS;
    return keel_process_state(other->pid) != 0 && keel_process_began(other->pid) == other->began;
}

// ---- the file ----

// What the file says. False where there is none; an owner without a name where it says nothing yet.
static bool read_file(int directory, owner *named, time_t *touched) {
    char text[TEXT_BYTES] = "";
    struct stat about;
    const int fd = openat(directory, NAME, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const ssize_t size = fstat(fd, &about) == 0 ? read(fd, text, sizeof text - 1) : -1;
    close(fd);
    if (size < 0) return false;
    text[size] = '\0';
    *touched = about.st_mtime;
    *named = (owner){0};
    if (sscanf(text, "%63s %d %llu %llu", named->host, &named->pid, &named->began, &named->space) != 4)
        *named = (owner){0};
    return true;
}

static bool same(const owner *a, const owner *b) {
    return strcmp(a->host, b->host) == 0 && a->pid == b->pid && a->began == b->began && a->space == b->space;
}

static bool names(int directory, const owner *who) {
    owner named;
    time_t touched;
    return read_file(directory, &named, &touched) && same(&named, who);
}

// Whoever is named in the file and lives: then *OTHER.
static bool held(int directory, owner *other) {
    time_t touched;
    if (!read_file(directory, other, &touched)) return false;
    if (other->host[0]) return lives(other, touched);
    strcpy(other->host, "another process");
    return time(NULL) - touched < SILENT_SECONDS;
}

// The file of an owner that is dead. Who finds it dead as well may have put his own in its place by now.
static keel_status remove_dead(const char *path, int directory, const owner *dead) {
    if (dead->pid && !names(directory, dead)) return KEEL_OK;
    if (unlinkat(directory, NAME, 0) == 0 || errno == ENOENT) return KEEL_OK;
    return keel_fail(KEEL_ERR_IO, "%s/" NAME ": cannot be removed: %s", path, strerror(errno));
}

static keel_status write_file(const char *path, int directory, int fd, const owner *me) {
    char text[TEXT_BYTES];
    const int size = snprintf(text, sizeof text, "%s %d %llu %llu\n", me->host, me->pid, me->began, me->space);
    const bool written = write(fd, text, (size_t)size) == size;
    if (close(fd) == 0 && written) return KEEL_OK;
    unlinkat(directory, NAME, 0);
    return keel_fail(KEEL_ERR_IO, "%s/" NAME ": cannot be written", path);
}

static keel_status take_file(const char *path, int directory) {
    const owner me = this_process();
    owner other = {0};
    int fd = -1;
    bool replaces = false;
    for (int i = 0; i < TRIES && fd < 0; i++) {
        fd = openat(directory, NAME, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) break;
        if (errno != EEXIST) return keel_fail(KEEL_ERR_IO, "%s/" NAME ": %s", path, strerror(errno));
        if (held(directory, &other))
            return keel_fail(
                KEEL_ERR_USAGE,
                "%s: another process records a run there (%s, process %d); if that is over, remove %s/" NAME, path,
                other.host, other.pid, path);
        const keel_status status = remove_dead(path, directory, &other);
        if (status) return status;
        replaces = true;
    }
    if (fd < 0) return keel_fail(KEEL_ERR_USAGE, "%s: another process records a run there", path);
    const keel_status status = write_file(path, directory, fd, &me);
    if (status || !replaces) return status;
    // Another that has found the same owner dead may be about to remove what it takes for that one's file.
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NANOSECONDS}, NULL);
    return names(directory, &me) ? KEEL_OK : keel_fail(KEEL_ERR_USAGE, "%s: another process records a run there", path);
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

static bool is_ours(const keel_run_lock *lock) {
    if (!lock->by_file) return true;
    const owner me = this_process();
    return names(lock->directory, &me);
}

bool keel_run_lock_touch(const keel_run_lock *lock) {
    if (!is_ours(lock)) return false;
    if (lock->by_file) utimensat(lock->directory, NAME, NULL, 0);
    return true;
}

void keel_run_lock_release(keel_run_lock *lock) {
    if (lock->by_file && is_ours(lock)) unlinkat(lock->directory, NAME, 0);
    close(lock->directory);
    lock->directory = -1;
}

bool keel_run_lock_holds(const keel_run_lock *lock, const char *directory) {
    struct stat locked, there;
    return fstat(lock->directory, &locked) == 0 && stat(directory, &there) == 0 && locked.st_dev == there.st_dev &&
           locked.st_ino == there.st_ino && is_ours(lock);
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
