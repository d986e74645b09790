#include "tools/lab/lab_text.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

typedef struct output {
    FILE *file;
    int64_t written;
    bool space; // the last character was one
} output;

static keel_status copy(const keel_lab_text *text, const char *path, output *out) {
    FILE *from = fopen(path, "rb");
    if (!from) return keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(errno));
    for (int c; (c = fgetc(from)) != EOF;) {
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && out->space) continue;
        const bool capital = text->capitals && strchr("bcfjkpqvwxyz", tolower(c)) &&
                             out->written % (text->small + text->capitals) >= text->small;
        fputc(!letter ? ' ' : capital ? toupper(c) : tolower(c), out->file);
        out->written++;
        out->space = !letter;
    }
    const bool failed = ferror(from);
    fclose(from);
    return failed ? keel_fail(KEEL_ERR_IO, "%s: cannot be read", path) : KEEL_OK;
}

keel_status keel_lab_text_write(const keel_lab_text *text, const keel_yaml_node *files, const char *path) {
    char **list = NULL;
    size_t count = 0;
    keel_status status = keel_yaml_to_strings(files, &list, &count);
    if (status) return status;
    output out = {.file = fopen(path, "wb")};
    if (!out.file) status = keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(errno));
    for (size_t i = 0; !status && i < count; i++) status = copy(text, list[i], &out);
    const bool written = out.file && !ferror(out.file);
    if (out.file && (fclose(out.file) || !written) && !status)
        status = keel_fail(KEEL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    keel_yaml_free_strings(list);
    return status;
}
