// A file as a segment of a store: opened, every row, series and incident read. Whatever it holds, a call succeeds or
// fails with one line.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectors/store/reader.h"

// HDF5 1.10 leaks what it had of a damaged object.
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:libhdf5";
}
__attribute__((visibility("default"))) const char *__lsan_default_options(void);
const char *__lsan_default_options(void) {
    return "print_suppressions=0";
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_ROWS = 5000 };

static void require(bool holds) {
    if (!holds) abort();
}

static void require_one_line(void) {
    require(*keel_error() && !strchr(keel_error(), '\n'));
}

uint64_t touched; // so that what was read is used

// Every byte that a row points to.
static uint64_t sum(const void *cells, size_t count) {
    uint64_t total = 0, cell;
    for (size_t i = 0; cells && i < count; i++) {
        memcpy(&cell, (const char *)cells + 8 * i, sizeof cell);
        total += cell;
    }
    return total;
}

static void read_rows(keel_store_reader *reader) {
    const keel_row *row;
    keel_store_position position;
    uint64_t total = 0;
    for (int i = 0; i < MOST_ROWS; i++) {
        if (keel_store_next(reader, &row, &position)) {
            require_one_line();
            break;
        }
        if (!row) break;
        const keel_run_info *info = keel_store_info(reader, position.segment);
        const size_t micro_cells = (size_t)info->micro_count * info->micro_site_count;
        total += sum(row->scalars, info->scalar_count);
        for (uint32_t s = 0; s < info->scalar_count; s++) total += row->scalar_set[s];
        for (int op = 0; op < KEEL_OP_COUNT; op++) {
            total += sum(row->f64[op], info->site_count) + sum(row->u64[op], info->site_count);
            total += sum(row->micro_f64[op], micro_cells) + sum(row->micro_u64[op], micro_cells);
        }
    }
    touched = total;
}

static void read_series(keel_store_reader *reader, const char *name, const char *site) {
    uint64_t *steps;
    double *values;
    size_t count;
    if (keel_store_series(reader, name, site, &steps, &values, &count)) {
        require_one_line();
        return;
    }
    free(steps);
    free(values);
}

static void read_all(keel_store_reader *reader) {
    const keel_run_info *info = keel_store_info(reader, 0);
    for (uint32_t s = 0; s < info->site_count; s++) require(strlen(info->sites[s].name) < sizeof info->sites[s].name);
    for (uint32_t i = 0; i < info->micro_site_count; i++) require(info->micro_sites[i] < info->site_count);
    require(info->command && info->config_yaml);
    if (keel_store_rows(reader) <= MOST_ROWS) {
        if (info->scalar_count > 0) read_series(reader, info->scalar_names[0], NULL);
        if (info->site_count > 0) {
            char key[KEEL_INCIDENT_SITE_BYTES];
            snprintf(key, sizeof key, "%s:%s", info->sites[0].name, keel_quantity_name(info->sites[0].quantity));
            read_series(reader, "norm", key);
        }
    }
    read_rows(reader);
    keel_incident *incidents;
    size_t count;
    if (keel_store_incidents(reader, &incidents, &count))
        require_one_line();
    else
        free(incidents);
}

static char path[64];

static void remove_file(void) {
    unlink(path);
}

// HDF5 wants a file with a name; in memory where there is such a place.
static int open_file(void) {
    static int fd = -1;
    if (fd >= 0) return fd;
    snprintf(path, sizeof path, "/dev/shm/keel-fuzz-XXXXXX");
    fd = mkstemp(path);
    if (fd < 0) {
        snprintf(path, sizeof path, "/tmp/keel-fuzz-XXXXXX");
        fd = mkstemp(path);
    }
    require(fd >= 0);
    atexit(remove_file);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const int fd = open_file();
    require(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    keel_store_reader *reader;
    if (keel_store_open(path, &reader)) {
        require_one_line();
        return 0;
    }
    read_all(reader);
    keel_store_close(reader);
    return 0;
}
