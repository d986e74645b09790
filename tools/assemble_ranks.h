// The assembly of a job of several ranks, as keel-train is. Not installed: what merges over ranks is no part of
// libkeel.
#ifndef KEEL_TOOLS_ASSEMBLE_RANKS_H
#define KEEL_TOOLS_ASSEMBLE_RANKS_H

#include "collectors/merge.h"
#include "collectors/watch/beat_board.h"
#include "tools/assemble.h"

typedef struct keel_assembly_ranks {
    const keel_merge *merge; // copied, and taken over, also on failure
    const keel_beat_board
        *board; // of this node's ranks (collectors/mpi/node_board.h), which watch one another. The same
    void (*end_job)(void *context); // for a job that cannot go on: collectors/watch/rank_watch.h; NULL: it is not ended
} keel_assembly_ranks;

// keel_assembly_open. RANKS NULL: of one process, which nobody watches.
keel_status keel_assembly_open_ranks(const keel_assembly_options *options, const keel_assembly_ranks *ranks,
                                     keel_assembly **assembly);

#endif
