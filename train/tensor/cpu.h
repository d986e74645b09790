// The trainer is compiled for the instructions of one CPU: whether this one has them.
#ifndef KEEL_TRAIN_TENSOR_CPU_H
#define KEEL_TRAIN_TENSOR_CPU_H

#include "probe/status.h"

// To be called before anything else of the trainer: KEEL_ERR_USAGE naming an instruction set that was compiled in and
// that this CPU lacks.
keel_status keel_cpu_check(void);

#endif
