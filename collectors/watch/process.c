#include "collectors/watch/process.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int keel_process_handle(pid_t pid) {
    return (int)syscall(SYS_pidfd_open, pid, 0); // close-on-exec by itself
}

enum { STAT_BYTES = 512 };

// What proc(5) says of it; "" where it went meanwhile. False where nothing is said.
static bool read_stat(pid_t pid, char text[STAT_BYTES]) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    text[fread(text, 1, STAT_BYTES - 1, file)] = '\0';
    fclose(file);
    return true;
}

char keel_process_state(pid_t pid) {
    char text[STAT_BYTES];
    if (!read_stat(pid, text)) return kill(pid, 0) != 0 && errno == ESRCH ? 0 : 'S';
    const char *end = strrchr(text, ')'); // of the name, which may hold anything
    const char state = end && end[1] == ' ' ? end[2] : 'S';
    return state == 'Z' || state == 'X' || !*text ? 0 : state;
}

uint64_t keel_process_began(pid_t pid) {
    enum { NAME = 2, BEGAN = 22 }; // fields, counted from 1
    char text[STAT_BYTES];
    if (!read_stat(pid, text)) return 0;
    const char *at = strrchr(text, ')');
    for (int field = NAME; at && field < BEGAN; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

uint64_t keel_process_space(void) {
    struct stat space;
    return stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0;
}
