// Faults of a rank's process.
#ifndef KEEL_TRAIN_FAULTS_FAULT_HOST_H
#define KEEL_TRAIN_FAULTS_FAULT_HOST_H

#include <stddef.h>

#include "probe/status.h"

void keel_fault_sleep(double seconds);

// BYTES more that are written to and kept in LEAKED (NULL: an empty list).
keel_status keel_fault_leak(void **leaked, size_t bytes);
void keel_fault_free_leaked(void *leaked);

#endif
