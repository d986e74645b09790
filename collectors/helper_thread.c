#include "collectors/helper_thread.h"

#include <errno.h>
#include <fenv.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    void *(*run)(void *);
    void *context;
} entry;

// A thread inherits traps and rounding of the one that made it.
static void *enter(void *made) {
    const entry entered = *(entry *)made;
    free(made);
    fesetenv(FE_DFL_ENV);
    return entered.run(entered.context);
}

keel_status keel_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *context) {
    entry *made = malloc(sizeof *made);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "thread %s: no memory", name);
    *made = (entry){run, context};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(thread, NULL, enter, made);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        free(made);
        return keel_fail(KEEL_ERR_IO, "thread %s: %s", name, strerror(error));
    }
    pthread_setname_np(*thread, name);
    return KEEL_OK;
}

void keel_semaphore_wait(sem_t *semaphore) {
    while (sem_wait(semaphore) != 0 && errno == EINTR) {
    }
}

bool keel_semaphore_wait_for(sem_t *semaphore, double seconds) {
    if (!(seconds > 0)) return sem_trywait(semaphore) == 0;
    const struct timespec until = keel_time_in(seconds);
    int result;
    while ((result = sem_clockwait(semaphore, CLOCK_MONOTONIC, &until)) != 0 && errno == EINTR) {
    }
    return result == 0;
}

void keel_nap(long nanoseconds) {
    nanosleep(&(struct timespec){.tv_nsec = nanoseconds}, NULL);
}

static double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double keel_seconds_now(void) {
    return seconds_of(CLOCK_MONOTONIC);
}

struct timespec keel_time_in(double seconds) {
    const double until = keel_seconds_now() + seconds, whole = floor(until);
    return (struct timespec){.tv_sec = (time_t)whole, .tv_nsec = (long)(1e9 * (until - whole))};
}

double keel_unix_seconds_now(void) {
    return seconds_of(CLOCK_REALTIME);
}
