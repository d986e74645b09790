// What the library says through keel_log, kept for a test to look at. Any thread may say something.
#ifndef KEEL_TESTS_CAPTURED_LOG_H
#define KEEL_TESTS_CAPTURED_LOG_H

#include <pthread.h>
#include <string.h>

#include "probe/status.h"

enum { CAPTURED_LINES = 32, CAPTURED_BYTES = 512 };

static struct {
    pthread_mutex_t mutex;
    char lines[CAPTURED_LINES][CAPTURED_BYTES];
    size_t count;
} captured = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void capture_line(void *context, keel_log_level level, const char *text) {
    (void)context;
    (void)level;
    pthread_mutex_lock(&captured.mutex);
    if (captured.count < CAPTURED_LINES)
        strncpy(captured.lines[captured.count++], text, CAPTURED_BYTES - 1); // the lines are zeroed
    pthread_mutex_unlock(&captured.mutex);
}

static inline void capture_log(void) {
    memset(captured.lines, 0, sizeof captured.lines);
    captured.count = 0;
    keel_log_set(capture_line, NULL);
}

// How many lines hold TEXT.
static inline size_t captured_with(const char *text) {
    size_t found = 0;
    pthread_mutex_lock(&captured.mutex);
    for (size_t i = 0; i < captured.count; i++) found += strstr(captured.lines[i], text) != NULL;
    pthread_mutex_unlock(&captured.mutex);
    return found;
}

#endif
