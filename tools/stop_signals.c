#include "tools/stop_signals.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef enum phase { OPENING, TRAINING, CLOSING } phase;

static sigset_t signals;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; // of all below
static phase present;
static keel_trainer *target;
static keel_assembly *watch;
static bool telling;
static int taken;

// Whatever comes now, and is pending, the system sees to, however this program may be stuck.
static void leave_to_system(void) {
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
}

static void *wait_for_signal(void *unused) {
    int number;
    (void)unused;
    sigwait(&signals, &number);
    pthread_mutex_lock(&mutex);
    const phase met = present;
    const bool tell = telling;
    if (met == TRAINING) {
        taken = number;
        keel_assembly_stopping(watch);
        keel_trainer_stop(target);
    }
    pthread_mutex_unlock(&mutex);
    leave_to_system();
    if (met == OPENING) kill(getpid(), number);
    if (tell)
        fprintf(stderr, "keel-train: %s: %s\n", strsignal(number),
                met == TRAINING ? "stopping at the next step border" : "the run is over and is being closed");
    for (;;) pause(); // the one thread that later signals may end
    return NULL;
}

keel_status keel_stop_signals_begin(void) {
    pthread_t waiter;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (pthread_create(&waiter, NULL, wait_for_signal, NULL) != 0)
        return keel_fail(KEEL_ERR_MEMORY, "no thread to wait for signals");
    pthread_detach(waiter);
    return KEEL_OK;
}

static void enter(phase next, keel_trainer *trainer, keel_assembly *assembly, bool tell) {
    pthread_mutex_lock(&mutex);
    present = next;
    target = trainer;
    watch = assembly;
    telling = tell;
    pthread_mutex_unlock(&mutex);
}

void keel_stop_signals_train(keel_trainer *trainer, keel_assembly *assembly, bool tell) {
    enter(TRAINING, trainer, assembly, tell);
}

void keel_stop_signals_over(void) {
    if (present == TRAINING) enter(CLOSING, NULL, NULL, telling);
}

int keel_stop_signals_taken(void) {
    pthread_mutex_lock(&mutex);
    const int number = taken;
    pthread_mutex_unlock(&mutex);
    return number;
}
