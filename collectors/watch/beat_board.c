#include "collectors/watch/beat_board.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "collectors/watch/process.h"

size_t keel_beat_table_bytes(uint32_t count) {
    return sizeof(keel_beat_table) + count * sizeof(keel_beat);
}

void keel_beat_board_join(keel_beat_board *board, keel_beat_table *table, uint32_t count, uint32_t own, int32_t rank) {
    *board = (keel_beat_board){.table = table, .count = count, .own = own};
    keel_beat *beat = keel_beat_own(board);
    beat->rank = rank;
    beat->pid = getpid();
    beat->pid_space = keel_process_space();
}

keel_status keel_beat_board_alone(int32_t rank, keel_beat_board *board) {
    void *table = mmap(NULL, keel_beat_table_bytes(1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (table == MAP_FAILED) return keel_fail(KEEL_ERR_MEMORY, "no memory for a sign of life: %s", strerror(errno));
    keel_beat_board_join(board, table, 1, 0, rank);
    return KEEL_OK;
}

void keel_beat_board_close(keel_beat_board *board) {
    if (board->table) munmap(board->table, keel_beat_table_bytes(board->count));
    *board = (keel_beat_board){0};
}
