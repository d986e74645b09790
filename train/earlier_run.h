// What an earlier run has left in an output folder.
#ifndef KEEL_TRAIN_EARLIER_RUN_H
#define KEEL_TRAIN_EARLIER_RUN_H

#include "probe/status.h"

// Moves its checkpoints, train.csv and model.safetensors to the first free OUTPUT_DIR/earlier.N, from where they are
// resumed and looked at as a run of their own. *MOVED: that folder, malloc'ed; NULL if there was nothing to move.
// KEEL_ERR_IO with the path.
keel_status keel_earlier_run_move(const char *output_dir, char **moved);

#endif
