#include "collectors/helper_thread.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

keel_status keel_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *context) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) return keel_fail(KEEL_ERR_IO, "thread %s: %s", name, strerror(error));
    pthread_setname_np(*thread, name);
    return KEEL_OK;
}

void keel_semaphore_wait(sem_t *semaphore) {
    while (sem_wait(semaphore) != 0 && errno == EINTR) {
    }
}

bool keel_semaphore_wait_second(sem_t *semaphore) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec++;
    int result;
    while ((result = sem_clockwait(semaphore, CLOCK_MONOTONIC, &until)) != 0 && errno == EINTR) {
    }
    return result == 0;
}

void keel_nap(long nanoseconds) {
    nanosleep(&(struct timespec){.tv_nsec = nanoseconds}, NULL);
}

double keel_seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
