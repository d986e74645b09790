#include <inttypes.h>
#include <stdlib.h>

#include "train/trainer_state.h"

static void print_bytes(size_t bytes, char *text, size_t size) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++) value /= 1024;
    snprintf(text, size, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

static void print_collectives(const keel_trainer *trainer, keel_collective_when when, FILE *out) {
    size_t bytes = 0, count = 0;
    char text[32];
    for (size_t i = 0; keel_collectives_get(trainer->collectives, i); i++) {
        const keel_collective *collective = keel_collectives_get(trainer->collectives, i);
        const keel_collective_plan *plan = &collective->plan;
        if (plan->when != when) continue;
        print_bytes(collective->bytes, text, sizeof text);
        fprintf(out, "  %-26s %-14s %12zu  %-8s %11s  %s (%d ranks)", plan->name, keel_collective_kind_name(plan->kind),
                plan->count, keel_dtype_name(plan->dtype), text, plan->comm->name, plan->comm->size);
        if (plan->precision != KEEL_FLOAT32)
            fprintf(out, ", rounded to %s as is each sum", keel_precision_name(plan->precision));
        fputc('\n', out);
        bytes += collective->bytes;
        count++;
    }
    print_bytes(bytes, text, sizeof text);
    fprintf(out, "  %zu collective%s, %s of each rank\n", count, count == 1 ? "" : "s", text);
}

// What is this rank's own.
static void print_part(const keel_trainer *trainer, FILE *out) {
    char model[32], grad[32], states[32];
    print_bytes(keel_model_bytes(trainer->model) + keel_pipeline_bytes(trainer->pipeline), model, sizeof model);
    print_bytes(keel_buckets_bytes(trainer->buckets), grad, sizeof grad);
    print_bytes(keel_optimizer_bytes(trainer->optimizer), states, sizeof states);
    fprintf(out, "memory of a rank: model and activations %s, gradients %s, optimizer %s\n", model, grad, states);
    if (keel_optimizer_disk(trainer->optimizer)) {
        print_bytes(keel_optimizer_disk(trainer->optimizer), states, sizeof states);
        fprintf(out, "optimizer.offload: %s more of its states in a file in %s\n", states,
                trainer->config->optimizer.offload.folder);
    }
    if (trainer->zero.shared)
        fprintf(out, "optimizer parallel: rank %d owns the states of %zu of %zu parameters\n", trainer->mesh.world.rank,
                trainer->zero.own_numel, keel_model_numel(trainer->model));
    if (trainer->mesh.world.size == 1) {
        fprintf(out, "\ncollectives: none, with one rank\n");
        return;
    }
    fprintf(out, "\ncollectives of every step, in order (name, operation, elements, dtype, bytes, communicator):\n");
    print_collectives(trainer, KEEL_EVERY_STEP, out);
    fprintf(out, "\ncollectives at the start:\n");
    print_collectives(trainer, KEEL_AT_START, out);
    fprintf(out, "\ncollectives of a checkpoint, for every window of its tensors:\n");
    print_collectives(trainer, KEEL_AT_CHECKPOINT, out);
    fprintf(out, "\ncollectives at the end:\n");
    print_collectives(trainer, KEEL_AT_END, out);
}

static void print_stage(const keel_trainer *trainer, FILE *out) {
    const keel_stage *stage = &trainer->stage;
    fprintf(out, "\nstage %" PRIu32 " of %" PRIu32 ", from 0: layers %zu to %zu\n", stage->index, stage->count,
            stage->first, stage->first + stage->layers - 1);
    keel_model_print(trainer->model, out);
    print_part(trainer, out);
}

// What stage INDEX prints goes to OUT of rank 0.
static keel_status bring_stage(const keel_trainer *trainer, uint32_t index, FILE *out) {
    char *text = NULL;
    size_t size;
    keel_status status = KEEL_OK;
    if (trainer->stage.index == index) {
        FILE *memory = open_memstream(&text, &size);
        if (memory) print_stage(trainer, memory);
        if (!memory || fclose(memory)) status = keel_fail(KEEL_ERR_MEMORY, "no memory for the structure of a stage");
    }
    status = keel_agree(&trainer->mesh.world, status);
    if (!status) status = keel_share_text(&trainer->mesh.pipeline, (int)index, &text);
    if (!status && trainer->mesh.world.rank == 0) fputs(text, out);
    free(text);
    return status;
}

keel_status keel_trainer_print_structure(const keel_trainer *trainer, FILE *out) {
    const keel_loader_plan *plan = &trainer->loader.plan;
    const bool first = trainer->mesh.world.rank == 0, whole = trainer->stage.count == 1;
    keel_status status = KEEL_OK;
    if (first && whole) keel_model_print(trainer->model, out);
    if (first)
        fprintf(out,
                "%smesh: data_parallel %" PRIu32 " x model_parallel %" PRIu32 " x pipeline_stage %" PRIu32
                ", expert_parallel %" PRIu32
                "\nstep: %zu micro-batches of %zu sequences of %zu tokens on each data-parallel rank\n",
                whole ? "\n" : "", trainer->mesh.dp, trainer->mesh.tp, trainer->mesh.pp, trainer->mesh.ep,
                plan->accumulation, plan->batch_size, plan->seq_length);
    if (first && whole) print_part(trainer, out);
    for (uint32_t i = 0; !whole && !status && i < trainer->stage.count; i++) status = bring_stage(trainer, i, out);
    return status;
}
