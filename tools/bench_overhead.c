#include "tools/bench_overhead.h"

#include <mpi.h>
#include <stdlib.h>
#include <time.h>

#include "tools/assemble.h"
#include "tools/bench_median.h"
#include "train/clock.h"
#include "train/mix.h"
#include "train/trainer.h"

enum { RANDOM_SEQUENCES = 4096 };

typedef struct random_tokens {
    size_t seq_length;
    uint64_t vocab_size;
} random_tokens;

static keel_status read_random(void *context, uint64_t index, uint32_t *tokens) {
    const random_tokens *source = context;
    for (size_t i = 0; i <= source->seq_length; i++) tokens[i] = (uint32_t)(keel_mix(index, i) % source->vocab_size);
    return KEEL_OK;
}

// What is measured of a block.
enum { SECONDS, CPU, PARTS, MEASURES = PARTS + KEEL_TRAINER_PART_COUNT };

// Blocks alternate: off (warm-up, not counted), then off, on, off, on, ..., off.
typedef struct blocks {
    const keel_bench_overhead_plan *plan;
    keel_probe *probe;
    keel_trainer *trainer;
    uint32_t done;           // blocks
    double began[MEASURES];  // at the start of the present block
    double *taken[MEASURES]; // [2 plan->blocks + 2] per step
    keel_status status;
} blocks;

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool is_on(uint32_t block) {
    return block >= 1 && block % 2 == 0;
}

static void read_clocks(const keel_trainer *trainer, double now[MEASURES]) {
    now[SECONDS] = keel_seconds();
    now[CPU] = cpu_seconds();
    keel_trainer_seconds(trainer, now + PARTS);
}

static void after_step(void *context, const keel_step *step, double loss, double grad_norm, double lr, double speed,
                       double loss_scale) {
    (void)loss, (void)grad_norm, (void)lr, (void)speed, (void)loss_scale;
    blocks *b = context;
    if (step->step % b->plan->block_steps) return;
    if (!b->status) b->status = keel_probe_drain(b->probe);
    double now[MEASURES];
    read_clocks(b->trainer, now);
    for (int m = 0; m < MEASURES; m++) b->taken[m][b->done] = (now[m] - b->began[m]) / b->plan->block_steps;
    b->done++;
    if (b->done == 2 * b->plan->blocks + 2) keel_trainer_stop(b->trainer);
    keel_probe_set_paused(b->probe, !is_on(b->done));
    read_clocks(b->trainer, b->began);
}

// Of the blocks with the monitor (ON), or of those without that count; SCRATCH [n + 1].
static double median_of(const double *taken, uint32_t n, bool on, double *scratch) {
    const uint32_t count = on ? n : n + 1;
    for (uint32_t i = 0; i < count; i++) scratch[i] = taken[2 * i + (on ? 2 : 1)];
    return keel_median(scratch, count);
}

// The median of what a block with the monitor takes more than the mean of its two neighbours without, so that a drift
// of the machine cancels; RELATIVE: to that mean.
static double median_added(const double *taken, uint32_t n, bool relative, double *scratch) {
    for (uint32_t i = 0; i < n; i++) {
        const double *on = &taken[2 * i + 2], off = (on[-1] + on[1]) / 2;
        scratch[i] = (*on - off) / (relative ? off : 1);
    }
    return keel_median(scratch, n);
}

static void evaluate(const blocks *b, double *scratch, keel_bench_overhead_result *out) {
    const uint32_t n = b->plan->blocks;
    out->overhead = median_added(b->taken[SECONDS], n, true, scratch);
    out->seconds_on = median_of(b->taken[SECONDS], n, true, scratch);
    out->seconds_off = median_of(b->taken[SECONDS], n, false, scratch);
    out->cpu_seconds_on = median_of(b->taken[CPU], n, true, scratch);
    out->cpu_seconds_off = median_of(b->taken[CPU], n, false, scratch);
    for (int p = 0; p < KEEL_TRAINER_PART_COUNT; p++) {
        out->part_off[p] = median_of(b->taken[PARTS + p], n, false, scratch);
        out->part_added[p] = median_added(b->taken[PARTS + p], n, false, scratch);
    }
}

keel_status keel_bench_overhead(const keel_bench_overhead_plan *plan, keel_bench_overhead_result *out) {
    keel_assembly *assembly = NULL;
    blocks b = {.plan = plan};
    random_tokens source = {.seq_length = (size_t)plan->train->model.seq_length,
                            .vocab_size = (uint64_t)plan->train->model.vocab_size};
    const keel_sequences sequences = {
        .context = &source, .count = RANDOM_SEQUENCES, .identity = "random tokens", .read = read_random};

    const size_t count = 2 * (size_t)plan->blocks + 2;
    double *memory = calloc(MEASURES + 1, count * sizeof *memory), *scratch = memory;
    for (size_t m = 0; memory && m < MEASURES; m++) b.taken[m] = memory + (m + 1) * count;
    keel_status status = memory ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for the figures");
    if (!status) status = keel_assembly_open(&(keel_assembly_options){.config = plan->monitor}, &assembly);
    if (status) goto done;
    b.probe = keel_assembly_probe(assembly);
    status = keel_trainer_open_with(plan->train, &sequences, MPI_COMM_WORLD, b.probe, false,
                                    &(keel_trainer_report){.context = &b, .step = after_step}, &b.trainer);
    if (!status) status = keel_probe_start(b.probe);
    if (status) goto done;
    keel_probe_set_paused(b.probe, true);
    read_clocks(b.trainer, b.began);
    status = keel_trainer_run(b.trainer);
    if (!status) status = b.status;
    if (!status) evaluate(&b, scratch, out);
done:
    keel_trainer_close(b.trainer);
    const keel_status closed = keel_assembly_close(assembly);
    free(memory);
    return status ? status : closed;
}
