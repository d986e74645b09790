// keel-train --replay-batch STEP: is it the data? Takes a step of a run again and says what it finds.
#ifndef KEEL_TOOLS_REPLAY_BATCH_H
#define KEEL_TOOLS_REPLAY_BATCH_H

#include "train/trainer.h"

// RECORD: what the run recorded, its store's directory or its train.csv. CONFIG's faults become what they are in a
// replay. Prints numbers and verdict to standard output, on rank 0. KEEL_ERR_NOT_FOUND where the step was not recorded
// or there is no checkpoint before it, KEEL_ERR_IO where it cannot be printed. Every rank has the same status and text.
// Collective.
keel_status keel_replay_batch(keel_train_config *config, const char *record, uint64_t step, MPI_Comm comm,
                              const keel_trainer_report *report);

#endif
