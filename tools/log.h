// Where the library's messages go in our programs: standard error, one line each.
#ifndef KEEL_TOOLS_LOG_H
#define KEEL_TOOLS_LOG_H

// PROGRAM must live as long as the process. RANK < 0: not shown.
void keel_log_to_stderr(const char *program, int rank);

#endif
