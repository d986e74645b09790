#include "tools/log.h"

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "probe/status.h"

static struct {
    const char *program;
    int rank;
    bool colour;
} log_to;

static void print_line(void *context, keel_log_level level, const char *text) {
    (void)context;
    static const char *const names[] = {
        [KEEL_LOG_INFO] = "", [KEEL_LOG_WARNING] = "warning: ", [KEEL_LOG_ERROR] = "error: "};
    static const char *const colours[] = {
        [KEEL_LOG_INFO] = "", [KEEL_LOG_WARNING] = "\033[33m", [KEEL_LOG_ERROR] = "\033[31m"};
    char rank[24] = "";
    if (log_to.rank >= 0) snprintf(rank, sizeof rank, " [%d]", log_to.rank);
    fprintf(stderr, "%s%s%s: %s%s%s\n", log_to.colour ? colours[level] : "", log_to.program, rank, names[level], text,
            log_to.colour && level != KEEL_LOG_INFO ? "\033[0m" : "");
}

void keel_log_to_stderr(const char *program, int rank) {
    log_to.program = program;
    log_to.rank = rank;
    log_to.colour = isatty(STDERR_FILENO);
    keel_log_set(print_line, NULL);
}
