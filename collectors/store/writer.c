#include "collectors/store/writer.h"

#include <errno.h>
#include <linux/magic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "collectors/helper_thread.h"
#include "collectors/store/backlog.h"
#include "collectors/store/h5.h"
#include "collectors/store/packer.h"
#include "collectors/store/run_lock.h"
#include "collectors/store/schema.h"
#include "collectors/store/segment_reader.h"
#include "collectors/store/segment_writer.h"
#include "collectors/store/store_files.h"

#define DEFAULT_SEGMENT_BYTES (UINT64_C(1) << 30)
#define DEFAULT_PACK_SECONDS  10.0
#define RETRY_SECONDS         1.0 // between tries to begin a new segment after one failed
#define SIGN_SECONDS          1.0
#define DEFAULT_SHOW_SECONDS  10.0
#define ASIDE_BYTES           (UINT64_C(64) << 20)
#define COPY_SHARE            20 // copies take at most one part in so many of the thread's time

typedef struct store {
    char *directory;
    size_t first_made; // see make_directory
    keel_run_lock lock;
    keel_store_options options;
    const keel_run_info *info;
    keel_segment_writer *segment; // NULL: none that can be written
    uint32_t number;              // of the segment, or of the next where there is none
    const char *origin;           // of the next segment
    double retry_at;              // not before: the next try to begin a segment
    double sign_at;               // when the lock is due to be looked at and touched
    keel_backlog backlog;
    bool paused;           // the backlog is in use, and that was said
    uint64_t lost_flushed; // lost rows and incidents that flush has told of
    bool aside;            // readers get copies
    double show_at;        // when the next is due
    bool unshown_said;     // that none could be made
    keel_packer *packer;
} store;

// ---- the directory ----

// *FIRST: length of the path of the first folder that had to be made; 0: none.
static keel_status make_directory(const char *directory, size_t *first) {
    char *path = strdup(directory);
    if (!path) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", directory);
    int error = 0;
    // Every part in turn; the first may be the root.
    for (char *end = path + 1; !error; end++) {
        if (*end != '/' && *end != '\0') continue;
        const char kept = *end;
        *end = '\0';
        const bool made = mkdir(path, 0777) == 0;
        if (made && !*first) *first = (size_t)(end - path);
        if (!made && errno != EEXIST) error = errno;
        *end = kept;
        if (kept == '\0') break;
    }
    free(path);
    return error ? keel_fail(KEEL_ERR_IO, "%s: cannot make the directory: %s", directory, strerror(error)) : KEEL_OK;
}

// Of a run that never began nothing is left.
static void remove_directory(char *path, size_t first) {
    for (size_t n = strlen(path); first && n >= first;) {
        path[n] = '\0';
        if (rmdir(path) != 0 && errno != ENOENT) return; // it holds something
        const char *slash = strrchr(path, '/');
        n = slash ? (size_t)(slash - path) : 0;
    }
}

const char *keel_store_shared_file_system(const char *directory) {
    struct statfs about;
    if (statfs(directory, &about) != 0) return NULL;
    switch ((unsigned long)about.f_type) {
    case NFS_SUPER_MAGIC:
        return "NFS";
    case SMB_SUPER_MAGIC:
    case SMB2_SUPER_MAGIC:
    case CIFS_SUPER_MAGIC:
        return "SMB";
    case AFS_SUPER_MAGIC:
        return "AFS";
    default:
        return NULL;
    }
}

// Where a reader could take rows for whole that are not, it must not see the file that is being written.
static void choose_way(store *s) {
    const char *shared = keel_store_shared_file_system(s->directory);
    s->aside = s->lock.by_file || shared;
    if (!s->aside) return;
    if (s->options.segment_bytes > ASIDE_BYTES) s->options.segment_bytes = ASIDE_BYTES; // each is copied often
    keel_log(
        KEEL_LOG_WARNING,
        "%s: %s%s: live reading is not safe there; readers get a copy of what is recorded every %g s, and keel.lock "
        "or the system keeps other writers out",
        s->directory, shared ? shared : "the file system has no locks",
        shared ? " is a file system of several machines" : "", s->options.show_seconds);
}

