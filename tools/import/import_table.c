#include "tools/import/import_table.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

void keel_import_table_free(keel_import_table *table) {
    free(table->keys);
    free(table->cells);
    free(table->unquoted);
}

// One cell that begins at TEXT and the separator after it, if there is one. Doubled quotes in a quoted cell are brought
// down into KEPT.
static keel_import_slice read_cell(const char **text, const char *end, char separator, char **kept) {
    const char *at = *text;
    if (at == end || *at != '"') {
        const char *stop = memchr(at, separator, (size_t)(end - at));
        *text = stop ? stop : end;
        return (keel_import_slice){at, (size_t)(*text - at)};
    }
    char *copy = *kept;
    for (at++; at < end; at++) {
        if (*at == '"') {
            if (at + 1 == end || at[1] != '"') break;
            at++;
        }
        *(*kept)++ = *at;
    }
    const char *stop = memchr(at, separator, (size_t)(end - at));
    *text = stop ? stop : end;
    return (keel_import_slice){copy, (size_t)(*kept - copy)};
}

static keel_status split(keel_import_table *table, const keel_import_line *line, char separator, size_t *count) {
    if (!table->cells) table->cells = calloc(KEEL_IMPORT_TABLE_CELLS, sizeof *table->cells);
    if (table->unquoted_capacity < line->size) {
        char *grown = realloc(table->unquoted, line->size);
        if (grown) {
            table->unquoted = grown;
            table->unquoted_capacity = line->size;
        }
    }
    if (!table->cells || table->unquoted_capacity < line->size)
        return keel_fail(KEEL_ERR_MEMORY, "no memory for a table's cells");
    const char *at = line->text, *end = line->text + line->size;
    char *kept = table->unquoted;
    size_t n = 0;
    while (n < KEEL_IMPORT_TABLE_CELLS) {
        table->cells[n++] = read_cell(&at, end, separator, &kept);
        if (at == end) break;
        at++;
    }
    *count = n;
    return KEEL_OK;
}

static bool is_value(keel_import_slice cell) {
    double number;
    return cell.size == 0 || keel_import_number(cell, &number);
}

static keel_status try_header(keel_import_context *context, keel_import_table *table, const keel_import_line *line,
                              char separator, keel_import_header_check *check, bool *taken) {
    *taken = false;
    if (!memchr(line->text, separator, line->size)) return KEEL_OK;
    size_t count = 0;
    keel_status status = split(table, line, separator, &count);
    if (status || count == 0) return status;
    for (size_t i = 0; i < count; i++)
        if (is_value(table->cells[i]) && table->cells[i].size) return KEEL_OK;
    if (check && !check(table->cells, count)) return KEEL_OK;
    int32_t *keys = malloc(count * sizeof *keys);
    if (!keys) return keel_fail(KEEL_ERR_MEMORY, "no memory for a table's columns");
    keel_import_names *names = keel_import_context_names(context);
    bool named = false, has_step = false;
    for (size_t i = 0; i < count; i++) {
        keel_import_slice cell = table->cells[i];
        while (cell.size && isspace((unsigned char)*cell.text)) cell.text++, cell.size--;
        while (cell.size && isspace((unsigned char)cell.text[cell.size - 1])) cell.size--;
        keys[i] = keel_import_names_key(names, cell);
        keel_import_field field = keel_import_names_field(names, keys[i]);
        has_step |= field == KEEL_IMPORT_STEP;
        named |= field == KEEL_IMPORT_LOSS || field == KEEL_IMPORT_EVAL_LOSS ||
                 (field >= KEEL_IMPORT_STANDARD && field < KEEL_IMPORT_SCALARS);
    }
    if (!named) {
        free(keys);
        return KEEL_OK;
    }
    free(table->keys);
    table->keys = keys;
    table->columns = count;
    table->has_step = has_step;
    table->separator = separator;
    keel_import_names_bind(names, keys, count);
    *taken = true;
    return KEEL_OK;
}

static keel_status read_row(keel_import_context *context, keel_import_table *table, const keel_import_line *line) {
    size_t count = 0;
    keel_status status = split(table, line, table->separator, &count);
    if (status || *line->text == '#') return status;
    if (count > table->columns || (count < table->columns && !line->open)) {
        keel_import_leave_out(context, KEEL_IMPORT_ROWS, 1, 0, "%zu cells, and the table has %zu columns", count,
                              table->columns);
        return KEEL_OK;
    }
    if (line->open && count) count--;
    keel_import_names *names = keel_import_context_names(context);
    keel_import_draft draft;
    keel_import_draft_begin(&draft);
    for (size_t i = 0; i < count; i++) {
        keel_import_field field = keel_import_names_field(names, table->keys[i]);
        if (field == KEEL_IMPORT_NOTHING || !table->cells[i].size) continue;
        keel_import_draft_text(names, &draft, table->keys[i], table->cells[i]);
    }
    if (!keel_import_draft_end(names, &draft) || (table->has_step && !draft.record.has_step)) {
        if (draft.record.set && !draft.bad_step && !draft.summary)
            keel_import_leave_out(context, KEEL_IMPORT_ROWS, 1, 0, "its step is empty");
        else
            keel_import_leave_draft(context, &draft, 0);
        return KEEL_OK;
    }
    return keel_import_emit_draft(context, &draft, 0);
}

keel_status keel_import_table_line(keel_import_context *context, keel_import_table *table, const keel_import_line *line,
                                   keel_import_header_check *check) {
    // A row begins with a number, or with an empty cell; a header, which may come again in an appended file, never
    // does.
    static const char separators[] = {',', '\t', ';'};
    char first = *line->text;
    bool row =
        isdigit((unsigned char)first) || first == '-' || first == '.' || (table->columns && first == table->separator);
    for (size_t i = 0; i < sizeof separators && !row; i++) {
        bool taken;
        keel_status status = try_header(context, table, line, separators[i], check, &taken);
        if (status || taken) return status;
    }
    return table->columns ? read_row(context, table, line) : KEEL_OK;
}
