#include "tools/bench_store.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/helper_thread.h"
#include "collectors/store/reader.h"
#include "collectors/store/writer.h"
#include "tools/bench_median.h"

enum { ELEMENTS = 256, SCALARS = 4 };

typedef struct bench {
    uint32_t sites, steps, ops;
    char directory[4096];
    keel_run_info info;
    keel_site_info *table;
    keel_frame *frame;
    keel_row_buffer *row;
    float *weights; // [ELEMENTS], shared by all sites, each at its own scale
    double *row_ms, *fill_ms;
    uint64_t random;
} bench;

// Of a normal distribution, near enough: the sum of four uniform ones.
static float draw(bench *b) {
    b->random ^= b->random << 13;
    b->random ^= b->random >> 7;
    b->random ^= b->random << 17;
    const uint64_t r = b->random;
    const uint32_t sum =
        (uint32_t)(r & 0xffff) + (uint32_t)(r >> 16 & 0xffff) + (uint32_t)(r >> 32 & 0xffff) + (uint32_t)(r >> 48);
    return ((float)sum - 131070.0F) * (1.0F / 37837.0F);
}

static keel_status make(bench *b, uint32_t sites, uint32_t steps, const char *directory) {
    static const char *const names[SCALARS] = {"loss", "grad_norm", "lr", "step_seconds"};
    b->sites = sites;
    b->steps = steps;
    b->random = 0x9e3779b97f4a7c15;
    b->table = calloc(sites, sizeof *b->table);
    b->weights = calloc(ELEMENTS, sizeof *b->weights);
    b->row_ms = calloc(steps, sizeof *b->row_ms);
    b->fill_ms = calloc(steps, sizeof *b->fill_ms);
    const size_t bytes = (keel_frame_bytes(SCALARS, sites, 1, 0) + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    if (memory) b->frame = keel_frame_init(memory, SCALARS, sites, 1, 0);
    if (!b->table || !b->weights || !b->row_ms || !b->fill_ms || !b->frame)
        return keel_fail(KEEL_ERR_MEMORY, "no memory for a store of %u sites", sites);
    for (size_t i = 0; i < ELEMENTS; i++) b->weights[i] = 0.02F * draw(b);
    for (uint32_t s = 0; s < sites; s++) {
        b->table[s] = (keel_site_info){.id = s,
                                       .quantity = s % 2 ? KEEL_GRAD_REDUCED : KEEL_WEIGHT,
                                       .layer = (int32_t)(s / 16),
                                       .ndim = 1,
                                       .shape = {ELEMENTS},
                                       .numel = ELEMENTS,
                                       .replica_count = 1};
        snprintf(b->table[s].name, sizeof b->table[s].name, "layers.%u.tensor%u", s / 16, s % 16 / 2);
    }
    b->info = (keel_run_info){.run_id = "bench",
                              .world_size = 1,
                              .dp = 1,
                              .tp = 1,
                              .pp = 1,
                              .ep = 1,
                              .micro_count = 1,
                              .config_yaml = "",
                              .site_count = sites,
                              .sites = b->table,
                              .scalar_count = SCALARS,
                              .scalar_names = names};
    for (unsigned op = 0; op < KEEL_OP_COUNT; op++) {
        const uint32_t need = keel_op_get((keel_op)op)->fields;
        const bool of_ranks = op >= KEEL_OP_norm_low && op <= KEEL_OP_log_norm_std;
        b->info.op_stored[op] = !of_ranks && (need == KEEL_FIELDS_BASE || need == KEEL_FIELDS_FLAGS);
        b->ops += b->info.op_stored[op];
    }
    const int length = snprintf(b->directory, sizeof b->directory, "%s/keel-bench-store-%d", directory, (int)getpid());
    if (length < 0 || (size_t)length >= sizeof b->directory)
        return keel_fail(KEEL_ERR_USAGE, "%s: the name is too long", directory);
    return keel_row_buffer_open(&b->info, &b->row);
}

static void observe(bench *b, uint64_t step) {
    float values[ELEMENTS];
    keel_frame_clear(b->frame);
    b->frame->step = (keel_step){
        .step = step, .update = step, .samples = 4 * step, .time_unix = keel_unix_seconds_now(), .seconds = 0.5};
    keel_scalar_value *scalars = keel_frame_scalars(b->frame);
    for (int i = 0; i < SCALARS; i++) {
        scalars[i].value = 3 + 0.1 * (double)draw(b);
        scalars[i].owner = 0;
    }
    for (size_t i = 0; i < ELEMENTS; i++) b->weights[i] += 1e-4F * draw(b);
    for (uint32_t s = 0; s < b->sites; s++) {
        const float scale = ldexpf(1.0F + (float)(s % 97) / 97.0F, -(int)(s % 5));
        for (size_t i = 0; i < ELEMENTS; i++) values[i] = scale * (s % 2 ? 1e-3F * draw(b) : b->weights[i]);
        keel_stats *stats = &keel_frame_stats(b->frame)[s];
        keel_stats_observe(stats, &(keel_stats_params){.fields = KEEL_FIELDS_BASE, .eps = 1e-8, .scale = 1}, KEEL_F32,
                           values, ELEMENTS);
        keel_stats_seal_rank(stats, 0, 0, 1);
    }
}

static keel_status write_rows(bench *b, const keel_sink *sink, keel_bench_store_result *out) {
    double total = 0, worst = 0;
    for (uint32_t i = 0; i < b->steps; i++) {
        observe(b, i + 1);
        const double begin = keel_seconds_now();
        keel_row_buffer_fill(b->row, b->frame, NULL, 0);
        const double filled = keel_seconds_now();
        const keel_status status = sink->row(sink->context, keel_row_buffer_row(b->row));
        if (status) return status;
        b->fill_ms[i] = 1e3 * (filled - begin);
        b->row_ms[i] = 1e3 * (keel_seconds_now() - filled);
        total += b->row_ms[i];
        worst = fmax(worst, b->row_ms[i]);
    }
    out->row_ms_mean = total / b->steps;
    out->row_ms_worst = worst;
    out->row_ms_median = keel_median(b->row_ms, b->steps);
    out->fill_ms_median = keel_median(b->fill_ms, b->steps);
    out->us_per_site = 1e3 * out->row_ms_median / b->sites;
    return KEEL_OK;
}

static keel_status read_rows(const bench *b, keel_bench_store_result *out) {
    keel_store_reader *reader;
    keel_status status = keel_store_open(b->directory, &reader);
    if (status) return status;
    const double begin = keel_seconds_now();
    const keel_row *row = NULL;
    keel_store_position position;
    uint32_t rows = 0;
    while (!(status = keel_store_next(reader, &row, &position)) && row) rows++;
    out->read_rows_per_s = rows / (keel_seconds_now() - begin);
    keel_store_close(reader);
    return status;
}

// Bytes of the run's only segment.
static keel_status segment_bytes(const bench *b, double *bytes) {
    char path[4200];
    snprintf(path, sizeof path, "%s/keel-0000.h5", b->directory);
    struct stat file;
    if (stat(path, &file) != 0) return keel_fail(KEEL_ERR_IO, "%s: %s", path, strerror(errno));
    *bytes = (double)file.st_size;
    return KEEL_OK;
}

static keel_status measure(bench *b, keel_bench_store_result *out) {
    const double values = (double)b->sites * b->ops * b->steps;
    keel_sink sink;
    const keel_store_options options = {.segment_bytes = UINT64_MAX, .pack_seconds = 3600};
    keel_status status = keel_store_sink_open(b->directory, &options, &sink);
    if (status) return status;
    double live = 0, packed = 0;
    status = sink.start(sink.context, &b->info);
    if (!status) status = write_rows(b, &sink, out);
    if (!status) status = sink.flush(sink.context);
    if (!status) status = segment_bytes(b, &live);
    const double begin = keel_seconds_now();
    sink.close(sink.context);
    out->pack_mb_per_s = 1e-6 * live / (keel_seconds_now() - begin);
    if (!status) status = segment_bytes(b, &packed);
    if (!status) status = read_rows(b, out);
    out->live_bytes_per_value = live / values;
    out->packed_bytes_per_value = packed / values;
    out->bytes_per_site = live / b->sites / b->steps;
    return status;
}

static void clean(bench *b) {
    DIR *dir = opendir(b->directory);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir) closedir(dir);
    rmdir(b->directory);
    keel_row_buffer_close(b->row);
    free(b->frame);
    free(b->table);
    free(b->weights);
    free(b->row_ms);
    free(b->fill_ms);
}

keel_status keel_bench_store(uint32_t sites, uint32_t steps, const char *directory, keel_bench_store_result *out) {
    if (sites == 0 || steps == 0) return keel_fail(KEEL_ERR_USAGE, "a store of %u sites and %u steps", sites, steps);
    bench b = {0};
    keel_bench_store_result result = {.sites = sites, .steps = steps};
    keel_status status = make(&b, sites, steps, directory);
    if (!status) status = measure(&b, &result);
    clean(&b);
    if (status) return status;
    result.ops = b.ops;
    *out = result;
    return KEEL_OK;
}
