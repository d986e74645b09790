// Which sites are observed, when, and which ops of each are kept: the monitor's `select` applied to a site table.
#ifndef KEEL_COLLECTORS_SELECT_H
#define KEEL_COLLECTORS_SELECT_H

#include "configs/monitor_config.h"
#include "probe/keel.h"

// Names and expressions alone, before there are sites: KEEL_ERR_CONFIG with file, line and column.
keel_status keel_select_check(const keel_monitor_config *config);

// Fills PLANS and OP_MASKS (bit keel_op), one per site of PROBE. A site that no entry matches keeps its non-finite
// flags on every step; one that an entry disables has plan.fields 0 and mask 0. replica_residual is kept where a site
// is a replica, per_micro_batch where its quantity arises per micro-batch; asking for either where no matched site has
// it is a warning, as is an entry that matches no site. KEEL_ERR_CONFIG with file, line and column for an unknown
// quantity or op and for a bad regular expression. WARN: say what is only a warning through keel_log (one rank does).
keel_status keel_select(const keel_monitor_config *config, const keel_probe *probe, bool warn, keel_site_plan *plans,
                        uint64_t *op_masks);

#endif
