// Which checkpoint a resumed run continues from.
#ifndef KEEL_TRAIN_RECOVERY_H
#define KEEL_TRAIN_RECOVERY_H

#include "train/checkpoint.h"
#include "train/checkpoint_folder.h"

typedef void keel_note(void *context, const char *text); // one line

// Opens the newest checkpoint of FOLDER that is whole as CHECKPOINT, to be loaded; damaged ones are set aside, or
// (LOOK) passed over, each with a note. KEEL_ERR_CONFIG, naming the key, if one does not fit the run;
// KEEL_ERR_NOT_FOUND if none is left.
keel_status keel_recover(keel_checkpoint_folder *folder, const keel_facts *facts, bool look, keel_note *note,
                         void *context, keel_checkpoint *checkpoint);

// For looking only: opens the newest healthy checkpoint before STEP, or where none has the mark of health the newest
// before it. Damaged ones are passed over, with a note. KEEL_ERR_NOT_FOUND, with what there is, if there is none.
keel_status keel_recover_before(const keel_checkpoint_folder *folder, uint64_t step, const keel_facts *facts,
                                keel_note *note, void *context, keel_checkpoint *checkpoint);

#endif
