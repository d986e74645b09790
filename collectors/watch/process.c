#include "collectors/watch/process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int keel_process_handle(pid_t pid) {
    return (int)syscall(SYS_pidfd_open, pid, 0); // close-on-exec by itself
}

char keel_process_state(pid_t pid) {
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) return kill(pid, 0) != 0 && errno == ESRCH ? 0 : 'S';
    const size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = '\0';
    const char *end = strrchr(text, ')'); // of the name, which may hold anything
    const char state = end && end[1] == ' ' ? end[2] : 'S';
    return state == 'Z' || state == 'X' || size == 0 ? 0 : state;
}

uint64_t keel_process_space(void) {
    struct stat space;
    return stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0;
}
