#include "tools/bench_overhead.h"

#include <inttypes.h>
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

// Blocks alternate: off (warm-up, not counted), then off, on, off, on, ..., off.
typedef struct blocks {
    const keel_bench_overhead_plan *plan;
    keel_probe *probe;
    keel_trainer *trainer;
    uint32_t done;           // blocks
    double began, cpu_began; // of the present block
    double *seconds, *cpu;   // [2 plan->blocks + 2]
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

static void after_step(void *context, const keel_step *step, double loss, double grad_norm, double lr, double speed,
                       double loss_scale) {
    (void)loss, (void)grad_norm, (void)lr, (void)speed, (void)loss_scale;
    blocks *b = context;
    if (step->step % b->plan->block_steps) return;
    if (!b->status) b->status = keel_probe_drain(b->probe);
    const double now = keel_seconds(), cpu = cpu_seconds();
    b->seconds[b->done] = (now - b->began) / b->plan->block_steps;
    b->cpu[b->done] = (cpu - b->cpu_began) / b->plan->block_steps;
    b->done++;
    if (b->done == 2 * b->plan->blocks + 2) keel_trainer_stop(b->trainer);
    keel_probe_set_paused(b->probe, !is_on(b->done));
    b->began = keel_seconds();
    b->cpu_began = cpu_seconds();
}

// Each block with the monitor on against the mean of its two neighbours without: a drift of the machine cancels.
static keel_status evaluate(const blocks *b, keel_bench_overhead_result *out) {
    const uint32_t n = b->plan->blocks;
    double *values = calloc(5 * ((size_t)n + 1), sizeof *values);
    if (!values) return keel_fail(KEEL_ERR_MEMORY, "no memory for the figures of %" PRIu32 " blocks", n);
    double *ratio = values, *on = ratio + n, *cpu_on = on + n, *off = cpu_on + n, *cpu_off = off + n + 1;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t block = 2 * i + 2;
        on[i] = b->seconds[block];
        cpu_on[i] = b->cpu[block];
        ratio[i] = on[i] / ((b->seconds[block - 1] + b->seconds[block + 1]) / 2);
    }
    for (uint32_t i = 0; i <= n; i++) {
        off[i] = b->seconds[2 * i + 1];
        cpu_off[i] = b->cpu[2 * i + 1];
    }
    out->overhead = keel_median(ratio, n) - 1;
    out->seconds_on = keel_median(on, n);
    out->seconds_off = keel_median(off, n + 1);
    out->cpu_seconds_on = keel_median(cpu_on, n);
    out->cpu_seconds_off = keel_median(cpu_off, n + 1);
    free(values);
    return KEEL_OK;
}

keel_status keel_bench_overhead(const keel_bench_overhead_plan *plan, keel_bench_overhead_result *out) {
    keel_assembly *assembly = NULL;
    blocks b = {.plan = plan};
    random_tokens source = {.seq_length = (size_t)plan->train->model.seq_length,
                            .vocab_size = (uint64_t)plan->train->model.vocab_size};
    const keel_sequences sequences = {
        .context = &source, .count = RANDOM_SEQUENCES, .identity = "random tokens", .read = read_random};

    b.seconds = calloc(2 * (size_t)plan->blocks + 2, sizeof *b.seconds);
    b.cpu = calloc(2 * (size_t)plan->blocks + 2, sizeof *b.cpu);
    keel_status status = b.seconds && b.cpu ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for the figures");
    if (!status) status = keel_assembly_open(&(keel_assembly_options){.config = plan->monitor}, &assembly);
    if (status) goto done;
    b.probe = keel_assembly_probe(assembly);
    status = keel_trainer_open_with(plan->train, &sequences, MPI_COMM_WORLD, b.probe, false,
                                    &(keel_trainer_report){.context = &b, .step = after_step}, &b.trainer);
    if (!status) status = keel_probe_start(b.probe);
    if (status) goto done;
    keel_probe_set_paused(b.probe, true);
    b.began = keel_seconds();
    b.cpu_began = cpu_seconds();
    status = keel_trainer_run(b.trainer);
    if (!status) status = b.status;
    if (!status) status = evaluate(&b, out);
done:
    keel_trainer_close(b.trainer);
    const keel_status closed = keel_assembly_close(assembly);
    free(b.seconds);
    free(b.cpu);
    return status ? status : closed;
}
