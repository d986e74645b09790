#include "collectors/store/pack_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>

#include "collectors/helper_thread.h"
#include "collectors/store/checksum.h"

enum { LOWEST_PRIORITY = 19 };

struct keel_pack_worker {
    pthread_t thread;
    sem_t work, done;
    atomic_bool stop;
    keel_pack_piece pieces[KEEL_PACK_PIECES];
    unsigned char *shuffled;              // one chunk; the thread's
    uint64_t started, finished, released; // pieces; the caller's
};

// Columns of the chunk that begins at column BEGIN.
static size_t chunk_width(const keel_pack_piece *piece, size_t begin) {
    return piece->columns - begin < piece->chunk_columns ? piece->columns - begin : piece->chunk_columns;
}

// The chunk at column BEGIN. Elements that the dataset does not have are 0.
static void gather(const keel_pack_piece *piece, size_t begin, unsigned char *out, size_t chunk_bytes) {
    const size_t bytes = piece->element_bytes, width = chunk_width(piece, begin);
    memset(out, 0, chunk_bytes);
    for (size_t line = 0; line < piece->rows * piece->micros; line++)
        memcpy(out + line * piece->chunk_columns * bytes, piece->raw + (line * piece->columns + begin) * bytes,
               width * bytes);
}

// The same, its bytes sorted by their place in the element: what HDF5's shuffle filter does.
static void shuffle(const keel_pack_piece *piece, size_t begin, unsigned char *out, size_t chunk_bytes) {
    const size_t bytes = piece->element_bytes, width = chunk_width(piece, begin);
    const size_t elements = chunk_bytes / bytes;
    if (piece->rows < piece->chunk_rows || width < piece->chunk_columns) memset(out, 0, chunk_bytes);
    for (size_t line = 0; line < piece->rows * piece->micros; line++) {
        const unsigned char *from = piece->raw + (line * piece->columns + begin) * bytes;
        unsigned char *to = out + line * piece->chunk_columns;
        for (size_t b = 0; b < bytes; b++)
            for (size_t c = 0; c < width; c++) to[b * elements + c] = from[c * bytes + b];
    }
}

// The chunk at column BEGIN without its checksum, at OUT. *BYTES: its length; *PLAIN: shuffled only. False without
// memory.
static bool pack_chunk(const keel_pack_piece *piece, size_t begin, unsigned char *shuffled, size_t chunk_bytes,
                       unsigned char *out, size_t *bytes, bool *plain) {
    *bytes = chunk_bytes;
    *plain = false;
    if (piece->as_is) {
        gather(piece, begin, out, chunk_bytes);
        return true;
    }
    shuffle(piece, begin, shuffled, chunk_bytes);
    uLongf packed = chunk_bytes; // no more: what grows is kept as it is
    const int result = compress2(out, &packed, shuffled, chunk_bytes, KEEL_DEFLATE_LEVEL);
    *plain = result == Z_BUF_ERROR;
    if (*plain)
        memcpy(out, shuffled, chunk_bytes);
    else
        *bytes = packed;
    return *plain || result == Z_OK;
}

static void compress_piece(keel_pack_piece *piece, unsigned char *shuffled) {
    const size_t chunk_bytes = piece->chunk_rows * piece->micros * piece->chunk_columns * piece->element_bytes;
    size_t offset = 0, i = 0;
    piece->error = 0;
    for (size_t begin = 0; begin < piece->columns && !piece->error; begin += piece->chunk_columns, i++) {
        piece->offsets[i] = offset;
        unsigned char *out = piece->packed + offset;
        if (!pack_chunk(piece, begin, shuffled, chunk_bytes, out, &piece->bytes[i], &piece->plain[i]))
            piece->error = ENOMEM;
        else
            keel_chunk_checksum(out, piece->bytes[i], out + piece->bytes[i]);
        piece->bytes[i] += KEEL_CHUNK_CHECKSUM_BYTES;
        offset += piece->bytes[i];
    }
    piece->chunk_count = i;
}

