// One status type for every fallible function, and the text that goes with a failure.
#ifndef KEEL_PROBE_STATUS_H
#define KEEL_PROBE_STATUS_H

// Around what C and C++ programs call.
#ifdef __cplusplus
#define KEEL_C_BEGIN extern "C" {
#define KEEL_C_END   }
#else
#define KEEL_C_BEGIN
#define KEEL_C_END
#endif

#if defined(__GNUC__)
#define KEEL_API          __attribute__((visibility("default")))
#define KEEL_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define KEEL_NODISCARD    __attribute__((warn_unused_result))
#else
#define KEEL_API
#define KEEL_PRINTF(f, a)
#define KEEL_NODISCARD
#endif

KEEL_C_BEGIN

typedef enum keel_status {
    KEEL_OK = 0,
    KEEL_ERR_USAGE,     // an argument or a call out of order
    KEEL_ERR_MEMORY,    // allocation failed
    KEEL_ERR_IO,        // the operating system refused (errno is in the text)
    KEEL_ERR_FORMAT,    // a file is not what it should be
    KEEL_ERR_CONFIG,    // a key or value of a configuration
    KEEL_ERR_COMM,      // MPI
    KEEL_ERR_LIMIT,     // a fixed bound was met
    KEEL_ERR_DIVERGED,  // training stopped by its own rules
    KEEL_ERR_NOT_FOUND, // no such file, site, key
} keel_status;

// A short name of the status, such as "format".
KEEL_API const char *keel_status_name(keel_status status);

// Records the text of a failure for this thread and returns STATUS, so that a function fails in one line:
//     return keel_fail(KEEL_ERR_FORMAT, "%s: no dataset /steps", path);
// The first detector writes the text, with file, line and key where it has them; callers pass the status up unchanged.
KEEL_API keel_status keel_fail(keel_status status, const char *format, ...) KEEL_PRINTF(2, 3);
#ifdef __clang_analyzer__ // which does not see that it returns STATUS, and takes failures for success
#define keel_fail(status, ...) (keel_fail(status, __VA_ARGS__), (status))
#endif

// The text of this thread's latest failure; never NULL. Valid until the next keel_fail of the thread.
KEEL_API const char *keel_error(void);

// Messages that are not failures (a full disk, dropped frames) go to one handler per process. The library itself prints
// nothing: without a handler a message is dropped. The handler may be called from any thread.
typedef enum keel_log_level { KEEL_LOG_INFO, KEEL_LOG_WARNING, KEEL_LOG_ERROR } keel_log_level;
typedef void keel_log_handler(void *context, keel_log_level level, const char *text);
KEEL_API void keel_log_set(keel_log_handler *handler, void *context);
KEEL_API void keel_log(keel_log_level level, const char *format, ...) KEEL_PRINTF(2, 3);

KEEL_C_END

#endif
