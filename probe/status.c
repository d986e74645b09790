#include "probe/status.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

enum { TEXT_BYTES = 1024 };

static _Thread_local char last_error[TEXT_BYTES];

static struct {
    _Atomic(keel_log_handler *) handler;
    _Atomic(void *) context;
} log_sink;

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
    atomic_store(&log_sink.context, context);
    atomic_store(&log_sink.handler, handler);
}

void keel_log(keel_log_level level, const char *format, ...) {
    keel_log_handler *handler = atomic_load(&log_sink.handler);
    if (!handler) return;
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    handler(atomic_load(&log_sink.context), level, text);
}
