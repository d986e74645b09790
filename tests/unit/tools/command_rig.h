// Runs the commands of keel within a test and reads what they print.
#ifndef KEEL_TESTS_COMMAND_RIG_H
#define KEEL_TESTS_COMMAND_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char output[96]; // where a command's stream goes: to be set first

// Runs a command with what it writes to stream FD in the file `output`.
static inline int run_to_file(int (*command)(int, char **), int fd, int argc, char **argv) {
    fflush(NULL);
    int kept = dup(fd), file = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(kept >= 0 && file >= 0);
    dup2(file, fd);
    int code = command(argc, argv);
    fflush(NULL);
    dup2(kept, fd);
    close(kept);
    close(file);
    return code;
}

static inline char *read_output(void) {
    static char text[1 << 16];
    FILE *file = fopen(output, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

static inline size_t lines_of(const char *text) {
    size_t lines = 0;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

#endif
