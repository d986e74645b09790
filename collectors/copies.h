// Which copy of a tensor differs from the others. The merge carries only whether any does (replica_residual); where it
// says so, rank 0 asks all ranks for the checksums of one site, and the copies are put to the vote.
#ifndef KEEL_COLLECTORS_COPIES_H
#define KEEL_COLLECTORS_COPIES_H

#include "collectors/rank_table.h"

// A rank's answer.
typedef struct keel_copy {
    uint64_t print; // equal for equal copies of the same part
    uint32_t rank;
    uint32_t replica_index;
    bool held; // false: the rank has no such site, or did not look at it
} keel_copy;

// What a rank remembers of the frame that it gave to the last merge.
typedef struct keel_copies {
    uint32_t count;
    struct keel_copy_site {
        uint64_t hash; // of the site's quantity and name
        uint64_t print;
        uint32_t id, replica_index, replica_count;
        bool held;
    } * sites; // owned
} keel_copies;

// The sites of TABLE whose replicas are compared.
keel_status keel_copies_open(const keel_rank_table *table, keel_copies *copies);
void keel_copies_close(keel_copies *copies); // of zeroed ones: nothing
// Before FRAME, sealed, is merged. NULL: this rank has none.
void keel_copies_note(keel_copies *copies, keel_frame *frame);
// What RANK, this one, answers for the site of HASH.
keel_copy keel_copies_answer(const keel_copies *copies, uint64_t hash, uint32_t rank);

bool keel_copies_compared(const keel_rank_table *table, uint32_t site); // its residual is kept
// The site to ask for: of those whose residual is not 0 in MERGED the first in the data flow. False: all agree.
bool keel_copies_choose(const keel_rank_table *table, keel_frame *merged, uint32_t *site);
// Of the answers ALL of COUNT ranks, which are sorted, with REPLICA_COUNT copies of each part: the lowest rank whose
// copy differs from most others of its part, twice. Of two copies that differ nobody can tell: *RANK is that of the
// copy that counts, *PEER that of the other. False: there is no such rank.
bool keel_copies_vote(keel_copy *all, uint32_t count, uint32_t replica_count, uint32_t *rank, uint32_t *peer);

#endif
