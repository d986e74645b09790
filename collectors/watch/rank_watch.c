#include "collectors/watch/rank_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "collectors/helper_thread.h"
#include "collectors/watch/process.h"

enum { STEPS = 64, NOBODY = -1 };
#define LEAST_INTERVAL 0.05 // seconds between two looks
#define MOST_INTERVAL  1.0
#define JUDGE_SECONDS  3.0 // in which a judge, which asks some times a second, has told of a hang
#define ASKED_SECONDS  1.0 // in which it has asked for a death
#define STOP_SECONDS   0.5 // after which a death is no cause of the stop
#define LOOKS_MISSED   4   // after which another rank's watch counts as standing

// What this rank has seen of another; of the watch's thread.
typedef struct peer {
    uint64_t signs, looks; // at the last look
    double silent, blind;  // seconds for which they have stayed
    char state;            // of its process, where it is silent; 0: gone
    bool gone;
} peer;

struct keel_rank_watch {
    keel_rank_watch_options options;
    keel_beat_board board;
    pthread_t thread;
    int stop; // an eventfd
    double interval;
    peer *peers;        // [board.count]
    struct pollfd *fds; // [board.count + 1], the last is stop
    double last_look;
    double dead_for; // seconds since a death was told; negative: none was
    char dead_how[64];
    double hang_for;           // seconds for which there is one
    _Atomic double stop_asked; // when; 0: it was not
    bool ended;                // the job, by this watch
    bool observed;             // see keel_rank_watch_observed

    // The training thread's, read by the other.
    _Atomic double seconds[STEPS];
    _Atomic uint64_t steps; // ended
    double began;           // of the step that goes on

    pthread_mutex_t mutex;
    keel_host_event waited_for; // under the mutex, as is the next
    bool waited_for_known;
    keel_host_event told; // the last that the judge is to hear of; under the mutex too
    bool told_new;        // and it has not asked for it yet
};

// ---- signs ----

static void count_sign(keel_beat *beat) {
    atomic_fetch_add_explicit(&beat->signs, 1, memory_order_relaxed);
}

void keel_rank_watch_sign(keel_rank_watch *watch) {
    count_sign(keel_beat_own(&watch->board));
}

bool *keel_rank_watch_observed(keel_rank_watch *watch) {
    return &watch->observed;
}

void keel_rank_watch_wait(keel_rank_watch *watch, bool begins) {
    keel_beat *beat = keel_beat_own(&watch->board);
    atomic_store(&beat->waits, begins);
    count_sign(beat);
}

void keel_rank_watch_step(keel_rank_watch *watch, uint64_t step, bool begins) {
    keel_beat *beat = keel_beat_own(&watch->board);
    const double now = keel_seconds_now();
    if (begins) {
        atomic_store(&beat->step, step);
        watch->began = now;
    } else {
        const uint64_t ended = atomic_load(&watch->steps);
        atomic_store(&watch->seconds[ended % STEPS], now - watch->began);
        atomic_store(&watch->steps, ended + 1);
    }
    atomic_store(&beat->phase, begins ? KEEL_BEAT_STEP : KEEL_BEAT_BETWEEN);
    atomic_store(&beat->waits, 0);
    count_sign(beat);
}

// ---- looking ----

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Of silence, by the last steps of this rank; infinite before two have ended.
static double limit_now(const keel_rank_watch *watch) {
    const uint64_t steps = atomic_load(&watch->steps);
    const size_t count = steps < STEPS ? (size_t)steps : STEPS;
    double seconds[STEPS];
    if (watch->options.hang_seconds <= 0 || count < 2) return INFINITY;
    for (size_t i = 0; i < count; i++) seconds[i] = atomic_load(&watch->seconds[i]);
    qsort(seconds, count, sizeof *seconds, ascending);
    return fmax(watch->options.hang_seconds, watch->options.hang_times * seconds[count / 2]);
}

static uint32_t phase_of(const keel_rank_watch *watch, uint32_t i) {
    return atomic_load(&watch->board.table->beats[i].phase);
}

