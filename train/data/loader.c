#include "train/data/loader.h"

#include <inttypes.h>
#include <stdlib.h>

#include "train/data/shards.h"
#include "train/mix.h"

typedef struct shard_sequences {
    keel_shards *shards;
    size_t seq_length;
} shard_sequences;

static keel_status read_shard_sequence(void *context, uint64_t index, uint32_t *tokens) {
    const shard_sequences *data = context;
    return keel_shards_read(data->shards, index * data->seq_length, data->seq_length + 1, tokens);
}

static void close_shard_sequences(void *context) {
    shard_sequences *data = context;
    keel_shards_close(data->shards);
    free(data);
}

keel_status keel_sequences_open_shards(const char *folder, size_t seq_length, uint64_t vocab_size,
                                       keel_sequences *sequences) {
    shard_sequences *data = malloc(sizeof *data);
    if (!data) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", folder);
    *data = (shard_sequences){.seq_length = seq_length};
    keel_status status = keel_shards_open(folder, &data->shards);
    if (!status && keel_shards_vocab_size(data->shards) > vocab_size)
        status =
            keel_fail(KEEL_ERR_CONFIG, "model_config.vocab_size: %" PRIu64 ", but the tokens of %s go up to %" PRIu32,
                      vocab_size, folder, keel_shards_vocab_size(data->shards) - 1);
    if (status) {
        close_shard_sequences(data);
        return status;
    }
    *sequences = (keel_sequences){.context = data,
                                  .count = (keel_shards_tokens(data->shards) - 1) / seq_length,
                                  .identity = keel_shards_identity(data->shards),
                                  .read = read_shard_sequence,
                                  .close = close_shard_sequences};
    return KEEL_OK;
}

void keel_sequences_close(keel_sequences *sequences) {
    if (sequences->close) sequences->close(sequences->context);
    *sequences = (keel_sequences){0};
}

keel_status keel_loader_init(const keel_loader_plan *plan, keel_loader *loader) {
    const uint64_t step = (uint64_t)plan->batch_size * plan->accumulation * plan->dp_size;
    const uint64_t count = plan->sequences->count;
    if (count < step)
        return keel_fail(KEEL_ERR_CONFIG,
                         "train_dataset: too little text: %" PRIu64
                         " sequences of %zu tokens, but a step takes %" PRIu64
                         " (batch_size %zu x %zu micro-batches x %" PRIu32 " data-parallel ranks)",
                         count, plan->seq_length, step, plan->batch_size, plan->accumulation, plan->dp_size);
    *loader = (keel_loader){.plan = *plan};
    return KEEL_OK;
}

// A bijection of [0, 2^(2 half)).
static uint64_t feistel(uint64_t key, unsigned half, uint64_t value) {
    enum { ROUNDS = 6 };
    const uint64_t mask = (UINT64_C(1) << half) - 1;
    uint64_t left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        const uint64_t next = left ^ (keel_mix(key, round << 32 ^ right) & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

uint64_t keel_loader_sequence(uint64_t seed, uint64_t count, uint64_t position) {
    const uint64_t epoch = position / count, key = keel_mix(seed, epoch);
    unsigned half = 1;
    while (half < 31 && UINT64_C(1) << 2 * half < count) half++;
    uint64_t value = position % count;
    do value = feistel(key, half, value);
    while (value >= count);
    return value;
}

keel_status keel_loader_next(keel_loader *loader, uint32_t *tokens) {
    const keel_loader_plan *plan = &loader->plan;
    const uint64_t count = plan->sequences->count;
    uint64_t sample = loader->position + (uint64_t)plan->dp_rank * plan->batch_size;
    loader->position += (uint64_t)plan->dp_size * plan->batch_size;
    for (size_t i = 0; i < plan->batch_size; i++, sample++) {
        const uint64_t index = plan->shuffle ? keel_loader_sequence(plan->seed, count, sample) : sample % count;
        const keel_status status =
            plan->sequences->read(plan->sequences->context, index, tokens + i * (plan->seq_length + 1));
        if (status) return status;
    }
    return KEEL_OK;
}

uint64_t keel_loader_batch(const keel_loader *loader) {
    return loader->position / ((uint64_t)loader->plan.dp_size * loader->plan.batch_size);
}

bool keel_loader_at_epoch(const keel_loader *loader) {
    const uint64_t count = loader->plan.sequences->count;
    const uint64_t step = (uint64_t)loader->plan.batch_size * loader->plan.accumulation * loader->plan.dp_size;
    const uint64_t first = (loader->position + count - 1) / count * count; // the next border, from here on
    return first < loader->position + step;
}
