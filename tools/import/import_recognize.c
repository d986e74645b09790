#include "tools/import/import_recognize.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "tools/import/import_context.h"

enum {
    HEAD_BYTES = 8 << 20,  // a log may begin with a program's source and a model's structure
    HEAD_PIECE = 64 << 10, // recognition looks at that much at a time
    ENOUGH = 200,          // weight of records after which no more of the head is looked at
    ENTRANTS = 64,
    SHOWN_BYTES = 60,
};

keel_status keel_import_head_grow(const char *path, keel_import_head *head, keel_import_input *input) {
    if (head->size + HEAD_PIECE > head->capacity) {
        size_t capacity = 2 * (head->size + HEAD_PIECE);
        char *grown = realloc(head->bytes, capacity);
        if (!grown) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its head", path);
        head->bytes = grown;
        head->capacity = capacity;
    }
    size_t got;
    keel_status status = keel_import_input_read(input, head->bytes + head->size, HEAD_PIECE, &got);
    if (status) return status;
    head->size += got;
    head->ended = got == 0;
    const unsigned char *b = (const unsigned char *)head->bytes;
    if (head->size == 0) return keel_fail(KEEL_ERR_FORMAT, "%s: empty", path);
    if (head->size >= 4 &&
        ((b[0] == 0xff && b[1] == 0xfe && b[2] && !b[3]) || (b[0] == 0xfe && b[1] == 0xff && !b[2] && b[3])))
        return keel_fail(KEEL_ERR_FORMAT, "%s: UTF-16 text; convert it first: iconv -f UTF-16 -t UTF-8", path);
    return KEEL_OK;
}

// Every importer at once on the head.
typedef struct contest {
    keel_import_context *entrants[ENTRANTS];
    size_t count;
} contest;

static keel_status contest_line(void *context, const keel_import_line *line) {
    const contest *all = context;
    for (size_t i = 0; i < all->count; i++) {
        if (!keel_import_context_importer(all->entrants[i])->line) continue;
        keel_status status = keel_import_context_line(all->entrants[i], line);
        if (status) return status;
    }
    return KEEL_OK;
}

static keel_status contest_bytes(const contest *all, const char *bytes, size_t size) {
    for (size_t i = 0; i < all->count; i++) {
        if (!keel_import_context_importer(all->entrants[i])->bytes) continue;
        keel_status status = keel_import_context_bytes(all->entrants[i], (const uint8_t *)bytes, size);
        if (status) return status;
    }
    return KEEL_OK;
}

static const keel_importer *leader(const contest *all, uint64_t *score) {
    const keel_importer *best = NULL, *last_resort = NULL;
    *score = 0;
    for (size_t i = 0; i < all->count; i++) {
        const keel_importer *importer = keel_import_context_importer(all->entrants[i]);
        uint64_t records = keel_import_assembly_records(keel_import_context_assembly(all->entrants[i]));
        if (records && !importer->weight && !last_resort) last_resort = importer;
        if (records * importer->weight <= *score) continue;
        *score = records * importer->weight;
        best = importer;
    }
    return best ? best : last_resort;
}

// An excerpt for people: the first line that is not blank, its unprintable bytes as dots.
static void excerpt(const keel_import_head *head, char text[SHOWN_BYTES + 4], size_t *number) {
    const char *at = head->bytes, *end = head->bytes + head->size;
    *number = 1;
    for (; at < end && isspace((unsigned char)*at); at++) *number += *at == '\n';
    size_t n = 0;
    for (; at < end && *at != '\n' && n < SHOWN_BYTES; at++) text[n++] = isprint((unsigned char)*at) ? *at : '.';
    while (n && isspace((unsigned char)text[n - 1])) n--;
    strcpy(text + n, at < end && *at != '\n' && n == SHOWN_BYTES ? "..." : "");
}

// A table as some locales write it: 3,25 for a number, between semicolons or in quotes.
static bool has_decimal_commas(const keel_import_head *head) {
    const char *end = head->bytes + head->size, *row = memchr(head->bytes, '\n', head->size);
    if (!row) return false;
    const bool semicolons = memchr(head->bytes, ';', (size_t)(row - head->bytes)) != NULL;
    bool quoted = false;
    for (const char *at = row + 1; at + 2 < end && *at != '\n'; at++) {
        if (*at == '"') quoted = !quoted;
        if ((semicolons || quoted) && isdigit((unsigned char)at[0]) && at[1] == ',' && isdigit((unsigned char)at[2]))
            return true;
    }
    return false;
}

static keel_status unknown_log(const char *path, const keel_import_head *head) {
    char text[SHOWN_BYTES + 4];
    size_t number;
    excerpt(head, text, &number);
    if (has_decimal_commas(head))
        return keel_fail(
            KEEL_ERR_FORMAT,
            "%s: a table whose numbers have decimal commas (line %zu: \"%s\"): numbers are read with a point, "
            "3.25, in columns between commas, tabs or semicolons",
            path, number, text);
    return keel_fail(
        KEEL_ERR_FORMAT,
        "%s: not a log of a known trainer (line %zu: \"%s\"): no step with a loss was found in it. keel import "
        "--list-formats says what can be read; of JSON lines and tables with names of their own say what they "
        "call them: --columns step=NAME,loss=NAME",
        path, number, text);
}

// No format has a record: because there are no columns of the user's names?
static keel_status unknown_columns(const contest *all, const char *path) {
    for (size_t i = 0; i < all->count; i++) {
        const keel_import_names *names = keel_import_context_names(all->entrants[i]);
        const keel_status status =
            names && keel_import_names_any(names) ? keel_import_names_check(names, path) : KEEL_OK;
        if (status) return status;
    }
    return KEEL_OK;
}

keel_status keel_import_recognize(const char *path, const char *columns, keel_import_match *match,
                                  keel_import_input *input, keel_import_head *head, const keel_importer **importer) {
    contest all = {.count = 0};
    keel_import_lines lines;
    keel_import_lines_init(&lines);
    keel_status status = KEEL_OK;
    for (size_t i = 0; i < keel_importer_count && !status; i++) {
        if (columns && !keel_importers[i]->columns) continue;
        status = keel_import_context_open(keel_importers[i], path, columns, match, true, &all.entrants[all.count]);
        if (!status) all.count++;
    }
    uint64_t score = 0;
    for (size_t seen = 0; !status;) {
        if (!head->ended && head->size == seen) {
            status = keel_import_head_grow(path, head, input);
            if (status) break;
        }
        size_t fresh = head->size - seen;
        status = contest_bytes(&all, head->bytes + seen, fresh);
        if (!status) status = keel_import_lines_feed(&lines, head->bytes + seen, fresh, contest_line, &all);
        seen = head->size;
        leader(&all, &score);
        if (head->ended || score >= ENOUGH || head->size >= HEAD_BYTES) break;
    }
    if (!status && head->ended) status = keel_import_lines_end(&lines, contest_line, &all);
    if (!status) {
        const keel_importer *best = leader(&all, &score);
        if (best)
            *importer = best;
        else if (!columns || !(status = unknown_columns(&all, path)))
            status = unknown_log(path, head);
    }
    for (size_t i = 0; i < all.count; i++) keel_import_context_close(all.entrants[i]);
    keel_import_lines_free(&lines);
    return status;
}
