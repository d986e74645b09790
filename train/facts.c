#include "train/facts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

static char *next(keel_facts *facts, const char *key, bool required) {
    keel_fact *fact = &facts->list[facts->count++];
    *fact = (keel_fact){.key = key, .required = required};
    return fact->value;
}

static void add_int(keel_facts *facts, const char *key, bool required, int64_t value) {
    snprintf(next(facts, key, required), KEEL_FACT_BYTES, "%" PRId64, value);
}

static void add_double(keel_facts *facts, const char *key, bool required, double value) {
    snprintf(next(facts, key, required), KEEL_FACT_BYTES, "%.17g", value);
}

static void add_text(keel_facts *facts, const char *key, bool required, const char *value) {
    snprintf(next(facts, key, required), KEEL_FACT_BYTES, "%s", value);
}

static void add_precision(keel_facts *facts, const char *key, int precision) {
    add_text(facts, key, false, keel_precision_name((keel_precision)precision));
}

static void add_loss_scale(keel_facts *facts, const keel_loss_scale_config *scale) {
    char *text = next(facts, "runner_wrapper.scale_sense", false);
    if (scale->type == KEEL_LOSS_SCALE_DYNAMIC)
        snprintf(text, KEEL_FACT_BYTES, "dynamic from %.17g by %.6g every %" PRId64, scale->loss_scale_value,
                 scale->scale_factor, scale->scale_window);
    else if (scale->type == KEEL_LOSS_SCALE_FIXED)
        snprintf(text, KEEL_FACT_BYTES, "%.17g", scale->loss_scale_value);
    else
        snprintf(text, KEEL_FACT_BYTES, "none");
}

static void add_groups(keel_facts *facts, const keel_optimizer_config *optimizer) {
    uLong crc = crc32(0, NULL, 0);
    for (size_t i = 0; i < optimizer->group_count; i++) {
        const keel_param_group_config *group = &optimizer->groups[i];
        char numbers[128];
        snprintf(numbers, sizeof numbers, "%.17g %.17g %.17g", group->lr_scale, group->weight_decay,
                 group->max_grad_norm);
        crc = crc32(crc, (const Bytef *)group->params, (uInt)strlen(group->params) + 1);
        crc = crc32(crc, (const Bytef *)numbers, (uInt)strlen(numbers) + 1);
    }
    snprintf(next(facts, "optimizer.groups", false), KEEL_FACT_BYTES, "%zu groups, crc %08lx", optimizer->group_count,
             crc);
}

static void add_experts(keel_facts *facts, const keel_moe_config *moe) {
    add_int(facts, "moe_config.expert_num", true, moe->expert_num > 1 ? moe->expert_num : 1);
    facts->list[facts->count - 1].absent = "1";
    if (moe->expert_num <= 1) return;
    add_int(facts, "moe_config.num_experts_chosen", true, moe->num_experts_chosen);
    add_int(facts, "moe_config.norm_topk_prob", true, moe->norm_topk_prob);
    add_double(facts, "moe_config.capacity_factor", false, moe->capacity_factor > 0 ? moe->capacity_factor : 0);
    add_double(facts, "moe_config.aux_loss_factor", false, moe->aux_loss_factor);
    add_double(facts, "moe_config.z_loss_factor", false, moe->z_loss_factor);
}