// A killed writer may have left a segment of which readers have a copy only: it holds more, unless its host went down
// and left it torn.
static keel_status recover(const char *directory, uint32_t number) {
    char *path = keel_segment_path(directory, number, ""),
         *whole = keel_segment_path(directory, number, KEEL_SEGMENT_NEW);
    keel_segment_reader *copy = NULL, *left = NULL;
    keel_status status = path && whole ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "%s: no memory", directory);
    if (!status && access(whole, F_OK) == 0) {
        const bool had = keel_segment_reader_open(path, &copy) == KEEL_OK;
        const bool more = keel_segment_reader_open(whole, &left) == KEEL_OK &&
                          (!had || keel_segment_reader_rows(left) >= keel_segment_reader_rows(copy));
        if (!more)
            keel_log(KEEL_LOG_WARNING, "%s: torn; the last copy of it is kept", whole);
        else if (rename(whole, path) != 0)
            status = keel_fail(KEEL_ERR_IO, "%s: cannot rename it: %s", whole, strerror(errno));
    }
    keel_segment_reader_close(copy);
    keel_segment_reader_close(left);
    free(path);
    free(whole);
    return status;
}

// ---- segments ----

static keel_status begin_segment(store *s, keel_segment_writer **segment) {
    return keel_segment_writer_open(s->directory, s->number, s->info, s->origin, s->aside, segment);
}

// Behind what another writer may have recorded while the lock was not this one's.
static keel_status skip_numbers(store *s) {
    uint32_t *numbers = NULL;
    size_t count = 0;
    const keel_status status = keel_segment_list(s->directory, &numbers, &count);
    if (count > 0 && numbers[count - 1] >= s->number) s->number = numbers[count - 1] + 1;
    free(numbers);
    return status;
}

// The directory may have been removed, its lock with it; or another host has taken this writer for dead.
static keel_status check_lock(store *s) {
    if (keel_run_lock_holds(&s->lock, s->directory)) return KEEL_OK;
    keel_run_lock lock;
    keel_status status = make_directory(s->directory, &s->first_made);
    if (!status) status = keel_run_lock_take(s->directory, &lock);
    if (status) return status;
    close(s->lock.directory);
    s->lock = lock;
    return skip_numbers(s);
}

static keel_status open_segment(store *s) {
    if (keel_seconds_now() < s->retry_at) return keel_fail(KEEL_ERR_IO, "%s: no segment can be begun", s->directory);
    keel_segment_writer *segment = NULL;
    keel_status status = check_lock(s);
    if (!status) status = begin_segment(s, &segment);
    if (!status && (status = keel_segment_writer_publish(segment))) keel_segment_writer_close(segment);
    if (status) {
        s->retry_at = keel_seconds_now() + RETRY_SECONDS;
        return status;
    }
    s->segment = segment;
    s->origin = KEEL_ORIGIN_ROLLOVER;
    return KEEL_OK;
}

// Closes the segment. The next one has another number.
static void end_segment(store *s) {
    if (keel_segment_writer_close(s->segment) != KEEL_OK) keel_log(KEEL_LOG_ERROR, "%s", keel_error());
    s->segment = NULL;
    s->number++;
}

// The same of one that is not to be trusted with more: what it holds is readable. keel_error stays.
static void give_up_segment(store *s) {
    char reason[512];
    snprintf(reason, sizeof reason, "%s", keel_error());
    keel_segment_writer_abandon(s->segment);
    s->segment = NULL;
    s->number++;
    s->retry_at = keel_seconds_now() + RETRY_SECONDS;
    (void)keel_fail(KEEL_ERR_IO, "%s", reason);
}

// The next segment is made before the full one is closed, and seen by readers after it.
static keel_status roll_over(store *s) {
    const uint32_t full = s->number;
    keel_segment_writer *next = NULL;
    s->number++;
    keel_status status = begin_segment(s, &next);
    s->number--;
    if (status) return status;
    end_segment(s);
    keel_packer_add(s->packer, full);
    if ((status = keel_segment_writer_publish(next))) {
        keel_segment_writer_close(next);
        return status;
    }
    s->segment = next;
    return KEEL_OK;
}

// Once a second: the lock says that its owner lives, and whose it is.
static bool lock_is_lost(store *s) {
    const double now = keel_seconds_now();
    if (now < s->sign_at) return false;
    s->sign_at = now + SIGN_SECONDS;
    return !keel_run_lock_touch(&s->lock);
}

// Ends a segment that is this writer's no more.
static keel_status check_segment(store *s) {
    if (!s->segment) return KEEL_OK;
    const bool gone = keel_segment_writer_gone(s->segment);
    if (!gone && !lock_is_lost(s)) return KEEL_OK;
    const keel_status status =
        gone ? keel_fail(KEEL_ERR_IO, "%s: was deleted while it was written", keel_segment_writer_path(s->segment))
             : keel_fail(KEEL_ERR_IO, "%s: another process has taken its lock", s->directory);
    give_up_segment(s); // whoever removes the directory gets done with it before the next try
    return status;
}

