// What a segment holds beside its rows: attributes and the tables that are written once.
#ifndef KEEL_COLLECTORS_STORE_SEGMENT_TABLES_H
#define KEEL_COLLECTORS_STORE_SEGMENT_TABLES_H

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

#include "collectors/row.h"
#include "collectors/store/schema.h"

typedef struct keel_segment_tables {
    keel_run_info info; // but for op_stored
    bool resumed;       // begun by another process than the segment before
    bool rising;        // packed, and its steps rise all the way from first to last
    uint64_t first_step, last_step;
    // Owned: what info points to.
    char *command, *config_yaml;
    keel_site_info *sites;
    char (*names)[KEEL_STORED_SCALAR_BYTES];
    const char **scalar_names;
    uint32_t *micro_sites;
    keel_rank_series *rank_series;
} keel_segment_tables;

// TABLES is zeroed, and to be freed whatever comes back. PATH is for messages.
keel_status keel_segment_tables_read(hid_t file, const char *path, keel_segment_tables *tables);
void keel_segment_tables_free(keel_segment_tables *tables);

#endif
