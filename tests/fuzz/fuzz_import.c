// A log of any format: the first byte chooses the importer (0: recognised by content, 1: recognised, with columns named
// by the user), the rest is the log. What is read keeps its word: rows in bounds, the same twice, a failure told in one
// line.
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/import/import.h"
#include "tools/import/import_open.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) abort();
}

// A file of this process alone, with the bytes as its content.
static const char *file_of(const uint8_t *bytes, size_t size) {
    static int file = -1;
    static char path[64];
    if (file < 0) {
        file = memfd_create("log", MFD_CLOEXEC);
        require(file >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    require(ftruncate(file, 0) == 0);
    require(pwrite(file, bytes, size, 0) == (ssize_t)size);
    return path;
}

static uint64_t read_run(keel_import *import, size_t run) {
    const keel_row_source *source = keel_import_run(import, run);
    const keel_row *row = NULL;
    uint64_t rows = 0;
    require(source->info->scalar_count < 64);
    while (source->next(source->context, &row) == KEEL_OK && row) {
        rows++;
        for (uint32_t i = 0; i < source->info->scalar_count; i++)
            if (!row->scalar_set[i]) require(keel_is_not_collected(row->scalars[i]));
    }
    require(row == NULL);
    return rows;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    size_t chosen = data[0] % (keel_importer_count + 3);
    const keel_importer *importer = NULL;
    if (chosen == 2)
        importer = &keel_importer_template;
    else if (chosen > 2)
        importer = keel_importers[chosen - 3];
    keel_import *import = NULL;
    if (keel_import_open_with(file_of(data + 1, size - 1), importer, chosen == 1 ? "step=t,loss=objective" : NULL,
                              &import)) {
        require(import == NULL && strchr(keel_error(), '\n') == NULL);
        return 0;
    }
    require(keel_import_runs(import) > 0);
    for (size_t run = 0; run < keel_import_runs(import); run++) {
        uint64_t rows = read_run(import, run);
        require(rows > 0 && rows == read_run(import, run));
    }
    keel_import_close(import);
    return 0;
}
