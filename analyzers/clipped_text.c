#include "analyzers/clipped_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// The greatest length of at most KEEP bytes that does not end within a character.
static size_t whole_characters(const char *text, size_t keep) {
    size_t start = keep;
    while (start > 0 && ((unsigned char)text[start] & 0xC0) == 0x80) start--;
    return start;
}

void keel_text_append(char *to, size_t size, const char *format, ...) {
    size_t have = strlen(to);
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(to + have, size - have, format, arguments);
    va_end(arguments);
    if (n < 0) {
        to[have] = 0;
        return;
    }
    if (have + (size_t)n < size || size < 5) return;
    size_t keep = whole_characters(to, size - 4);
    memcpy(to + keep, "...", 4);
}
