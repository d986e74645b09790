#include "tools/import/import_lines.h"

#include <stdlib.h>
#include <string.h>

void keel_import_lines_init(keel_import_lines *lines) {
    *lines = (keel_import_lines){.number = 1};
}

void keel_import_lines_free(keel_import_lines *lines) {
    free(lines->kept);
}

static keel_status keep(keel_import_lines *lines, const char *text, size_t size) {
    if (lines->too_long || size > KEEL_IMPORT_LINE_BYTES - lines->kept_size) {
        lines->too_long = true;
        lines->kept_size = 0;
        return KEEL_OK;
    }
    if (lines->kept_size + size + 1 > lines->kept_capacity) {
        size_t capacity = 2 * (lines->kept_size + size + 1);
        char *grown = realloc(lines->kept, capacity);
        if (!grown) return keel_fail(KEEL_ERR_MEMORY, "no memory for a line of a log");
        lines->kept = grown;
        lines->kept_capacity = capacity;
    }
    memcpy(lines->kept + lines->kept_size, text, size);
    lines->kept_size += size;
    return KEEL_OK;
}

static void count_too_long(keel_import_lines *lines) {
    if (lines->too_long_count++ == 0) lines->too_long_first = lines->number;
}

// Takes out ESC [ ... letter; returns the new size.
static size_t strip_colours(char *text, size_t size) {
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '\x1b' && i + 1 < size && text[i + 1] == '[') {
            i += 2;
            while (i < size && !(text[i] >= '@' && text[i] <= '~')) i++;
            continue;
        }
        text[n++] = text[i];
    }
    return n;
}

static keel_status hand_on(keel_import_lines *lines, char *text, size_t size, bool open,
                           keel_import_line_handler *handler, void *context) {
    if (lines->number == 1 && size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        text += 3;
        size -= 3;
    }
    if (!size) return KEEL_OK;
    keel_import_line line = {.text = text, .size = size, .number = lines->number, .open = open};
    char after = text[size];
    text[size] = 0;
    keel_status status = handler(context, &line);
    text[size] = after;
    return status;
}

// A whole line: from the pieces kept before and TEXT.
static keel_status finish_line(keel_import_lines *lines, char *text, size_t size, bool open,
                               keel_import_line_handler *handler, void *context) {
    if (!lines->too_long && !lines->kept_size && !memchr(text, '\x1b', size)) {
        if (size > KEEL_IMPORT_LINE_BYTES) {
            count_too_long(lines);
            return KEEL_OK;
        }
        return hand_on(lines, text, size, open, handler, context);
    }
    keel_status status = keep(lines, text, size);
    if (!status && !lines->too_long) {
        size_t stripped = strip_colours(lines->kept, lines->kept_size);
        status = hand_on(lines, lines->kept, stripped, open, handler, context);
    } else if (!status) {
        count_too_long(lines);
    }
    lines->kept_size = 0;
    lines->too_long = false;
    return status;
}

keel_status keel_import_lines_feed(keel_import_lines *lines, char *bytes, size_t size,
                                   keel_import_line_handler *handler, void *context) {
    char *at = bytes, *end = bytes + size;
    while (at < end) {
        char *feed = memchr(at, '\n', (size_t)(end - at));
        char *stop = feed ? feed : end;
        for (char *back; (back = memchr(at, '\r', (size_t)(stop - at))); at = back + 1) {
            keel_status status = finish_line(lines, at, (size_t)(back - at), false, handler, context);
            if (status) return status;
        }
        if (!feed) return keep(lines, at, (size_t)(end - at));
        keel_status status = finish_line(lines, at, (size_t)(feed - at), false, handler, context);
        if (status) return status;
        lines->number++;
        at = feed + 1;
    }
    return KEEL_OK;
}

keel_status keel_import_lines_end(keel_import_lines *lines, keel_import_line_handler *handler, void *context) {
    if (lines->too_long) count_too_long(lines);
    if (!lines->kept_size || lines->too_long) return KEEL_OK;
    size_t stripped = strip_colours(lines->kept, lines->kept_size);
    lines->kept_size = 0;
    return hand_on(lines, lines->kept, stripped, true, handler, context);
}