// A segment in which a row or an incident can be written.
static keel_status ready_segment(store *s) {
    const keel_status mine = check_segment(s);
    if (mine) return mine;
    if (!s->segment) return open_segment(s);
    if (!keel_segment_writer_full(s->segment, s->options.segment_bytes)) return KEEL_OK;
    const keel_status status = roll_over(s);
    return s->segment ? KEEL_OK : status; // a full segment can still take more
}

// After anything but a lack of space nobody knows what more would do to the file.
static keel_status after_write(store *s, keel_status status) {
    if (status && status != KEEL_ERR_LIMIT) give_up_segment(s);
    return status;
}

static keel_status write_row(store *s, const keel_row *row) {
    keel_status status = ready_segment(s);
    if (status) return status;
    status = keel_segment_writer_row(s->segment, row);
    // New rows come before the packing of old ones.
    if (status == KEEL_ERR_LIMIT && keel_packer_give_way(s->packer)) status = keel_segment_writer_row(s->segment, row);
    return after_write(s, status);
}

// Where readers get copies: makes one, if it is due or cannot wait. A failure costs nothing but their view.
static void show(store *s, bool at_once) {
    const double began = keel_seconds_now();
    if (!s->aside || !s->segment || (!at_once && began < s->show_at)) return;
    const keel_status status = keel_segment_writer_publish(s->segment);
    if (status && !s->unshown_said)
        keel_log(KEEL_LOG_WARNING, "%s; recording goes on, readers see it later", keel_error());
    s->unshown_said = status != KEEL_OK;
    const double now = keel_seconds_now();
    s->show_at = now + fmax(s->options.show_seconds, COPY_SHARE * (now - began));
}

static keel_status write_incident(store *s, const keel_incident *incident) {
    const keel_status status = ready_segment(s);
    if (status) return status;
    return after_write(s, keel_segment_writer_incident(s->segment, incident));
}

// ---- waiting ----

static void say_pause(store *s, keel_status status) {
    if (s->paused) return;
    s->paused = true;
    keel_log(KEEL_LOG_WARNING,
             "%s: RECORDING PAUSES, %s: %s. Training goes on; the last %u steps are kept in memory and written when "
             "it is possible again.",
             s->directory, status == KEEL_ERR_LIMIT ? "no space is left" : "the store cannot be written", keel_error(),
             s->backlog.capacity);
}

static void say_resume(store *s) {
    if (!s->paused) return;
    s->paused = false;
    keel_log(KEEL_LOG_WARNING, "%s: recording goes on. %llu steps and %llu incidents were lost in all.", s->directory,
             (unsigned long long)s->backlog.lost_rows, (unsigned long long)s->backlog.lost_incidents);
}

// Writes what waits, oldest first.
static void drain(store *s) {
    keel_status status = KEEL_OK;
    for (const keel_row *row; !status && (row = keel_backlog_row(&s->backlog));) {
        status = write_row(s, row);
        if (!status) keel_backlog_pop_row(&s->backlog);
    }
    for (const keel_incident *incident; !status && (incident = keel_backlog_incident(&s->backlog));) {
        status = write_incident(s, incident);
        if (!status) keel_backlog_pop_incident(&s->backlog);
    }
    if (status)
        say_pause(s, status);
    else if (s->backlog.unclaimed == 0)
        say_resume(s);
}

static bool waits(const store *s) {
    return !keel_backlog_empty(&s->backlog) || s->backlog.unclaimed > 0;
}

// ---- the sink ----

static keel_status start(void *context, const keel_run_info *info) {
    store *s = context;
    keel_h5_quiet();
    s->info = info;
    keel_backlog_init(&s->backlog, info);
    uint32_t *numbers = NULL;
    size_t count = 0;
    keel_status status = keel_segment_list(s->directory, &numbers, &count);
    if (!status && count > 0) status = recover(s->directory, numbers[count - 1]);
    if (!status) status = keel_segment_clean(s->directory);
    if (!status) status = keel_packer_open(s->directory, keel_row_buffer_bytes(info), &s->packer);
    // What an earlier job, perhaps killed, had no time to pack.
    for (size_t i = 0; !status && i < count; i++) keel_packer_add(s->packer, numbers[i]);
    s->number = count > 0 ? numbers[count - 1] + 1 : 0;
    s->origin = count > 0 ? KEEL_ORIGIN_RESUME : KEEL_ORIGIN_START;
    free(numbers);
    if (!status) status = open_segment(s);
    // That nothing can be recorded is to be known before the first step.
    if (!status) status = keel_segment_writer_make_room(s->segment);
    if (status != KEEL_ERR_LIMIT) return status;
    say_pause(s, status);
    return KEEL_OK;
}

