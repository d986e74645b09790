#include "collectors/helper_thread.h"

#include <errno.h>
#include <fenv.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

bool keel_semaphore_wait_quarter(sem_t *semaphore) {
    enum { SECOND = 1000000000 };
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += SECOND / 4;
    until.tv_sec += until.tv_nsec / SECOND;
    until.tv_nsec %= SECOND;
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

double keel_unix_seconds_now(void) {
    return seconds_of(CLOCK_REALTIME);
}
