#include "tools/lab/lab_text.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static keel_status copy(const keel_lab_text *text, FILE *from, FILE *to) {
    const int64_t period = text->common + text->capital;
    for (int64_t i = 0; i < text->bytes; i++) {
        int c = fgetc(from);
        if (c == EOF) {
            rewind(from);
            c = fgetc(from);
        }
        if (c == EOF) return keel_fail(KEEL_ERR_CONFIG, "%s: holds no text", text->from);
        fputc(i % period < text->common ? tolower(c) : toupper(c), to);
    }
    return KEEL_OK;
}

keel_status keel_lab_text_write(const keel_lab_text *text, const char *path) {
    FILE *from = fopen(text->from, "rb");
    if (!from) return keel_fail(KEEL_ERR_IO, "%s: %s", text->from, strerror(errno));
    FILE *to = fopen(path, "wb");
    if (!to) {
        fclose(from);
        return keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(errno));
    }
    keel_status status = copy(text, from, to);
    const bool written = !ferror(to);
    fclose(from);
    if (fclose(to) || !written) status = keel_fail(KEEL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    return status;
}