static bool ours(const keel_rank_watch *watch, uint32_t i) {
    return watch->board.table->beats[i].pid_space == keel_beat_own(&watch->board)->pid_space;
}

static void look_at(keel_rank_watch *watch, uint32_t i, double passed) {
    const keel_beat *beat = &watch->board.table->beats[i];
    peer *p = &watch->peers[i];
    const uint64_t signs = atomic_load(&beat->signs), looks = atomic_load(&beat->looks);
    p->silent = signs == p->signs ? p->silent + passed : 0;
    p->blind = looks == p->looks ? p->blind + passed : 0;
    p->signs = signs;
    p->looks = looks;
    p->state = 'R';
    if (i == watch->board.own || p->gone || !ours(watch, i)) return;
    struct pollfd *fd = &watch->fds[i];
    const bool told = fd->fd >= 0 && (fd->revents & POLLIN);
    // Of a process without a handle, and of one that is silent, the system must be asked.
    if (fd->fd < 0 || p->silent > 2 * watch->interval) p->state = keel_process_state(beat->pid);
    if (!told && p->state != 0) return;
    p->gone = true;
    if (fd->fd >= 0) close(fd->fd);
    fd->fd = -1;
}

// No lower rank can tell in this one's place.
static bool leads(const keel_rank_watch *watch) {
    for (uint32_t i = 0; i < watch->board.own; i++) {
        const peer *p = &watch->peers[i];
        if (!p->gone && phase_of(watch, i) != KEEL_BEAT_LEFT && p->blind < LOOKS_MISSED * watch->interval) return false;
    }
    return true;
}

static bool stopped(const peer *p) {
    return p->state == 'T' || p->state == 't';
}

static bool at_work(const keel_rank_watch *watch, uint32_t i) {
    return !watch->peers[i].gone && phase_of(watch, i) != KEEL_BEAT_LEFT;
}

// For programs that do not say when they wait: the rank that has come least far, if it is one.
static int pick_last(const keel_rank_watch *watch) {
    int found = NOBODY;
    bool one = false;
    for (uint32_t i = 0; i < watch->board.count; i++) {
        if (!at_work(watch, i)) continue;
        const keel_beat *beat = &watch->board.table->beats[i],
                        *least = found == NOBODY ? beat : &watch->board.table->beats[found];
        const uint64_t step = atomic_load(&beat->step), signs = watch->peers[i].signs;
        const uint64_t least_step = found == NOBODY ? UINT64_MAX : atomic_load(&least->step);
        const uint64_t least_signs = found == NOBODY ? UINT64_MAX : watch->peers[found].signs;
        const bool less = step < least_step || (step == least_step && signs < least_signs);
        if (less) found = (int)i;
        one = less || (one && !(step == least_step && signs == least_signs));
    }
    return one ? found : NOBODY;
}

// The rank that the others wait for, or NOBODY.
static int pick(const keel_rank_watch *watch) {
    int found = NOBODY;
    bool somebody_waits = false;
    for (uint32_t i = 0; i < watch->board.count; i++) {
        const peer *p = &watch->peers[i];
        const bool waits = atomic_load(&watch->board.table->beats[i].waits) != 0;
        somebody_waits |= waits;
        if (!at_work(watch, i)) continue;
        if (stopped(p)) return (int)i;
        if (!waits && (found == NOBODY || p->silent > watch->peers[found].silent)) found = (int)i;
    }
    return somebody_waits ? found : pick_last(watch);
}

// ---- telling ----

static void describe_silence(const peer *p, bool waits, char how[64]) {
    snprintf(how, 64, "%s",
             stopped(p)        ? "stopped by a signal"
             : p->state == 'D' ? "waiting for a disk"
             : waits           ? "waiting for others itself"
                               : "in no collective");
}

