// What the terminal behind a stream can show.
#ifndef KEEL_TOOLS_TERMINAL_H
#define KEEL_TOOLS_TERMINAL_H

#include "analyzers/report/report.h"

// Colour on a terminal only, and not where NO_COLOR is set; ASCII where the locale is not UTF-8; 100 columns where
// there is no terminal.
keel_report_style keel_terminal_style(FILE *out);

#endif
