#include "tools/import/import_context.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/import/import_overflow.h"

enum { RANK_UNKNOWN = -1, RANK_NOT_LOOKED = -2 };

struct keel_import_context {
    const keel_importer *importer;
    const char *path, *columns;
    keel_import_match *match;
    keel_import_names *names;
    keel_import_assembly *assembly;
    void *state;
    bool opened, count_only;
    const keel_import_line *line; // at hand; NULL between lines and for bytes
    int32_t rank;
    keel_left_out left_out;
    char first[160]; // what is wrong with the first that was left out
};

keel_status keel_import_context_open(const keel_importer *importer, const char *path, const char *columns,
                                     keel_import_match *match, bool count_only, keel_import_context **context) {
    keel_import_context *made = calloc(1, sizeof *made);
    if (made) made->state = calloc(1, importer->state_bytes ? importer->state_bytes : 1);
    if (!made || !made->state) {
        free(made);
        return keel_fail(KEEL_ERR_MEMORY, "%s: no memory to read it", path);
    }
    made->importer = importer;
    made->path = path;
    made->columns = columns;
    made->match = match;
    made->count_only = count_only;
    keel_status status = keel_import_assembly_open(count_only, &made->assembly);
    if (!status && importer->open) status = importer->open(made, made->state);
    if (status) {
        keel_import_context_close(made);
        return status;
    }
    *context = made;
    return KEEL_OK;
}

void keel_import_context_close(keel_import_context *context) {
    if (!context) return;
    if (context->importer->close) context->importer->close(context->state);
    keel_import_assembly_close(context->assembly);
    keel_import_names_close(context->names);
    free(context->state);
    free(context);
}

const keel_importer *keel_import_context_importer(const keel_import_context *context) {
    return context->importer;
}
keel_import_assembly *keel_import_context_assembly(keel_import_context *context) {
    return context->assembly;
}
const char *keel_import_path(const keel_import_context *context) {
    return context->path;
}
keel_import_match *keel_import_matcher(keel_import_context *context) {
    return context->match;
}
keel_import_names *keel_import_context_names(const keel_import_context *context) {
    return context->names;
}

keel_status keel_import_use_names(keel_import_context *context, const keel_import_name *table, size_t count) {
    return keel_import_names_open(table, count, context->columns, &context->names);
}

bool keel_import_is_counting(const keel_import_context *context) {
    return context->count_only;
}

static bool is_blank(char c) {
    return isspace((unsigned char)c) != 0;
}

// "loss: 3.2" at the end of a growing log may become "loss: 3.27": the last word is left out, unless it cannot grow.
static size_t without_last_word(const keel_import_line *line) {
    static const char *const final[] = {"nan", "inf", "ms", "%", "|", "}", ")"};
    size_t size = line->size;
    for (size_t i = 0; i < sizeof final / sizeof *final; i++) {
        size_t length = strlen(final[i]);
        if (size >= length && strncasecmp(line->text + size - length, final[i], length) == 0) return size;
    }
    while (size && !is_blank(line->text[size - 1])) size--;
    return size;
}

// Programs print their source into their logs, and documents show what logs look like: comments and strings in such are
// no records.
static bool is_source(const keel_import_line *line, bool table) {
    const char *text = line->text;
    while (is_blank(*text)) text++;
    if (*text == '/' && (text[1] == '/' || text[1] == '*')) return true;
    return !table && (*text == '#' || *text == '"');
}

static keel_status give_line(keel_import_context *context, const keel_import_line *line) {
    if (is_source(line, context->importer->sole)) return KEEL_OK;
    context->line = line;
    context->rank = RANK_NOT_LOOKED;
    keel_import_assembly_at(context->assembly, line->number, context->importer->sole);
    keel_status status = KEEL_OK;
    // Overflow lines stand between the records of any trainer that prints text; alone they are a format of their own.
    if (!context->importer->sole && !(context->count_only && context->importer->weight))
        status = keel_import_overflow_line(context, line);
    if (!status) status = context->importer->line(context, context->state, line);
    context->line = NULL;
    return status;
}

keel_status keel_import_context_line(keel_import_context *context, const keel_import_line *line) {
    if (!line->open || context->importer->whole) return give_line(context, line);
    keel_import_line cut = *line;
    cut.size = without_last_word(line);
    char *copy = malloc(cut.size + 1);
    if (!copy) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its last line", context->path);
    memcpy(copy, line->text, cut.size);
    copy[cut.size] = 0;
    cut.text = copy;
    keel_status status = cut.size ? give_line(context, &cut) : KEEL_OK;
    free(copy);
    return status;
}

keel_status keel_import_context_bytes(keel_import_context *context, const uint8_t *bytes, size_t size) {
    keel_import_assembly_at(context->assembly, 0, true);
    return context->importer->bytes(context, context->state, bytes, size);
}

keel_status keel_import_context_finish(keel_import_context *context) {
    keel_status status = context->importer->finish ? context->importer->finish(context, context->state) : KEEL_OK;
    if (!status && !context->count_only && context->names)
        status = keel_import_names_check(context->names, context->path);
    if (!status) status = keel_import_assembly_finish(context->assembly);
    return status;
}

// Who printed the present line, by its beginning: "[default7]:", "[rank3]:", "rank 3:", "[3]", "3: ".
static int32_t line_rank(keel_import_context *context) {
    static keel_import_pattern prefix = {
        .source = "^\\s*+(?:\\[(?i:default|rank)?+\\s*+(\\d{1,6})\\]|(?i:rank)[ :_]*+(\\d{1,6})\\b|(\\d{1,6}):\\s)"};
    if (!context->line) return RANK_UNKNOWN;
    if (context->rank != RANK_NOT_LOOKED) return context->rank;
    context->rank = RANK_UNKNOWN;
    const char *text = context->line->text;
    while (is_blank(*text)) text++;
    if (!isdigit((unsigned char)*text) && *text != '[' && *text != 'r' && *text != 'R') return RANK_UNKNOWN;
    if (!keel_import_find(context->match, &prefix, context->line->text, context->line->size, 0)) return RANK_UNKNOWN;
    for (uint32_t group = 1; group <= 3; group++) {
        uint64_t rank;
        if (keel_import_group_step(context->match, group, &rank)) context->rank = (int32_t)rank;
    }
    return context->rank;
}

