// A text whose alphabet comes and goes: stretches in lower case with short ones in capitals between them, so that some
// tokens are long unseen and then come back.
#ifndef KEEL_TOOLS_LAB_LAB_TEXT_H
#define KEEL_TOOLS_LAB_LAB_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "probe/status.h"

typedef struct keel_lab_text {
    char *from;      // a text file; NULL: no text is made
    int64_t bytes;   // to write
    int64_t common;  // bytes in lower case, then ...
    int64_t capital; // ... bytes in capitals, and again
} keel_lab_text;

// KEEL_ERR_IO, KEEL_ERR_CONFIG if FROM is empty.
keel_status keel_lab_text_write(const keel_lab_text *text, const char *path);

#endif
