#include "train/optim/offload.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "train/clock.h"

// Of a state's share of the limit: WINDOWS parts, of which IN_FLIGHT are for windows in use (the one that is written
// back, the present one, the next one, the page of the next that the present one's last block reaches into, and one to
// spare for what the system holds a moment longer); the rest holds what never leaves memory, since a file that is read
// from end to end gains nothing from a cache.
enum { WINDOWS = 10, HELD = 3, IN_FLIGHT = HELD + 2, MOST_WINDOW = 4 << 20 };

struct keel_offload {
    char *folder;
    const keel_yaml_node *node; // of the settings
    int file;
    size_t page;
    size_t bytes;  // of a state, whole pages
    size_t fixed;  // of these, the first ones that stay in memory
    size_t window; // bytes of a window
    size_t count;  // of windows: 0 is FIXED
    char *base[KEEL_OFFLOAD_STATES];
    double waited;
    bool running;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    // Windows before READY have come in, before DONE the update is over with, before RELEASED are out again.
    size_t ready, done, released;
    bool stop;
    int error; // errno of a write
};

static size_t state_limit(const keel_offload_config *config, size_t page) {
    return (size_t)config->memory_limit / KEEL_OFFLOAD_STATES / page * page;
}

static size_t window_bytes(const keel_offload_config *config, size_t page) {
    const size_t part = state_limit(config, page) / WINDOWS / page * page;
    return part < MOST_WINDOW ? part : MOST_WINDOW;
}

static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

size_t keel_offload_portion(const keel_offload_config *config) {
    return HELD * window_bytes(config, page_bytes()) / sizeof(float);
}

// ---- windows ----

static size_t begin_of(const keel_offload *o, size_t window) {
    const size_t begin = window ? o->fixed + (window - 1) * o->window : 0;
    return begin < o->bytes ? begin : o->bytes;
}

// Where byte AT of STATE is in the file.
static off_t place(const keel_offload *o, size_t state, size_t at) {
    return (off_t)(state * (o->bytes - o->fixed) + (at - o->fixed));
}

static void read_in(const keel_offload *o, size_t window) {
    const size_t begin = begin_of(o, window), end = begin_of(o, window + 1);
    if (window == 0) return;
    for (size_t s = 0; s < KEEL_OFFLOAD_STATES; s++) (void)madvise(o->base[s] + begin, end - begin, MADV_WILLNEED);
    for (size_t s = 0; s < KEEL_OFFLOAD_STATES; s++)
        for (size_t at = begin; at < end; at += o->page) (void)*(volatile const char *)(o->base[s] + at);
}

