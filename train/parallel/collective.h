// Every collective of the trainer is in this file: declared once with name, dtype, count and communicator, watched
// before and after, timed. (The agreement on a failure alone is not: it belongs to no step.)
#ifndef KEEL_TRAIN_PARALLEL_COLLECTIVE_H
#define KEEL_TRAIN_PARALLEL_COLLECTIVE_H

#include <mpi.h>
#include <stdbool.h>

#include "train/model/tap.h"
#include "train/parallel/mesh.h"

typedef enum keel_collective_kind {
    KEEL_ALL_REDUCE,
    KEEL_REDUCE_SCATTER,
    KEEL_ALL_GATHER,
    KEEL_BROADCAST,
    KEEL_REDUCE,
    KEEL_ALL_TO_ALL,
    KEEL_SEND,
    KEEL_RECEIVE
} keel_collective_kind;
const char *keel_collective_kind_name(keel_collective_kind kind); // "all_reduce"

typedef enum keel_collective_when {
    KEEL_EVERY_STEP,
    KEEL_AT_START,
    KEEL_AT_CHECKPOINT,
    KEEL_AT_END
} keel_collective_when;

// Where in a pass through the model a collective stands: before the places of its order. Its values are activations or
// gradients by them, of this data-parallel rank's own data. Not WITHIN: in order of declaration behind ORDER of PHASE.
typedef struct keel_collective_place {
    bool within;
    keel_phase phase;
    uint32_t order;
    int32_t layer; // -1: none
    int32_t stage;
} keel_collective_place;

typedef struct keel_collective_plan {
    const char *name; // "all_reduce.gradient.0"; the name of its sites collective_in and collective_out
    keel_collective_kind kind;
    keel_collective_when when; // others than EVERY_STEP: outside any step, have no sites
    keel_dtype dtype;
    keel_precision precision;    // of the values and of OP, for who reads the plan
    size_t count;                // ALL_TO_ALL: the most that a rank sends, or gets, in a call
    size_t row;                  // ALL_TO_ALL: elements of a row, which goes as a whole
    const keel_comm *comm;       // borrowed
    size_t share;                // REDUCE_SCATTER, ALL_GATHER: rank r has elements [r SHARE, (r + 1) SHARE) of COUNT
    MPI_Op op;                   // ALL_REDUCE, REDUCE_SCATTER, REDUCE
    bool whole;                  // OP is called on all COUNT elements together, never on pieces
    bool gradient;               // float32: the values are gradients, which hold the loss scale
    keel_collective_place place; // zeros: behind the backward pass, in order of declaration
    int peer;                    // SEND, RECEIVE: the rank in COMM
    const keel_comm *copies;     // SEND, RECEIVE, ALL_TO_ALL: ranks that move the same values, each with its own peers
} keel_collective_plan;

typedef struct keel_collective {
    keel_collective_plan plan; // its name is a copy
    size_t bytes;              // of one rank's data
    uint64_t calls;
    double seconds; // from start to completion, all calls
    double waited;  // of these, within keel_collective_wait or the blocking call
    // private
    keel_probe *probe;
    MPI_Datatype type;             // what MPI sends COUNT of, or one of if WHOLE
    int *counts, *begins;          // of every rank's share, in one piece of memory; NULL where nothing is shared out
    keel_tap *in, *out;            // float32
    keel_site *in_site, *out_site; // other dtypes: seen, never disturbed
    void *data;                    // under way
    size_t count;                  // of its elements
    double started;
    MPI_Request request;
} keel_collective;

typedef struct keel_collectives keel_collectives; // those of this rank, in order of declaration

keel_status keel_collectives_open(keel_taps *taps, keel_collectives **set);
void keel_collectives_close(keel_collectives *set); // NULL is fine; nothing may be under way
// Declares a collective and registers its sites. collective_in is this rank's summand (layout partial), or its share of
// an all-gather (shard); collective_out a replica, or this rank's share of a reduce-scatter (shard). What goes all to
// all is of each rank's own data (sample), as is a send, which has only the first, and a receive, which has only the
// second; of one pair of ranks these come in the same order on both.
keel_status keel_collectives_add(keel_collectives *set, const keel_collective_plan *plan, keel_collective **collective);
const keel_collective *keel_collectives_get(const keel_collectives *set, size_t index); // NULL beyond the last

// In place over DATA [count]; KEEL_ERR_COMM with MPI's text. With one rank nothing is sent, and there are no sites.
keel_status keel_all_reduce(keel_collective *collective, void *data);
// Of the first COUNT elements alone, all ranks alike, for one whose last part is shorter.
keel_status keel_all_reduce_first(keel_collective *collective, void *data, size_t count);
// Leaves the sum of this rank's share in its place, and nothing of use beside it.
keel_status keel_reduce_scatter(keel_collective *collective, void *data);
keel_status keel_all_gather(keel_collective *collective, void *data); // this rank's share is in its place
keel_status keel_broadcast(keel_collective *collective, void *data);  // from rank 0 of the communicator
keel_status keel_reduce(keel_collective *collective, void *data);     // to it; the others' data stay as they are
// Rank r of the communicator gets SENT[r] rows of SEND, which lie there in the order of ranks, and the rows that come
// lie in GET alike, GOT[s] from rank s. SEND and GET do not overlap; with one rank nothing is done.
keel_status keel_all_to_all(keel_collective *collective, void *send, const uint32_t *sent, void *get,
                            const uint32_t *got);
keel_status keel_collective_run(keel_collective *collective, void *data); // in place, what its kind says
// The same, not waited for: DATA is MPI's until keel_collective_wait. At least two ranks.
keel_status keel_all_reduce_start(keel_collective *collective, void *data);
keel_status keel_reduce_scatter_start(keel_collective *collective, void *data);
keel_status keel_all_gather_start(keel_collective *collective, void *data);
keel_status keel_send_start(keel_collective *collective, void *data);
keel_status keel_receive_start(keel_collective *collective, void *data);
// Lets MPI move what is under way. *DONE: nothing is left to wait for.
keel_status keel_collective_test(keel_collective *collective, bool *done);
keel_status keel_collective_wait(keel_collective *collective);
// Lets MPI move whatever of the set is under way, and completes nothing. SET NULL: nothing is.
void keel_collectives_progress(const keel_collectives *set);
// Seconds that this rank has waited in them until now.
double keel_collectives_waited(const keel_collectives *set);

// Every rank of COMM comes with its own status; all leave with that of the lowest rank that failed, and with its text.
// Naps while it waits, so that ranks with nothing to do leave the cores to the one that works.
keel_status keel_agree(const keel_comm *comm, keel_status status);

// TEXT of rank FROM of COMM becomes that of all; malloc'ed, owned by the caller.
keel_status keel_share_text(const keel_comm *comm, int from, char **text);

#endif