void keel_facts_of(const keel_train_config *config, const char *data, uint32_t ranks, keel_facts *facts) {
    static const char *const model_names[] = {[KEEL_MODEL_GPT2] = "gpt2", [KEEL_MODEL_LLAMA] = "llama"};
    static const char *const lr_names[] = {
        [KEEL_LR_CONSTANT] = "constant", [KEEL_LR_LINEAR] = "linear", [KEEL_LR_COSINE] = "cosine"};
    const keel_model_config *model = &config->model;
    facts->count = 0;
    add_text(facts, "model_config.model_type", true, model_names[model->model_type]);
    add_int(facts, "model_config.vocab_size", true, model->vocab_size);
    add_int(facts, "model_config.seq_length", true, model->seq_length);
    add_int(facts, "model_config.hidden_size", true, model->hidden_size);
    add_int(facts, "model_config.num_layers", true, model->num_layers);
    add_int(facts, "model_config.num_heads", true, model->num_heads);
    add_int(facts, "model_config.n_kv_heads", true, model->n_kv_heads);
    add_int(facts, "model_config.intermediate_size", true, model->intermediate_size);
    add_int(facts, "model_config.max_position_embeddings", true, model->max_position_embeddings);
    add_int(facts, "model_config.tie_word_embeddings", true, model->tie_word_embeddings);
    if (model->model_type == KEEL_MODEL_GPT2) {
        add_double(facts, "model_config.layer_norm_epsilon", true, model->layer_norm_epsilon);
    } else {
        add_double(facts, "model_config.rms_norm_eps", true, model->rms_norm_eps);
        add_double(facts, "model_config.theta", true, model->theta);
    }
    add_experts(facts, &model->moe);

    add_precision(facts, "model_config.compute_dtype", model->compute_dtype);
    add_precision(facts, "model_config.softmax_compute_dtype", model->softmax_compute_dtype);
    add_precision(facts, "model_config.layernorm_compute_dtype", model->layernorm_compute_dtype);
    add_precision(facts, "model_config.loss_compute_dtype", model->loss_compute_dtype);
    add_precision(facts, "model_config.attention_value_dtype", model->attention_value_dtype);
    add_precision(facts, "model_config.embedding_compute_dtype", model->embedding_compute_dtype);
    add_precision(facts, "model_config.head_compute_dtype", model->head_compute_dtype);

    add_int(facts, "runner_config.seed", false, config->runner.seed);
    add_int(facts, "runner_config.batch_size", false, config->runner.batch_size);
    add_int(facts, "micro_batches", false, (int64_t)keel_train_micro_batches(config));
    add_double(facts, "runner_wrapper.max_grad_norm", false,
               config->wrapper.use_clip_grad ? config->wrapper.max_grad_norm : 0);
    add_loss_scale(facts, &config->wrapper.scale_sense);
    add_double(facts, "optimizer.betas.0", false, config->optimizer.beta1);
    add_double(facts, "optimizer.betas.1", false, config->optimizer.beta2);
    add_double(facts, "optimizer.eps", false, config->optimizer.eps);
    add_double(facts, "optimizer.weight_decay", false, config->optimizer.weight_decay);
    add_groups(facts, &config->optimizer);
    add_text(facts, "lr_schedule.type", false, lr_names[config->lr.type]);
    add_double(facts, "lr_schedule.learning_rate", false, config->lr.learning_rate);
    add_double(facts, "lr_schedule.lr_end", false, config->lr.lr_end);
    add_int(facts, "lr_schedule.warmup_steps", false, config->lr.warmup_steps);
    add_int(facts, "lr_schedule.total_steps", false, config->lr.total_steps);
    add_int(facts, "parallel_config.data_parallel", false, ranks);
    add_int(facts, "parallel_config.model_parallel", false, config->parallel.model_parallel);
    add_int(facts, "parallel_config.pipeline_stage", false, config->parallel.pipeline_stage);
    add_int(facts, "parallel_config.expert_parallel", false, config->parallel.expert_parallel);
    add_int(facts, "parallel_config.use_seq_parallel", false, config->parallel.use_seq_parallel);
    add_int(facts, "parallel_config.enable_parallel_optimizer", false, config->parallel.enable_parallel_optimizer);
    add_int(facts, "parallel_config.bucket_bytes", false, config->parallel.bucket_bytes);
    add_precision(facts, "parallel_config.grad_reduce_dtype", config->parallel.grad_reduce_dtype);
    add_int(facts, "train_dataset.shuffle", false, config->dataset.shuffle);
    add_text(facts, "train_dataset", false, data);
}
