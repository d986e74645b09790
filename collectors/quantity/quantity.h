// What is known of each quantity: where in a step it arises, how it may be laid out over ranks, and which ops mean
// something for it. The one place that says so; how to add a quantity is in CONTRIBUTING.md.
#ifndef KEEL_COLLECTORS_QUANTITY_QUANTITY_H
#define KEEL_COLLECTORS_QUANTITY_QUANTITY_H

#include "probe/site.h"
#include "probe/stats.h"

// Sets of ops are masks: bit keel_op.
_Static_assert(KEEL_OP_COUNT <= 64, "a set of ops is one 64-bit word");

typedef struct keel_quantity_info {
    const char *family; // weight, gradient, activation, optimizer, collective
    const char *doc;    // what the tensor is, in one line
    uint32_t layouts;   // bit keel_layout: how it may lie over the ranks
    uint32_t phases;    // bit keel_phase: where in the step it may be observed
    bool per_micro;     // arises once per micro-batch, so that a record of each makes sense
    bool half;          // is rounded to fp16 in mixed-precision training: the half group is part of `all`
} keel_quantity_info;

const keel_quantity_info *keel_quantity_get(keel_quantity quantity);

// KEEL_ERR_USAGE, naming the site, if its layout or phase contradicts its quantity.
keel_status keel_quantity_check(const keel_site_info *site);

// The ops that need no more than the non-finite flags: kept at every enabled site on every step.
uint64_t keel_ops_flags(void);
// Those that say something of one rank's own values, not of a merge over ranks.
uint64_t keel_ops_of_one_rank(void);

// The set that NAME stands for: an op's name, or one of the aliases
//   precision  not_bf16, not_fp16, not_tf32
//   rank       norm_low, norm_high, rank_low, rank_high, log_norm_mean, log_norm_std, replica_residual
//   all        every op; the half group only where keel_quantity_info.half
// 0 if there is no such name.
uint64_t keel_ops_named(const char *name, keel_quantity quantity);

// Op names and aliases, for messages.
const char *const *keel_ops_known(size_t *count);

// The field groups that must be observed for these ops; KEEL_FIELDS_FLAGS always.
uint32_t keel_ops_fields(uint64_t ops);

#endif
