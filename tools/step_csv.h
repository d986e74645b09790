// train.csv: every step of a training exactly, a line each. A disk that does not take a line is told once and costs
// that line; what there is of it is taken back, so that every line is whole.
#ifndef KEEL_TOOLS_STEP_CSV_H
#define KEEL_TOOLS_STEP_CSV_H

#include <stdbool.h>

#include "probe/keel.h"

typedef struct keel_step_csv keel_step_csv;

// RESUME: goes on with the file that is there, and with its columns, behind its last whole line; else it begins anew.
// SCALED: with a column of the loss scale, and one of the steps skipped because of it. KEEL_ERR_IO with the path.
keel_status keel_step_csv_open(const char *path, bool resume, bool scaled, keel_step_csv **csv);
// LOSS_SCALE: 0 for none.
void keel_step_csv_put(keel_step_csv *csv, const keel_step *step, double loss, double grad_norm, double lr,
                       double loss_scale);
void keel_step_csv_close(keel_step_csv *csv); // NULL is fine

#endif
