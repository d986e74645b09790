#include "collectors/store/packer.h"

#include <stdlib.h>
#include <string.h>

#include "collectors/helper_thread.h"
#include "collectors/store/pack_job.h"
#include "collectors/store/pack_worker.h"

// A piece holds at least a chunk of any dataset, and a few rows more than are written while it is packed.
enum { LEAST_PIECE_BYTES = 1 << 20, MOST_PIECE_BYTES = 32 << 20, LEAST_CHUNK_BYTES = 64 };

struct keel_packer {
    char *directory;
    size_t piece_bytes;
    uint32_t *queue; // oldest first
    size_t queued;
    keel_pack_job *job;       // NULL: none
    bool publishing;          // the job's last piece is with the worker
    keel_pack_worker *worker; // NULL until it is first needed
};

static void end_job(keel_packer *packer) {
    keel_pack_job_close(packer->job);
    packer->job = NULL;
    packer->publishing = false;
}

// No run depends on it: the segment stays as it is.
static void give_up(keel_packer *packer) {
    keel_log(KEEL_LOG_WARNING, "a segment of the store stays uncompressed: %s", keel_error());
    while (!keel_pack_worker_idle(packer->worker))
        if (keel_pack_worker_done(packer->worker, 1)) keel_pack_worker_release(packer->worker);
    end_job(packer);
}

static void begin_next(keel_packer *packer) {
    if (packer->queued == 0) return;
    const uint32_t number = packer->queue[0];
    packer->queued--;
    memmove(packer->queue, packer->queue + 1, packer->queued * sizeof *packer->queue);
    keel_status status = KEEL_OK;
    if (!packer->worker)
        status = keel_pack_worker_open(packer->piece_bytes, packer->piece_bytes / LEAST_CHUNK_BYTES, &packer->worker);
    if (!status) status = keel_pack_job_open(packer->directory, number, packer->piece_bytes, &packer->job);
    if (status) keel_log(KEEL_LOG_WARNING, "a segment of the store stays uncompressed: %s", keel_error());
}

static keel_status take_done(keel_packer *packer, double seconds, bool *over) {
    keel_pack_piece *piece = keel_pack_worker_done(packer->worker, seconds);
    *over = piece && packer->publishing;
    if (!piece) return KEEL_OK;
    keel_status status = KEEL_OK;
    if (!*over)
        status = keel_pack_job_write(packer->job, piece);
    else if (piece->error)
        status = keel_fail(KEEL_ERR_IO, "%s: cannot be replaced: %s", keel_pack_job_path(packer->job),
                           strerror(piece->error));
    keel_pack_worker_release(packer->worker);
    return status;
}

static keel_status give_more(keel_packer *packer) {
    keel_pack_piece *piece = keel_pack_worker_free(packer->worker);
    if (!piece || packer->publishing) return KEEL_OK;
    bool more;
    keel_status status = keel_pack_job_read(packer->job, piece, &more);
    if (status) return status;
    if (!more) {
        if (!keel_pack_worker_idle(packer->worker)) return KEEL_OK; // the last pieces are not written yet
        if ((status = keel_pack_job_finish(packer->job, piece))) return status;
        packer->publishing = true;
    }
    keel_pack_worker_start(packer->worker);
    return KEEL_OK;
}

// Keeps the worker busy with both pieces, and writes one that it has done, waiting for it at most SECONDS.
static void advance(keel_packer *packer, double seconds) {
    if (!packer->job) {
        begin_next(packer);
        return;
    }
    bool over = false;
    keel_status status = KEEL_OK;
    for (int i = 0; !status && i < KEEL_PACK_PIECES; i++) status = give_more(packer);
    if (!status) status = take_done(packer, seconds, &over);
    if (status)
        give_up(packer);
    else if (over)
        end_job(packer);
}

keel_status keel_packer_open(const char *directory, size_t row_bytes, keel_packer **out) {
    keel_packer *packer = calloc(1, sizeof *packer);
    char *copy = strdup(directory);
    if (!packer || !copy) {
        free(packer);
        free(copy);
        return keel_fail(KEEL_ERR_MEMORY, "%s: no memory to pack segments", directory);
    }
    packer->directory = copy;
    const size_t wanted = row_bytes + row_bytes / 4;
    packer->piece_bytes = wanted < LEAST_PIECE_BYTES  ? LEAST_PIECE_BYTES
                          : wanted > MOST_PIECE_BYTES ? MOST_PIECE_BYTES
                                                      : wanted;
    *out = packer;
    return KEEL_OK;
}

void keel_packer_add(keel_packer *packer, uint32_t number) {
    uint32_t *queue = realloc(packer->queue, (packer->queued + 1) * sizeof *queue);
    if (!queue) return; // it stays as it is
    packer->queue = queue;
    queue[packer->queued++] = number;
}

void keel_packer_advance(keel_packer *packer) {
    advance(packer, 0);
}

bool keel_packer_give_way(keel_packer *packer) {
    if (!packer->job) return false;
    keel_fail(KEEL_ERR_LIMIT, "%s: no space left to pack it", keel_pack_job_path(packer->job));
    give_up(packer);
    return true;
}

void keel_packer_close(keel_packer *packer, double seconds) {
    if (!packer) return;
    const double until = keel_seconds_now() + seconds;
    while (packer->job || packer->queued > 0) {
        const double left = until - keel_seconds_now();
        if (!(left > 0)) break;
        advance(packer, left);
    }
    if (packer->job) {
        keel_fail(KEEL_ERR_LIMIT, "%s: no more time to pack it", keel_pack_job_path(packer->job));
        give_up(packer);
    }
    keel_pack_worker_close(packer->worker);
    free(packer->queue);
    free(packer->directory);
    free(packer);
}