static keel_host_event event_of(const keel_rank_watch *watch, keel_host_event_kind kind, int who) {
    keel_host_event event = {.kind = kind, .rank = NOBODY};
    keel_host_event_here(&event);
    const uint32_t i = who == NOBODY ? watch->board.own : (uint32_t)who;
    const keel_beat *beat = &watch->board.table->beats[i];
    event.step = atomic_load(&beat->step);
    if (kind == KEEL_HOST_SILENT) event.seconds = watch->peers[i].silent;
    if (who == NOBODY) {
        snprintf(event.how, sizeof event.how, "none of this host's ranks goes on");
        return event;
    }
    event.rank = beat->rank;
    event.pid = (int32_t)beat->pid;
    const int32_t status = atomic_load(&beat->exit_status);
    if (kind == KEEL_HOST_SILENT)
        describe_silence(&watch->peers[i], atomic_load(&beat->waits) != 0, event.how);
    else if (status)
        snprintf(event.how, sizeof event.how, "it has called exit with status %d", status - 1);
    else
        snprintf(event.how, sizeof event.how, "it was killed or has crashed");
    return event;
}

static bool stopping(keel_rank_watch *watch) {
    const double asked = atomic_load(&watch->stop_asked);
    return asked > 0 && keel_seconds_now() - asked > STOP_SECONDS;
}

static void alert(keel_rank_watch *watch, const keel_host_event *event) {
    if (watch->options.alert && !stopping(watch)) watch->options.alert(watch->options.context, event);
}

static void tell(keel_rank_watch *watch, const keel_host_event *event) {
    if (keel_host_event_write(watch->options.directory, event)) keel_log(KEEL_LOG_ERROR, "%s", keel_error());
    const bool news = event->kind == KEEL_HOST_SILENT || !stopping(watch);
    if (watch->options.judges && news && phase_of(watch, watch->board.own) != KEEL_BEAT_STARTING) {
        pthread_mutex_lock(&watch->mutex);
        watch->told = *event;
        watch->told_new = true;
        pthread_mutex_unlock(&watch->mutex);
    } else {
        alert(watch, event);
    }
}

// A judge that still has not asked for a death may itself hang, on a disk or so, and the job ends soon.
static void alert_for_judge(keel_rank_watch *watch) {
    keel_host_event event;
    if (watch->dead_for >= ASKED_SECONDS && keel_rank_watch_told(watch, &event)) alert(watch, &event);
}

static void end_job(keel_rank_watch *watch, const char *why) {
    if (watch->ended || !watch->options.end_job) return;
    watch->ended = true;
    atomic_store(&watch->board.table->death_told, 1); // what is ended now is no news
    keel_log(KEEL_LOG_ERROR, "the job is ended: %s", why);
    watch->options.end_job(watch->options.context);
}

// ---- deaths ----

static void look_for_deaths(keel_rank_watch *watch, double passed) {
    if (watch->dead_for >= 0) {
        watch->dead_for += passed;
        alert_for_judge(watch);
        const double patience = leads(watch) ? KEEL_WATCH_GRACE_SECONDS : 2 * KEEL_WATCH_GRACE_SECONDS;
        if (watch->dead_for >= patience) end_job(watch, watch->dead_how);
        return;
    }
    for (uint32_t i = 0; i < watch->board.count; i++) {
        if (!watch->peers[i].gone || phase_of(watch, i) == KEEL_BEAT_LEFT) continue;
        uint32_t before = 0;
        if (leads(watch) && atomic_compare_exchange_strong(&watch->board.table->death_told, &before, 1)) {
            keel_host_event event = event_of(watch, KEEL_HOST_GONE, (int)i);
            if (stopping(watch))
                strncat(event.how, " after a request to stop", sizeof event.how - strlen(event.how) - 1);
            tell(watch, &event);
        } else if (!atomic_load(&watch->board.table->death_told))
            continue; // it is for a lower rank to tell; at the next look it may be this one's
        watch->dead_for = 0;
        snprintf(watch->dead_how, sizeof watch->dead_how, "rank %d is gone", (int)watch->board.table->beats[i].rank);
        return;
    }
}

// ---- silence ----

