// For how long a thread that was ready had no processor.
#ifndef KEEL_TRAIN_CPU_WAIT_H
#define KEEL_TRAIN_CPU_WAIT_H

// FILE: /proc/self/schedstat of the main thread, kept open; -1: the kernel has none.
int keel_cpu_wait_open(void);
void keel_cpu_wait_close(int file);
// Seconds since the thread began; 0 where the kernel does not say. Some microseconds.
double keel_cpu_wait_read(int file);

#endif
