// A small plot of a traced scalar for the terminal: the range of each bucket, drawn with braille dots or with ASCII.
#ifndef KEEL_ANALYZERS_REPORT_PLOT_H
#define KEEL_ANALYZERS_REPORT_PLOT_H

#include "analyzers/report/report.h"

enum { KEEL_PLOT_ROWS = 6 };

// Series INDEX of the trace, KEEL_PLOT_ROWS lines with its greatest and least value beside them, on a logarithmic axis
// where it spans two decades; then one line with a mark under each column in which an incident began (! critical, ^
// warning) or a value was not finite (x). Nothing for a series without a finite value.
void keel_plot_series(const keel_result *result, uint32_t index, const keel_report_style *style, FILE *out);

#endif