// The step of some rank has gone on for LIMIT without it, or nobody knows whom all wait for.
static bool is_hang(const keel_rank_watch *watch, int who, double limit) {
    if (who != NOBODY && stopped(&watch->peers[who]))
        return watch->peers[who].silent >= (isfinite(limit) ? limit : watch->options.hang_seconds);
    bool in_step = false;
    for (uint32_t i = 0; i < watch->board.count; i++) {
        in_step |= phase_of(watch, i) == KEEL_BEAT_STEP;
        if (who == NOBODY && watch->peers[i].silent < limit) return false;
    }
    return in_step && (who == NOBODY || watch->peers[who].silent >= limit);
}

static void publish(keel_rank_watch *watch, int who) {
    keel_host_event event = {0};
    if (who != NOBODY) event = event_of(watch, KEEL_HOST_SILENT, who);
    pthread_mutex_lock(&watch->mutex);
    watch->waited_for_known = who != NOBODY;
    watch->waited_for = event;
    pthread_mutex_unlock(&watch->mutex);
}

// The first to tell of this silence.
static bool claim(const keel_rank_watch *watch, int who) {
    keel_beat *beat = &watch->board.table->beats[who == NOBODY ? 0 : who];
    const uint64_t now = atomic_load(&beat->signs) + 1;
    return atomic_exchange(&beat->silence_told, now) != now;
}

static void look_for_silence(keel_rank_watch *watch, double passed) {
    const double limit = limit_now(watch);
    const int who = pick(watch);
    publish(watch, who);
    watch->hang_for = is_hang(watch, who, limit) ? watch->hang_for + passed : 0;
    if (watch->hang_for <= 0) return;
    if (leads(watch) && claim(watch, who)) {
        const keel_host_event event = event_of(watch, KEEL_HOST_SILENT, who);
        tell(watch, &event);
    }
    const double silent = watch->peers[who == NOBODY ? (int)watch->board.own : who].silent;
    const double end = watch->options.end_seconds + (leads(watch) ? 0 : 2 * KEEL_WATCH_GRACE_SECONDS);
    if (watch->options.end_seconds <= 0 || silent < end || watch->hang_for < JUDGE_SECONDS) return;
    char why[128];
    if (who == NOBODY)
        snprintf(why, sizeof why, "none of this host's ranks has gone on for %.3g s", silent);
    else
        snprintf(why, sizeof why, "rank %d has given no sign of life for %.3g s",
                 (int)watch->board.table->beats[who].rank, silent);
    end_job(watch, why);
}

static void *run(void *context) {
    keel_rank_watch *watch = context;
    struct pollfd *stop = &watch->fds[watch->board.count];
    watch->last_look = keel_seconds_now();
    while (!(stop->revents & POLLIN)) {
        poll(watch->fds, watch->board.count + 1, (int)(1000 * watch->interval));
        if (stop->revents & POLLIN) break;
        keel_beat *own = keel_beat_own(&watch->board);
        atomic_store(&own->looks, atomic_load(&own->looks) + 1);
        if (__atomic_exchange_n(&watch->observed, false, __ATOMIC_RELAXED)) count_sign(own);
        const double now = keel_seconds_now(), passed = fmin(now - watch->last_look, 2 * watch->interval);
        watch->last_look = now;
        for (uint32_t i = 0; i < watch->board.count; i++) look_at(watch, i, passed);
        look_for_deaths(watch, passed);
        if (watch->dead_for < 0 && watch->options.hang_seconds > 0) look_for_silence(watch, passed);
    }
    return NULL;
}

void keel_rank_watch_stopping(keel_rank_watch *watch) {
    double before = 0;
    atomic_compare_exchange_strong(&watch->stop_asked, &before, keel_seconds_now());
}

bool keel_rank_watch_broken(const keel_rank_watch *watch) {
    return atomic_load(&watch->board.table->death_told) != 0;
}