// SIZE bytes at MEMORY, which are those at AT of the file, to the disk and out of memory: of this process and of the
// system's cache. 0 or errno. A page fault beside them maps what is still in the cache around it, which would keep it
// there: not where nothing may be looked at.
static int put_out_part(const keel_offload *o, char *memory, off_t at, size_t size) {
    (void)mprotect(memory, size, PROT_NONE);
    (void)madvise(memory, size, MADV_DONTNEED);
    const int failed = sync_file_range(
        o->file, at, (off_t)size, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    const int error = failed ? errno : 0;
    (void)posix_fadvise(o->file, at, (off_t)size, POSIX_FADV_DONTNEED);
    if (mprotect(memory, size, PROT_READ | PROT_WRITE)) return errno;
    return error;
}

// Bytes [BEGIN, END) of each state.
static int put_out(const keel_offload *o, size_t begin, size_t end) {
    int error = 0;
    for (size_t s = 0; s < KEEL_OFFLOAD_STATES; s++) {
        const int failed = put_out_part(o, o->base[s] + begin, place(o, s, begin), end - begin);
        if (failed) error = failed;
    }
    return error;
}

// ---- the thread ----

static bool may_read(const keel_offload *o) {
    return o->ready < o->count && o->ready < o->done + 2 && o->ready < o->released + HELD;
}

static void *serve(void *context) {
    keel_offload *o = context;
    pthread_mutex_lock(&o->lock);
    while (!o->stop) {
        const size_t in = o->ready, out = o->released;
        if (may_read(o)) {
            pthread_mutex_unlock(&o->lock);
            read_in(o, in);
            pthread_mutex_lock(&o->lock);
            o->ready++;
        } else if (out < o->done) {
            pthread_mutex_unlock(&o->lock);
            const int error = out ? put_out(o, begin_of(o, out), begin_of(o, out + 1)) : 0;
            pthread_mutex_lock(&o->lock);
            if (error) o->error = error;
            o->released++;
        } else {
            pthread_cond_wait(&o->changed, &o->lock);
            continue;
        }
        pthread_cond_broadcast(&o->changed);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

static keel_status start_thread(keel_offload *o) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for others
    o->running = pthread_create(&o->thread, NULL, serve, o) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return o->running ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no thread for optimizer.offload");
}

// ---- open, close ----

static keel_status check_folder(const keel_offload *o) {
    struct statfs about;
    if (statfs(o->folder, &about) != 0)
        return keel_yaml_fail_key(o->node, "folder", "%s: %s", o->folder, strerror(errno));
    if (about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC)
        return keel_yaml_fail_key(o->node, "folder", "%s lies in memory, not on a disk", o->folder);
    return KEEL_OK;
}

static keel_status make_file(keel_offload *o) {
    char *path;
    const size_t bytes = keel_offload_disk(o);
    if (asprintf(&path, "%s/keel-offload-XXXXXX", o->folder) < 0)
        return keel_fail(KEEL_ERR_MEMORY, "no memory for a path");
    o->file = mkostemp(path, O_CLOEXEC);
    const int made = o->file < 0 ? errno : 0;
    if (!made) (void)unlink(path);
    free(path);
    if (made) return keel_yaml_fail_key(o->node, "folder", "%s: %s", o->folder, strerror(made));
    // Later a full disk would be a signal in the midst of an update.
    const int reserved = posix_fallocate(o->file, 0, (off_t)bytes);
    if (reserved)
        return keel_yaml_fail_key(o->node, "folder", "%s: %zu bytes cannot be reserved: %s", o->folder, bytes,
                                  strerror(reserved));
    return KEEL_OK;
}

static keel_status map_states(keel_offload *o) {
    for (size_t s = 0; s < KEEL_OFFLOAD_STATES; s++) {
        void *base = mmap(NULL, o->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED)
            return keel_fail(KEEL_ERR_MEMORY, "cannot map %zu bytes: %s", o->bytes, strerror(errno));
        o->base[s] = base;
        const size_t size = o->bytes - o->fixed;
        void *mapped = mmap(o->base[s] + o->fixed, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, o->file,
                            place(o, s, o->fixed));
        if (mapped == MAP_FAILED)
            return keel_yaml_fail_key(o->node, "folder", "%s: %zu bytes cannot be mapped: %s", o->folder, size,
                                      strerror(errno));
        // What comes in is asked for: nothing beside it.
        (void)madvise(mapped, size, MADV_RANDOM);
    }
    return KEEL_OK;
}

keel_status keel_offload_open(const keel_offload_config *config, size_t numel, keel_offload **offload) {
    const size_t page = page_bytes(), least = KEEL_OFFLOAD_STATES * WINDOWS * page;
    const size_t bytes = (numel * sizeof(float) + page - 1) / page * page;
    *offload = NULL;
    if ((size_t)config->memory_limit < least)
        return keel_yaml_fail_key(config->node, "memory_limit", "%lld bytes, at least %zu",
                                  (long long)config->memory_limit, least);
    if (bytes <= state_limit(config, page)) return KEEL_OK;
    keel_offload *o = calloc(1, sizeof *o);
    char *folder = strdup(config->folder);
    if (!o || !folder) {
        free(o);
        free(folder);
        return keel_fail(KEEL_ERR_MEMORY, "no memory for optimizer.offload");
    }
    *o = (keel_offload){.folder = folder, .node = config->node, .file = -1, .page = page, .bytes = bytes};
    o->window = window_bytes(config, page);
    o->fixed = state_limit(config, page) - IN_FLIGHT * o->window;
    o->count = 1 + (o->bytes - o->fixed + o->window - 1) / o->window;
    o->ready = o->done = o->released = o->count;
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->changed, NULL);
    keel_status status = check_folder(o);
    if (!status) status = make_file(o);
    if (!status) status = map_states(o);
    if (!status) status = start_thread(o);
    if (status)
        keel_offload_close(o);
    else
        *offload = o;
    return status;
}

void keel_offload_close(keel_offload *offload) {
    keel_offload *o = offload;
    if (!o) return;
    if (o->running) {
        pthread_mutex_lock(&o->lock);
        o->stop = true;
        pthread_cond_broadcast(&o->changed);
        pthread_mutex_unlock(&o->lock);
        pthread_join(o->thread, NULL);
    }
    for (size_t s = 0; s < KEEL_OFFLOAD_STATES; s++)
        if (o->base[s]) munmap(o->base[s], o->bytes);
    if (o->file >= 0) close(o->file);
    pthread_mutex_destroy(&o->lock);
    pthread_cond_destroy(&o->changed);
    free(o->folder);
    free(o);
}

float *keel_offload_state(keel_offload *offload, size_t state) {
    return (float *)(void *)offload->base[state];
}
size_t keel_offload_windows(const keel_offload *offload) {
    return offload->count;
}
size_t keel_offload_window_of(const keel_offload *offload, size_t element) {
    const size_t at = element * sizeof(float);
    return at < offload->fixed ? 0 : 1 + (at - offload->fixed) / offload->window;
}
size_t keel_offload_memory(const keel_offload *offload) {
    return KEEL_OFFLOAD_STATES * (offload->fixed + IN_FLIGHT * offload->window);
}
size_t keel_offload_disk(const keel_offload *offload) {
    return KEEL_OFFLOAD_STATES * (offload->bytes - offload->fixed);
}
double keel_offload_waited(const keel_offload *offload) {
    return offload->waited;
}

keel_status keel_offload_check(keel_offload *offload) {
    keel_offload *o = offload;
    pthread_mutex_lock(&o->lock);
    const int error = o->error;
    pthread_mutex_unlock(&o->lock);
    if (!error) return KEEL_OK;
    return keel_fail(KEEL_ERR_IO, "optimizer.offload.folder: %s: states could not be written: %s", o->folder,
                     strerror(error));
}

// ---- an update ----

// Until the thread has nothing left to do for the last update.
static void wait_idle(keel_offload *o) {
    while (o->released < o->count || o->ready < o->count) pthread_cond_wait(&o->changed, &o->lock);
}

void keel_offload_begin(keel_offload *offload) {
    keel_offload *o = offload;
    const double since = keel_seconds();
    pthread_mutex_lock(&o->lock);
    wait_idle(o);
    o->ready = o->done = o->released = 0;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
    o->waited += keel_seconds() - since;
}

keel_status keel_offload_take(keel_offload *offload, size_t window) {
    keel_offload *o = offload;
    const double since = keel_seconds();
    pthread_mutex_lock(&o->lock);
    while (o->ready <= window) pthread_cond_wait(&o->changed, &o->lock);
    pthread_mutex_unlock(&o->lock);
    o->waited += keel_seconds() - since;
    return keel_offload_check(o);
}

void keel_offload_give(keel_offload *offload, size_t window) {
    keel_offload *o = offload;
    pthread_mutex_lock(&o->lock);
    o->done = window + 1;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

void keel_offload_end(keel_offload *offload) {
    keel_offload_give(offload, offload->count - 1);
}

void keel_offload_rest(keel_offload *offload) {
    keel_offload *o = offload;
    pthread_mutex_lock(&o->lock);
    wait_idle(o);
    pthread_mutex_unlock(&o->lock);
    const int error = put_out(o, o->fixed, o->bytes); // the thread has nothing to do
    pthread_mutex_lock(&o->lock);
    if (error) o->error = error;
    pthread_mutex_unlock(&o->lock);
}