keel_status keel_import_emit(keel_import_context *context, const keel_import_record *record) {
    if (record->rank >= 0 || !context->line || context->importer->sole)
        return keel_import_assembly_add(context->assembly, record);
    keel_import_record ranked = *record;
    ranked.rank = line_rank(context);
    return keel_import_assembly_add(context->assembly, &ranked);
}

keel_status keel_import_emit_overflow(keel_import_context *context, double scale, int32_t rank) {
    return keel_import_assembly_overflow(context->assembly, scale, rank >= 0 ? rank : line_rank(context));
}

// ---- what cannot be read ----

void keel_import_leave_out(keel_import_context *context, keel_import_unit unit, uint64_t count, uint64_t line,
                           const char *format, ...) {
    keel_left_out *all = &context->left_out;
    if (!line && context->line) line = context->line->number;
    if (!all->lines && !all->rows && !all->values) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(context->first, sizeof context->first, format, arguments);
        va_end(arguments);
        all->first_line = line;
    }
    *(unit == KEEL_IMPORT_LINES ? &all->lines : unit == KEEL_IMPORT_ROWS ? &all->rows : &all->values) += count;
}

static const char *draft_fault(const keel_import_context *context, const keel_import_draft *draft, char *text,
                               size_t size) {
    const int32_t key = draft->unread_key;
    snprintf(text, size, "%s is \"%s\"",
             key == KEEL_IMPORT_NO_KEY ? "a value" : keel_import_names_text(context->names, key), draft->unread_text);
    for (char *at = text; *at; at++)
        if (iscntrl((unsigned char)*at)) *at = '?';
    return text;
}

keel_status keel_import_emit_draft(keel_import_context *context, const keel_import_draft *draft, uint64_t line) {
    char text[128];
    if (draft->bad_step && !draft->record.has_step && keel_import_names_stepped(context->names)) {
        keel_import_leave_out(context, KEEL_IMPORT_ROWS, 1, line, "%s, which is no step",
                              draft_fault(context, draft, text, sizeof text));
        return KEEL_OK;
    }
    if (draft->unread)
        keel_import_leave_out(context, KEEL_IMPORT_VALUES, draft->unread, line, "%s, which is no number",
                              draft_fault(context, draft, text, sizeof text));
    return keel_import_emit(context, &draft->record);
}

void keel_import_leave_draft(keel_import_context *context, const keel_import_draft *draft, uint64_t line) {
    char text[128];
    if (draft->unread || draft->bad_step)
        keel_import_leave_out(context, KEEL_IMPORT_ROWS, 1, line, "%s, which is no number",
                              draft_fault(context, draft, text, sizeof text));
}

keel_left_out keel_import_context_left_out(const keel_import_context *context) {
    keel_left_out all = context->left_out;
    all.misplaced = keel_import_assembly_dropped(context->assembly);
    return all;
}

static void list_count(char *text, size_t size, uint64_t count, const char *one, const char *many) {
    const size_t used = strlen(text);
    if (count) snprintf(text + used, size - used, "%s%" PRIu64 " %s", used ? ", " : "", count, count == 1 ? one : many);
}

void keel_import_context_tell_left_out(const keel_import_context *context) {
    const keel_left_out all = keel_import_context_left_out(context);
    char counts[160] = "", where[48] = "";
    list_count(counts, sizeof counts, all.lines, "line", "lines");
    list_count(counts, sizeof counts, all.rows, "row", "rows");
    list_count(counts, sizeof counts, all.values, "value", "values");
    if (all.first_line) snprintf(where, sizeof where, " in line %" PRIu64, all.first_line);
    if (*counts)
        keel_log(KEEL_LOG_WARNING, "%s: what cannot be read is left out: %s; the first%s: %s", context->path, counts,
                 where, context->first);
    if (all.misplaced)
        keel_log(KEEL_LOG_INFO, "%s: %" PRIu64 " torn or misplaced records were left out", context->path,
                 all.misplaced);
}

// ---- what is found ----

void keel_import_take(keel_import_context *context, keel_import_record *record, keel_import_field field,
                      uint32_t group) {
    double value;
    if (keel_import_group_number(context->match, group, &value)) keel_import_record_set(record, field, value);
}

keel_status keel_import_each(keel_import_context *context, const keel_import_line *line, keel_import_pattern *pattern,
                             const keel_import_field *fields, uint32_t count) {
    for (size_t from = 0; keel_import_find(context->match, pattern, line->text, line->size, from);) {
        keel_import_record record;
        keel_import_record_clear(&record);
        record.has_step = keel_import_group_step(context->match, 1, &record.step);
        bool counted = keel_import_group(context->match, 1).size == 0;
        for (uint32_t i = 0; i < count; i++) keel_import_take(context, &record, fields[i], i + 2);
        size_t end = keel_import_match_end(context->match);
        // A number that cannot be a step is no reason to count on from the one before.
        if (record.has_step || counted) {
            keel_status status = keel_import_emit(context, &record);
            if (status) return status;
        } else {
            keel_import_leave_out(context, KEEL_IMPORT_ROWS, 1, 0, "no step can be so large");
        }
        if (end <= from) break;
        from = end;
    }
    return KEEL_OK;
}