static keel_status take_row(void *context, const keel_row *row) {
    store *s = context;
    keel_h5_quiet();
    const bool waited = waits(s);
    const keel_status status = waited ? KEEL_OK : write_row(s, row);
    if (!waited && !status) {
        say_resume(s);
        keel_packer_advance(s->packer);
        show(s, false);
        return KEEL_OK;
    }
    if (status) say_pause(s, status);
    keel_backlog_push_row(&s->backlog, row);
    if (waited) drain(s);
    return KEEL_OK;
}

static keel_status take_incident(void *context, const keel_incident *incident) {
    store *s = context;
    keel_h5_quiet();
    if (!waits(s) && write_incident(s, incident) == KEEL_OK) {
        show(s, true);
        return KEEL_OK;
    }
    keel_backlog_push_incident(&s->backlog, incident);
    drain(s);
    return KEEL_OK;
}

static keel_status flush(void *context) {
    store *s = context;
    keel_h5_quiet();
    if (waits(s)) drain(s);
    const uint64_t lost = s->backlog.lost_rows + s->backlog.lost_incidents, fresh = lost - s->lost_flushed;
    s->lost_flushed = lost;
    if (waits(s))
        return keel_fail(KEEL_ERR_IO, "%s: %u steps and %u incidents wait to be written, %llu were lost", s->directory,
                         s->backlog.count, s->backlog.incident_count, (unsigned long long)fresh);
    if (fresh > 0)
        return keel_fail(KEEL_ERR_IO, "%s: %llu steps or incidents were lost", s->directory, (unsigned long long)fresh);
    show(s, true);
    return KEEL_OK;
}

static void idle(void *context) {
    store *s = context;
    keel_h5_quiet();
    const keel_status mine = check_segment(s);
    if (mine) say_pause(s, mine);
    if (waits(s)) drain(s);
}

static void close_store(void *context) {
    store *s = context;
    keel_h5_quiet();
    if (s->info && waits(s)) {
        s->retry_at = 0;
        drain(s);
    }
    if (!keel_backlog_empty(&s->backlog))
        keel_log(KEEL_LOG_ERROR, "%s: the last %u steps and %u incidents could not be written", s->directory,
                 s->backlog.count, s->backlog.incident_count);
    if (s->segment) {
        keel_packer_add(s->packer, s->number);
        end_segment(s);
    }
    keel_packer_close(s->packer, s->options.pack_seconds);
    keel_backlog_free(&s->backlog);
    keel_run_lock_release(&s->lock);
    if (!s->info) remove_directory(s->directory, s->first_made);
    free(s->directory);
    free(s);
}

keel_status keel_store_sink_open(const char *directory, const keel_store_options *options, keel_sink *sink) {
    if (!*directory) return keel_fail(KEEL_ERR_USAGE, "the run directory has an empty name");
    store *s = calloc(1, sizeof *s);
    char *copy = strdup(directory);
    keel_status status = KEEL_OK;
    if (!s || !copy) {
        status = keel_fail(KEEL_ERR_MEMORY, "%s: no memory for the store", directory);
        goto fail;
    }
    if ((status = make_directory(directory, &s->first_made))) goto fail;
    if ((status = keel_run_lock_take(directory, &s->lock))) goto fail;
    s->directory = copy;
    s->options = *options;
    if (s->options.segment_bytes == 0) s->options.segment_bytes = DEFAULT_SEGMENT_BYTES;
    if (s->options.pack_seconds == 0) s->options.pack_seconds = DEFAULT_PACK_SECONDS;
    if (s->options.show_seconds == 0) s->options.show_seconds = DEFAULT_SHOW_SECONDS;
    choose_way(s);
    *sink = (keel_sink){
        .context = s,
        .name = "store",
        .start = start,
        .row = take_row,
        .incident = take_incident,
        .flush = flush,
        .idle = idle,
        .close = close_store,
    };
    return KEEL_OK;
fail:
    free(copy);
    free(s);
    return status;
}
