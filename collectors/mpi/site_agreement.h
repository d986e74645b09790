// What the ranks registered, brought together: which of them have the same table, hence frames that merge place by
// place, and what the whole run has.
#ifndef KEEL_COLLECTORS_MPI_SITE_AGREEMENT_H
#define KEEL_COLLECTORS_MPI_SITE_AGREEMENT_H

#include <mpi.h>

#include "collectors/whole_table.h"

typedef struct keel_rank_groups {
    uint32_t count;    // of groups
    uint32_t mine;     // lowest rank of this rank's
    uint32_t *leaders; // owned: the lowest rank of each group, ascending
    uint32_t *of;      // [ranks], owned until the whole table has it: the group of each
} keel_rank_groups;

// Collective and blocking over COMM. TABLE NULL: this rank could not start; it gets KEEL_ERR_COMM with its own
// keel_error() kept, the others the number of that rank. *WHOLE is set on rank 0 only. Where tables contradict each
// other every rank gets KEEL_ERR_USAGE and the same text (whole_table.h). *GROUPS is to be freed.
keel_status keel_site_agreement(MPI_Comm comm, const keel_rank_table *table, keel_whole_table *whole,
                                keel_rank_groups *groups);
void keel_rank_groups_free(keel_rank_groups *groups);

// Collective and blocking: KEEL_OK if all ranks are READY, else KEEL_ERR_COMM, with the lowest that is not named where
// this one is.
keel_status keel_all_ready(MPI_Comm comm, bool ready);

#endif
