// Which sites are observed, when, and which ops of each are kept: the monitor's `select` applied to a site table.
#ifndef KEEL_COLLECTORS_SELECT_H
#define KEEL_COLLECTORS_SELECT_H

#include "configs/monitor_config.h"
#include "probe/keel.h"

// Names and expressions alone, before there are sites: KEEL_ERR_CONFIG with file, line and column.
keel_status keel_select_check(const keel_monitor_config *config);

// Fills PLANS and OP_MASKS (bit keel_op), one per site of PROBE. A site that no entry matches keeps its non-finite
// flags on every step; one that an entry disables has plan.fields 0 and mask 0. replica_residual, replica_rank and
// replica_peer are kept together, where several ranks hold the same, per_micro_batch where a quantity arises per
// micro-batch. KEEL_ERR_CONFIG with file, line and column for an unknown quantity or op and for a bad regular
// expression.
// RANK_ENTRIES: which entry, from 1, asks for values of single ranks of a site; 0: none.
keel_status keel_select(const keel_monitor_config *config, const keel_probe *probe, keel_site_plan *plans,
                        uint64_t *op_masks, uint32_t *rank_entries);

// True if entry NUMBER, as above, names RANK.
bool keel_select_names_rank(const keel_monitor_config *config, uint32_t number, uint32_t rank);
// KEEL_ERR_CONFIG with its place for a rank of an entry that is none of RANKS.
keel_status keel_select_check_ranks(const keel_monitor_config *config, uint32_t ranks);
// Differs where the entries name other ranks.
uint64_t keel_select_ranks_hash(const keel_monitor_config *config);

// Says through keel_log, once all SITES of a run are known, which entries match none of them or ask for what none of
// those that they match has.
keel_status keel_select_warn(const keel_monitor_config *config, const keel_site_info *sites, uint32_t count);

#endif
