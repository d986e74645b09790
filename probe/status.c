#include "probe/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

enum { TEXT_BYTES = 1024 };

static _Thread_local char last_error[TEXT_BYTES];

typedef struct sink {
    keel_log_handler *handler;
    void *context;
} sink;

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER; // handler and context change together
static sink log_sink;

const char *keel_status_name(keel_status status) {
    switch (status) {
    case KEEL_OK:
        return "ok";
    case KEEL_ERR_USAGE:
        return "usage";
    case KEEL_ERR_MEMORY:
        return "memory";
    case KEEL_ERR_IO:
        return "io";
    case KEEL_ERR_FORMAT:
        return "format";
    case KEEL_ERR_CONFIG:
        return "config";
    case KEEL_ERR_COMM:
        return "comm";
    case KEEL_ERR_LIMIT:
        return "limit";
    case KEEL_ERR_DIVERGED:
        return "diverged";
    case KEEL_ERR_NOT_FOUND:
        return "not found";
    }
    return "unknown";
}

keel_status(keel_fail)(keel_status status, const char *format, ...) {
    // Formatted aside first: an argument may be keel_error() itself.
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(last_error, sizeof last_error, "%s", text);
    return status;
}

const char *keel_error(void) {
    return last_error;
}

void keel_log_set(keel_log_handler *handler, void *context) {
    pthread_mutex_lock(&log_lock);
    log_sink = (sink){handler, context};
    pthread_mutex_unlock(&log_lock);
}

void keel_log(keel_log_level level, const char *format, ...) {
    pthread_mutex_lock(&log_lock);
    const sink now = log_sink;
    pthread_mutex_unlock(&log_lock);
    if (!now.handler) return;
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    now.handler(now.context, level, text);
}
