// Signs of life of the ranks of one node, in memory that they share: each writes its own beat, all read all. No call of
// MPI is needed for either, so that they tell of a rank that nothing else can reach.
#ifndef KEEL_COLLECTORS_WATCH_BEAT_BOARD_H
#define KEEL_COLLECTORS_WATCH_BEAT_BOARD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "probe/status.h"

typedef enum keel_beat_phase {
    KEEL_BEAT_STARTING, // before the first step
    KEEL_BEAT_STEP,
    KEEL_BEAT_BETWEEN, // two steps
    KEEL_BEAT_LEFT,    // its run is over in order: it is watched no more
} keel_beat_phase;

// Of one rank; written by its process alone but for silence_told. Zeros at first.
typedef struct keel_beat {
    _Alignas(128) _Atomic uint64_t signs; // grows with every sign of life
    _Atomic uint64_t step;                // the present or the last one
    _Atomic uint32_t phase;               // keel_beat_phase
    _Atomic uint32_t waits;               // 1: for other ranks
    _Atomic int32_t exit_status;          // plus 1, of a process that leaves by exit; 0: it has not
    _Atomic uint64_t looks;               // of its own watch at the others
    _Atomic uint64_t silence_told;        // signs at which its silence was told, plus 1
    int32_t rank;
    pid_t pid;
    uint64_t pid_space; // see keel_process_space
} keel_beat;

typedef struct keel_beat_table {
    _Atomic uint32_t death_told; // 1: by one of them; those that follow are its consequence
    keel_beat beats[];
} keel_beat_table;

typedef struct keel_beat_board {
    keel_beat_table *table;
    uint32_t count, own; // ranks of this node in ascending order, and the place of this one
} keel_beat_board;

size_t keel_beat_table_bytes(uint32_t count);
// Writes who this process is. TABLE is mapped, and the board's from then on.
void keel_beat_board_join(keel_beat_board *board, keel_beat_table *table, uint32_t count, uint32_t own, int32_t rank);
// A board of this process alone.
keel_status keel_beat_board_alone(int32_t rank, keel_beat_board *board);
void keel_beat_board_close(keel_beat_board *board); // zeros are fine

static inline keel_beat *keel_beat_own(const keel_beat_board *board) {
    return &board->table->beats[board->own];
}

#endif
