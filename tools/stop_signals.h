// SIGINT and SIGTERM: the first one asks a training to stop in order. Before there is a training, in a replay, and from
// the second one on, they end the process as they do any other.
#ifndef KEEL_TOOLS_STOP_SIGNALS_H
#define KEEL_TOOLS_STOP_SIGNALS_H

#include "tools/assemble.h"
#include "train/trainer.h"

// Before any other thread exists, since threads inherit what is blocked.
keel_status keel_stop_signals_begin(void);
// From here until keel_stop_signals_over a signal stops TRAINER; ASSEMBLY is told why. TELL: on standard error, too.
void keel_stop_signals_train(keel_trainer *trainer, keel_assembly *assembly, bool tell);
// Both may be closed now. A first signal has nothing to stop any more.
void keel_stop_signals_over(void);
// The one that has stopped the training; 0: none.
int keel_stop_signals_taken(void);

#endif
