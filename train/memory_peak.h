// The most memory that this process has had at a time.
#ifndef KEEL_TRAIN_MEMORY_PEAK_H
#define KEEL_TRAIN_MEMORY_PEAK_H

// Bytes resident at the peak, by /proc/self/status (VmHWM); 0 where the kernel does not say. Some tens of microseconds.
// (getrusage would count what the process that became this one had.)
double keel_memory_peak(void);

#endif
