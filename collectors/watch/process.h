// What the system says of a process of this machine.
#ifndef KEEL_COLLECTORS_WATCH_PROCESS_H
#define KEEL_COLLECTORS_WATCH_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

// A file (close-on-exec) that becomes readable when the process is gone; -1 where the system has none such.
int keel_process_handle(pid_t pid);

// As proc(5) has it: 'R' runs, 'S' sleeps, 'D' waits for a disk, 'T' is stopped, 't' by a debugger. 0: it is gone, also
// while nobody has asked for how it ended.
char keel_process_state(pid_t pid);

// When it began, in ticks since the host was booted: another process may get the same number. 0: not known.
uint64_t keel_process_began(pid_t pid);

// In which space process ids count: those of another one mean nothing here. 0: not known.
uint64_t keel_process_space(void);

#endif
