// Faults of the data.
#include "train/faults/faults.h"
#include "train/mix.h"

void keel_faults_move_loader(const keel_faults *faults, uint64_t step, keel_loader *loader) {
    const keel_loader_plan *plan = &loader->plan;
    const uint64_t samples = (uint64_t)plan->dp_size * plan->batch_size * plan->accumulation;
    for (size_t i = 0; i < faults->config->fault_count; i++) {
        const keel_fault_config *fault = &faults->config->faults[i];
        // All ranks alike: a loader that stands still, not one that has lost its place.
        if (fault->kind == KEEL_FAULT_REPEAT_BATCH && keel_fault_due(fault, step) && loader->position >= samples)
            loader->position -= samples;
    }
}

static bool spoils(const keel_fault_config *fault) {
    return fault->kind == KEEL_FAULT_GARBAGE_BATCH || fault->kind == KEEL_FAULT_CORRUPT_DATA;
}

// The batch of a rank is that of all ranks with the same place among the data-parallel ones: they go wrong together.
static bool concerns_shard(const keel_faults *faults, const keel_fault_config *fault) {
    const keel_mesh *mesh = faults->mesh;
    return fault->rank < 0 || (uint64_t)fault->rank / mesh->tp % mesh->dp == faults->shard;
}

void keel_faults_spoil_batch(const keel_faults *faults, uint64_t step, size_t micro, uint32_t *tokens) {
    const keel_train_config *config = faults->config;
    const size_t count = (size_t)(config->runner.batch_size * (config->model.seq_length + 1));
    for (size_t f = 0; f < config->fault_count; f++) {
        const keel_fault_config *fault = &config->faults[f];
        if (!spoils(fault) || !keel_fault_due(fault, step) || !concerns_shard(faults, fault)) continue;
        const uint64_t key =
            keel_mix(keel_mix((uint64_t)config->runner.seed, step), (uint64_t)faults->shard << 32 | micro);
        for (size_t i = 0; i < count; i++) {
            const uint64_t random = keel_mix(key, i);
            if ((double)(keel_mix(random, i) >> 11) * 0x1p-53 < fault->share)
                tokens[i] = (uint32_t)(random % (uint64_t)config->model.vocab_size);
        }
    }
}
