// The tables of a run as rank 0 hands them to its sinks, made of what all ranks registered and selected.
#ifndef KEEL_COLLECTORS_RUN_TABLES_H
#define KEEL_COLLECTORS_RUN_TABLES_H

#include "collectors/rank_series.h"
#include "collectors/row.h"

typedef struct keel_run_tables {
    keel_run_info info;
    // Owned: what INFO points to.
    const char **scalar_names;
    char *owner_names;
    uint32_t *micro_sites;
} keel_run_tables;

typedef struct keel_run_identity {
    const char *run_id;                // NULL: made up
    const char *command, *config_yaml; // NULL: ""; borrowed, they outlive the tables
    uint32_t world_size, dp, tp, pp, ep;
} keel_run_identity;

// TABLE, of the whole run, and RANKS are borrowed and outlive the tables.
keel_status keel_run_tables_open(const keel_run_identity *identity, const keel_rank_table *table,
                                 const keel_rank_series_table *ranks, keel_run_tables *tables);
void keel_run_tables_close(keel_run_tables *tables); // of zeroed ones: nothing

// Bytes of one row and of what the tables have beside the table they borrow.
size_t keel_run_tables_bytes(const keel_run_tables *tables);

#endif
