// A thread of the library beside the program's own.
#ifndef KEEL_COLLECTORS_HELPER_THREAD_H
#define KEEL_COLLECTORS_HELPER_THREAD_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <time.h>

#include "probe/status.h"

// NAME: at most 15 characters. The thread takes no signals: they are the program's. Floating point
// rounds and traps on it as by default.
keel_status keel_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *context);

// sem_wait, whatever interrupts it.
void keel_semaphore_wait(sem_t *semaphore);
// The same for at most SECONDS, 0: without waiting; false if nobody has posted until then.
bool keel_semaphore_wait_for(sem_t *semaphore, double seconds);

void keel_nap(long nanoseconds);

// Of the monotonic clock; the second: SECONDS from now, for what waits by it.
double keel_seconds_now(void);
struct timespec keel_time_in(double seconds);
double keel_unix_seconds_now(void); // since 1970

#endif
