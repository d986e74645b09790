// What a run recorded of its steps, for the verdict on one of them.
#ifndef KEEL_TOOLS_REPLAY_RECORD_H
#define KEEL_TOOLS_REPLAY_RECORD_H

#include "tools/replay_verdict.h"

// PATH: the store's directory, or a train.csv, of whose runs the last is taken. KEEL_ERR_NOT_FOUND where STEP was not
// recorded. RECORDED, zeros before, is freed by keel_replay_record_free whatever the status.
keel_status keel_replay_record_read(const char *path, uint64_t step, keel_recorded *recorded);
// What the rules say of STEP by the loss and the gradient norm alone: sets judged and sick. PATH is for texts.
keel_status keel_replay_record_judge(const char *path, uint64_t step, keel_recorded *recorded);
void keel_replay_record_free(keel_recorded *recorded);

#endif