// On disk before it takes the place of one that may be.
static void publish(keel_pack_piece *piece) {
    const int fd = open(piece->from, O_RDONLY | O_CLOEXEC);
    const bool durable = fd >= 0 && fsync(fd) == 0;
    piece->error = durable && rename(piece->from, piece->to) == 0 ? 0 : errno;
    if (fd >= 0) close(fd);
}

static void *run(void *context) {
    keel_pack_worker *worker = context;
    setpriority(PRIO_PROCESS, (id_t)gettid(), LOWEST_PRIORITY); // of this thread alone, on Linux
    for (uint64_t next = 0;; next++) {
        keel_semaphore_wait(&worker->work);
        if (atomic_load(&worker->stop)) return NULL;
        keel_pack_piece *piece = &worker->pieces[next % KEEL_PACK_PIECES];
        if (piece->rows > 0)
            compress_piece(piece, worker->shuffled);
        else
            publish(piece);
        sem_post(&worker->done);
    }
}

static void free_worker(keel_pack_worker *worker) {
    for (int i = 0; i < KEEL_PACK_PIECES; i++) {
        keel_pack_piece *piece = &worker->pieces[i];
        free(piece->raw);
        free(piece->packed);
        free(piece->offsets);
        free(piece->bytes);
        free(piece->plain);
    }
    free(worker->shuffled);
    sem_destroy(&worker->work);
    sem_destroy(&worker->done);
    free(worker);
}

keel_status keel_pack_worker_open(size_t raw_bytes, size_t most_chunks, keel_pack_worker **out) {
    keel_pack_worker *worker = calloc(1, sizeof *worker);
    if (!worker) return keel_fail(KEEL_ERR_MEMORY, "no memory to pack segments");
    sem_init(&worker->work, 0, 0);
    sem_init(&worker->done, 0, 0);
    worker->shuffled = malloc(raw_bytes);
    bool complete = worker->shuffled != NULL;
    for (int i = 0; i < KEEL_PACK_PIECES; i++) {
        keel_pack_piece *piece = &worker->pieces[i];
        piece->raw = malloc(raw_bytes);
        piece->packed = malloc(raw_bytes + most_chunks * KEEL_CHUNK_CHECKSUM_BYTES);
        piece->offsets = calloc(most_chunks, sizeof *piece->offsets);
        piece->bytes = calloc(most_chunks, sizeof *piece->bytes);
        piece->plain = calloc(most_chunks, sizeof *piece->plain);
        complete = complete && piece->raw && piece->packed && piece->offsets && piece->bytes && piece->plain;
    }
    const keel_status status = complete ? keel_thread_start(&worker->thread, "keel-packer", run, worker)
                                        : keel_fail(KEEL_ERR_MEMORY, "no memory to pack segments");
    if (status) {
        free_worker(worker);
        return status;
    }
    *out = worker;
    return KEEL_OK;
}

keel_pack_piece *keel_pack_worker_free(keel_pack_worker *worker) {
    if (worker->started - worker->released == KEEL_PACK_PIECES) return NULL;
    return &worker->pieces[worker->started % KEEL_PACK_PIECES];
}

void keel_pack_worker_start(keel_pack_worker *worker) {
    worker->started++;
    sem_post(&worker->work);
}

keel_pack_piece *keel_pack_worker_done(keel_pack_worker *worker, double seconds) {
    if (worker->finished == worker->started || !keel_semaphore_wait_for(&worker->done, seconds)) return NULL;
    return &worker->pieces[worker->finished++ % KEEL_PACK_PIECES];
}

void keel_pack_worker_release(keel_pack_worker *worker) {
    worker->released++;
}

bool keel_pack_worker_idle(const keel_pack_worker *worker) {
    return worker->started == worker->released;
}

void keel_pack_worker_close(keel_pack_worker *worker) {
    if (!worker) return;
    atomic_store(&worker->stop, true);
    sem_post(&worker->work);
    pthread_join(worker->thread, NULL);
    free_worker(worker);
}