bool keel_rank_watch_told(keel_rank_watch *watch, keel_host_event *event) {
    pthread_mutex_lock(&watch->mutex);
    const bool fresh = watch->told_new;
    *event = watch->told;
    watch->told_new = false;
    pthread_mutex_unlock(&watch->mutex);
    return fresh;
}

bool keel_rank_watch_waited_for(keel_rank_watch *watch, keel_host_event *event) {
    pthread_mutex_lock(&watch->mutex);
    const bool known = watch->waited_for_known;
    *event = watch->waited_for;
    pthread_mutex_unlock(&watch->mutex);
    return known;
}

// ---- open and close ----

static _Atomic(keel_beat *) leaving; // whose process may call exit

static void note_exit(int status, void *unused) {
    (void)unused;
    keel_beat *beat = atomic_load(&leaving);
    if (beat) atomic_store(&beat->exit_status, status + 1);
}

static keel_status fill(keel_rank_watch *watch) {
    const uint32_t count = watch->board.count;
    watch->peers = calloc(count, sizeof *watch->peers);
    watch->fds = calloc(count + 1, sizeof *watch->fds);
    if (!watch->peers || !watch->fds) return keel_fail(KEEL_ERR_MEMORY, "no memory to watch %u ranks", count);
    for (uint32_t i = 0; i < count; i++)
        watch->fds[i] = (struct pollfd){
            .fd = i == watch->board.own || !ours(watch, i) ? -1 : keel_process_handle(watch->board.table->beats[i].pid),
            .events = POLLIN};
    watch->stop = eventfd(0, EFD_CLOEXEC);
    if (watch->stop < 0) return keel_fail(KEEL_ERR_IO, "no eventfd for the watch over ranks: %s", strerror(errno));
    watch->fds[count] = (struct pollfd){.fd = watch->stop, .events = POLLIN};
    return KEEL_OK;
}

static void free_watch(keel_rank_watch *watch) {
    for (uint32_t i = 0; watch->fds && i < watch->board.count; i++)
        if (watch->fds[i].fd >= 0 && watch->fds[i].events) close(watch->fds[i].fd);
    if (watch->stop >= 0) close(watch->stop);
    pthread_mutex_destroy(&watch->mutex);
    free(watch->peers);
    free(watch->fds);
    free(watch);
}

static double least_limit(const keel_rank_watch_options *options) {
    const double hang = options->hang_seconds > 0 ? options->hang_seconds : INFINITY;
    return options->end_seconds > 0 ? fmin(hang, options->end_seconds) : hang;
}

keel_status keel_rank_watch_open(const keel_rank_watch_options *options, keel_rank_watch **out) {
    static atomic_flag registered = ATOMIC_FLAG_INIT;
    keel_rank_watch *watch = calloc(1, sizeof *watch);
    if (!watch) return keel_fail(KEEL_ERR_MEMORY, "no memory for the watch over ranks");
    watch->options = *options;
    watch->board = options->board;
    watch->stop = -1;
    watch->dead_for = -1;
    watch->interval = fmin(fmax(least_limit(options) / 10, LEAST_INTERVAL), MOST_INTERVAL);
    pthread_mutex_init(&watch->mutex, NULL);
    keel_status status = fill(watch);
    if (!status) status = keel_thread_start(&watch->thread, "keel-watch", run, watch);
    if (status) {
        free_watch(watch);
        return status;
    }
    if (!atomic_flag_test_and_set(&registered)) on_exit(note_exit, NULL);
    atomic_store(&leaving, keel_beat_own(&watch->board));
    *out = watch;
    return KEEL_OK;
}

void keel_rank_watch_close(keel_rank_watch *watch) {
    if (!watch) return;
    atomic_store(&leaving, NULL);
    atomic_store(&keel_beat_own(&watch->board)->phase, KEEL_BEAT_LEFT);
    const uint64_t one = 1;
    while (write(watch->stop, &one, sizeof one) < 0 && errno == EINTR) {
    }
    pthread_join(watch->thread, NULL);
    keel_beat_board board = watch->board;
    free_watch(watch);
    keel_beat_board_close(&board);
}
