#include "tools/import/import.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "tools/import/import_context.h"
#include "tools/import/import_input.h"
#include "tools/import/import_open.h"
#include "tools/import/import_recognize.h"

enum { PIECE_BYTES = 256 << 10 };

// One run as a source of rows.
typedef struct run_source {
    const keel_import_segment *run;
    keel_run_info info;
    const char **names;                  // [scalars]
    uint8_t column[KEEL_IMPORT_SCALARS]; // of each field
    double *values;                      // [scalars]
    bool *set;
    keel_import_cursor cursor;
    uint64_t next; // row
    keel_row row;
    keel_row_source source;
} run_source;

struct keel_import {
    char *path;
    keel_import_match *match;
    keel_import_context *context;
    run_source *sources;
    size_t count;
};

// ---- reading ----

static keel_status read_line(void *context, const keel_import_line *line) {
    return keel_import_context_line(context, line);
}

static keel_status read_piece(keel_import_context *context, keel_import_lines *lines, char *bytes, size_t size) {
    return keel_import_context_importer(context)->line
               ? keel_import_lines_feed(lines, bytes, size, read_line, context)
               : keel_import_context_bytes(context, (const uint8_t *)bytes, size);
}

static keel_status read_all(keel_import_context *context, keel_import_input *input, keel_import_head *head) {
    keel_import_lines lines;
    keel_import_lines_init(&lines);
    char *piece = malloc(PIECE_BYTES);
    keel_status status = piece ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory to read a log");
    if (!status) status = read_piece(context, &lines, head->bytes, head->size);
    for (size_t got = 1; !status && got && !head->ended;) {
        status = keel_import_input_read(input, piece, PIECE_BYTES, &got);
        if (!status) status = read_piece(context, &lines, piece, got);
    }
    if (!status) status = keel_import_lines_end(&lines, read_line, context);
    if (lines.too_long_count)
        keel_import_leave_out(context, KEEL_IMPORT_LINES, lines.too_long_count, lines.too_long_first,
                              "it is longer than %d bytes", KEEL_IMPORT_LINE_BYTES);
    if (!status) status = keel_import_context_finish(context);
    free(piece);
    keel_import_lines_free(&lines);
    return status;
}

// ---- rows ----

static keel_status next_row(void *context, const keel_row **row) {
    run_source *source = context;
    if (source->next == source->run->rows) {
        *row = NULL;
        return KEEL_OK;
    }
    keel_import_row packed;
    double values[KEEL_IMPORT_SCALARS];
    keel_status status = keel_import_cursor_read(&source->cursor, &packed, sizeof packed);
    if (!status)
        status =
            keel_import_cursor_read(&source->cursor, values, (size_t)__builtin_popcountll(packed.set) * sizeof *values);
    if (status) return status;
    source->next++;
    for (uint32_t i = 0; i < source->info.scalar_count; i++) {
        source->values[i] = keel_not_collected();
        source->set[i] = false;
    }
    size_t n = 0;
    for (uint64_t left = packed.set; left; left &= left - 1, n++) {
        int field = __builtin_ctzll(left);
        if (!(source->run->scalars >> field & 1)) continue;
        source->values[source->column[field]] = values[n];
        source->set[source->column[field]] = true;
    }
    source->row.step = (keel_step){.step = packed.step, .update = packed.step, .flags = packed.flags};
    *row = &source->row;
    return KEEL_OK;
}

static void rewind_rows(void *context) {
    run_source *source = context;
    keel_import_cursor_seek(&source->cursor, source->run->offset);
    source->next = 0;
}

static keel_status prepare_source(keel_import *import, size_t index, run_source *source) {
    keel_import_assembly *assembly = keel_import_context_assembly(import->context);
    source->run = keel_import_assembly_get(assembly, index);
    keel_import_cursor_init(&source->cursor, keel_import_assembly_spool(assembly));
    uint32_t count = (uint32_t)__builtin_popcountll(source->run->scalars);
    source->names = calloc(count + 1, sizeof *source->names);
    source->values = calloc(count + 1, sizeof *source->values);
    source->set = calloc(count + 1, sizeof *source->set);
    if (!source->names || !source->values || !source->set)
        return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its runs", import->path);
    uint8_t n = 0;
    for (uint64_t left = source->run->scalars; left; left &= left - 1) {
        keel_import_field field = (keel_import_field)__builtin_ctzll(left);
        const keel_import_names *names = keel_import_context_names(import->context);
        source->names[n] = names ? keel_import_names_scalar(names, field) : keel_import_field_name(field);
        source->column[field] = n++;
    }
    source->info = (keel_run_info){.command = "",
                                   .config_yaml = "",
                                   .world_size = 1,
                                   .dp = 1,
                                   .tp = 1,
                                   .pp = 1,
                                   .ep = 1,
                                   .scalar_count = count,
                                   .scalar_names = source->names};
    const char *slash = strrchr(import->path, '/');
    const char *name = slash && slash[1] ? slash + 1 : import->path;
    size_t room = sizeof source->info.run_id - 1;
    strncpy(source->info.run_id, strcmp(name, "-") == 0 ? "stdin" : name, room);
    if (index > 0) { // the second run of a file is not the first
        size_t used = strlen(source->info.run_id);
        if (used > room - 12) used = room - 12;
        snprintf(source->info.run_id + used, sizeof source->info.run_id - used, "#%zu", index + 1);
    }
    struct stat info;
    struct tm utc;
    time_t written = stat(import->path, &info) == 0 ? info.st_mtime : time(NULL);
    if (gmtime_r(&written, &utc))
        strftime(source->info.created_utc, sizeof source->info.created_utc, "%Y-%m-%dT%H:%M:%SZ", &utc);
    source->row.scalars = source->values;
    source->row.scalar_set = source->set;
    source->source =
        (keel_row_source){.context = source, .info = &source->info, .next = next_row, .rewind = rewind_rows};
    return KEEL_OK;
}

