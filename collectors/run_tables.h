// The tables of a run as rank 0 hands them to its sinks, made from the probe and what was selected.
#ifndef KEEL_COLLECTORS_RUN_TABLES_H
#define KEEL_COLLECTORS_RUN_TABLES_H

#include "collectors/row.h"
#include "probe/keel.h"

typedef struct keel_run_tables {
    keel_run_info info;
    // Owned: what INFO points to.
    keel_site_info *sites;
    const char **scalar_names;
    char *owner_names;
    uint32_t *micro_sites;
} keel_run_tables;

typedef struct keel_run_identity {
    const char *run_id;                // NULL: made up
    const char *command, *config_yaml; // NULL: ""; borrowed, they outlive the tables
    uint32_t world_size, dp, tp, pp, ep;
} keel_run_identity;

// OP_MASKS is borrowed and outlives the tables. PLANS is needed for the call only.
keel_status keel_run_tables_open(const keel_run_identity *identity, const keel_probe *probe,
                                 const keel_site_plan *plans, const uint64_t *op_masks, keel_run_tables *tables);
void keel_run_tables_close(keel_run_tables *tables); // of zeroed ones: nothing

// Bytes of the tables and of one row.
size_t keel_run_tables_bytes(const keel_run_tables *tables);

#endif
