// What the tests of importers share: a log's rows as text, logs made on the spot.
#ifndef KEEL_TESTS_IMPORT_ROWS_H
#define KEEL_TESTS_IMPORT_ROWS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/import/import.h"

enum { ROW_BYTES = 256, PATH_BYTES = 512 };

// "142 SO loss=9.9 lr=2.8e-06": step; flags as letters, - for none; the scalars that are set.
static inline void describe_row(const keel_run_info *info, const keel_row *row, char text[ROW_BYTES]) {
    static const struct {
        uint32_t flag;
        char letter;
    } letters[] = {{KEEL_STEP_SKIPPED, 'S'},
                   {KEEL_STEP_OVERFLOW, 'O'},
                   {KEEL_STEP_RESUMED, 'R'},
                   {KEEL_STEP_EPOCH, 'E'},
                   {KEEL_STEP_EVALUATION, 'V'}};
    int n = snprintf(text, ROW_BYTES, "%llu ", (unsigned long long)row->step.step);
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
        if (row->step.flags & letters[i].flag) text[n++] = letters[i].letter;
    if (!row->step.flags) text[n++] = '-';
    text[n] = 0;
    for (uint32_t i = 0; i < info->scalar_count; i++)
        if (row->scalar_set[i])
            n += snprintf(text + n, (size_t)(ROW_BYTES - n), " %s=%.9g", info->scalar_names[i], row->scalars[i]);
}

// ROWS ends with NULL.
static inline void check_rows(keel_import *import, size_t run, const char *const *rows) {
    const keel_row_source *source = keel_import_run(import, run);
    const keel_row *row = NULL;
    char text[ROW_BYTES];
    for (; *rows; rows++) {
        assert_int_equal(source->next(source->context, &row), KEEL_OK);
        if (!row) {
            fail_msg("no row where \"%s\" belongs", *rows);
            return;
        }
        describe_row(source->info, row, text);
        assert_string_equal(text, *rows);
    }
    assert_int_equal(source->next(source->context, &row), KEEL_OK);
    assert_null(row);
}

static inline void write_log(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

// The path of a log in memory, for this process; whoever uses it writes it first.
static inline const char *scratch_log(void) {
    static char path[PATH_BYTES];
    if (!*path) {
        int file = memfd_create("log", MFD_CLOEXEC);
        assert_true(file >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    return path;
}

static inline keel_import *open_text(const char *text, const keel_import_options *options) {
    const char *path = scratch_log();
    write_log(path, text, strlen(text));
    keel_import *import = NULL;
    keel_status status = keel_import_open(path, options, &import);
    if (status) fail_msg("%s", keel_error());
    return import;
}

// TEXT as FORMAT, if not NULL, one run: ROWS.
static inline void check_text(const char *text, const char *format, const char *const *rows) {
    keel_import *import = open_text(text, &(keel_import_options){.format = format});
    assert_int_equal(keel_import_runs(import), 1);
    check_rows(import, 0, rows);
    keel_import_close(import);
}

#endif
