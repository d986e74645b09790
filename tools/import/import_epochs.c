#include "tools/import/import_epochs.h"

#include <math.h>

enum { MOST = 1 << 30 };

void keel_import_epochs_clear(keel_import_epochs *epochs) {
    *epochs = (keel_import_epochs){.first = (double)NAN, .latest = (double)NAN};
}

bool keel_import_epochs_known(const keel_import_epochs *epochs) {
    return !isnan(epochs->latest);
}

int64_t keel_import_epochs_index(keel_import_epochs *epochs, double epoch) {
    if (epoch != floor(epoch)) epochs->broken = true;
    double index = epochs->broken && epoch > 0 ? ceil(epoch) - 1 : floor(epoch);
    return index < 0 ? 0 : index > MOST ? MOST : (int64_t)index;
}

bool keel_import_epochs_note(keel_import_epochs *epochs, double epoch) {
    if (!isfinite(epoch)) return false;
    int64_t index = keel_import_epochs_index(epochs, epoch);
    bool begins = keel_import_epochs_known(epochs) && index > epochs->index;
    bool several = epochs->records > 1;
    if (isnan(epochs->first)) epochs->first = epoch;
    if (begins) epochs->records = 0;
    epochs->index = index;
    epochs->latest = epoch;
    epochs->records++;
    return begins && several;
}
