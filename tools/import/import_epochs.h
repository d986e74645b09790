// Epochs as logs print them: whole numbers, from 0 or 1, or the broken share of the epochs done, so that 1.0 still
// belongs to the first.
#ifndef KEEL_TOOLS_IMPORT_IMPORT_EPOCHS_H
#define KEEL_TOOLS_IMPORT_IMPORT_EPOCHS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct keel_import_epochs {
    double first, latest; // as printed; NaN: none yet
    bool broken;
    int64_t index;    // of the latest
    uint64_t records; // in it
} keel_import_epochs;

void keel_import_epochs_clear(keel_import_epochs *epochs);
bool keel_import_epochs_known(const keel_import_epochs *epochs);
// Which epoch EPOCH (finite) lies in. A broken number tells how all are to be read.
int64_t keel_import_epochs_index(keel_import_epochs *epochs, double epoch);
// A record of EPOCH (not finite: it does not say). True if it is the first of a later epoch; never where every record
// is an epoch of its own, of which that would tell nothing.
bool keel_import_epochs_note(keel_import_epochs *epochs, double epoch);

#endif
