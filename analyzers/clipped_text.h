// Text that is put together in a buffer of fixed length.
#ifndef KEEL_ANALYZERS_CLIPPED_TEXT_H
#define KEEL_ANALYZERS_CLIPPED_TEXT_H

#include <stddef.h>

#include "probe/status.h"

// Appends to the text in TO (SIZE bytes, terminated). What does not fit is cut at a UTF-8 border and marked with "...".
void keel_text_append(char *to, size_t size, const char *format, ...) KEEL_PRINTF(3, 4);

#endif