static keel_status prepare_sources(keel_import *import) {
    keel_import_assembly *assembly = keel_import_context_assembly(import->context);
    const char *format = keel_import_format(import);
    import->count = keel_import_assembly_count(assembly);
    if (import->count == 0) return keel_fail(KEEL_ERR_FORMAT, "%s: no record of the format %s", import->path, format);
    import->sources = calloc(import->count, sizeof *import->sources);
    if (!import->sources) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory for its runs", import->path);
    for (size_t i = 0; i < import->count; i++) {
        keel_status status = prepare_source(import, i, &import->sources[i]);
        if (status) return status;
    }
    return KEEL_OK;
}

// ---- the interface ----

keel_status keel_import_open_with(const char *path, const keel_importer *importer, const char *columns,
                                  keel_import **import) {
    keel_import *made = calloc(1, sizeof *made);
    if (made) made->path = strdup(path);
    if (!made || !made->path) {
        free(made);
        return keel_fail(KEEL_ERR_MEMORY, "%s: no memory to read it", path);
    }
    keel_import_head head = {.bytes = NULL};
    keel_import_input *input = NULL;
    keel_status status = keel_import_input_open(path, &input);
    if (!status) status = keel_import_match_open(&made->match);
    if (!status && !importer) {
        status = keel_import_recognize(path, columns, made->match, input, &head, &importer);
    } else if (!status) {
        status = keel_import_head_grow(path, &head, input);
    }
    if (!status && columns && !importer->columns)
        status = keel_fail(KEEL_ERR_CONFIG, "%s: the format %s has no columns to name", path, importer->name);
    if (!status) status = keel_import_context_open(importer, made->path, columns, made->match, false, &made->context);
    if (!status) status = read_all(made->context, input, &head);
    if (!status) keel_import_context_tell_left_out(made->context);
    if (!status) status = prepare_sources(made);
    keel_import_input_close(input);
    free(head.bytes);
    if (status) {
        keel_import_close(made);
        return status;
    }
    *import = made;
    return KEEL_OK;
}

keel_status keel_import_open(const char *path, const keel_import_options *options, keel_import **import) {
    const keel_importer *importer = NULL;
    if (options && options->format) {
        importer = keel_importer_find(options->format);
        if (!importer)
            return keel_fail(KEEL_ERR_CONFIG, "no log format \"%s\"; keel import --list-formats names them",
                             options->format);
    }
    return keel_import_open_with(path, importer, options ? options->columns : NULL, import);
}

void keel_import_close(keel_import *import) {
    if (!import) return;
    for (size_t i = 0; import->sources && i < import->count; i++) {
        run_source *source = &import->sources[i];
        keel_import_cursor_free(&source->cursor);
        free(source->names);
        free(source->values);
        free(source->set);
    }
    free(import->sources);
    keel_import_context_close(import->context);
    keel_import_match_close(import->match);
    free(import->path);
    free(import);
}

size_t keel_import_runs(const keel_import *import) {
    return import->count;
}

keel_left_out keel_import_left_out(const keel_import *import) {
    return keel_import_context_left_out(import->context);
}

const char *keel_import_format(const keel_import *import) {
    return keel_import_context_importer(import->context)->name;
}

const keel_row_source *keel_import_run(keel_import *import, size_t run) {
    run_source *source = &import->sources[run];
    rewind_rows(source);
    return &source->source;
}

void keel_import_list(FILE *out) {
    for (size_t i = 0; i < keel_importer_count; i++)
        fprintf(out, "%-20s %s\n", keel_importers[i]->name, keel_importers[i]->doc);
}
