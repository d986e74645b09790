#include "configs/train_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

// INT bounds: as large as a double tells apart.
#define MANY 0x1p53

enum { UNSET = -1 };

static const char *const model_names[] = {"gpt2", "llama", NULL};
static const char *const optimizer_names[] = {"AdamW", NULL};
static const char *const lr_names[] = {"constant", "linear", "cosine", NULL};

static const char *const precision_names[] = {[KEEL_FLOAT32] = "float32",
                                              [KEEL_BFLOAT16] = "bfloat16",
                                              [KEEL_FLOAT16] = "float16",
                                              [KEEL_PRECISION_COUNT] = NULL};
static const char *const loss_scale_names[] = {"none", [KEEL_LOSS_SCALE_FIXED] = "FixedLossScaleUpdateCell",
                                               [KEEL_LOSS_SCALE_DYNAMIC] = "DynamicLossScaleUpdateCell", NULL};

static const keel_yaml_field top_fields[] = {
    KEEL_TRAIN_SECTION_ROWS,
    KEEL_YAML_ROW_NODE(keel_train_config, monitor),
};

static const keel_yaml_field runner_fields[] = {
    KEEL_YAML_ROW_INT(keel_runner_config, steps, 1, MANY),
    KEEL_YAML_ROW_INT(keel_runner_config, batch_size, 1, 1 << 20),
    KEEL_YAML_ROW_INT(keel_runner_config, gradient_accumulation_steps, 1, 1 << 20),
    KEEL_YAML_ROW_INT(keel_runner_config, seed, 0, MANY),
    KEEL_YAML_ROW_STRING(keel_runner_config, output_dir),
    KEEL_YAML_ROW_INT(keel_runner_config, log_interval, 1, MANY),
    KEEL_YAML_ROW_INT(keel_runner_config, stop_after_skipped, 1, MANY),
};

// Scales whose reciprocal is a normal float32.
#define SCALE_LEAST 1
#define SCALE_MOST  0x1p64
static const keel_yaml_field loss_scale_fields[] = {
    KEEL_YAML_ROW_ENUM(keel_loss_scale_config, type, loss_scale_names),
    KEEL_YAML_ROW_DOUBLE(keel_loss_scale_config, loss_scale_value, SCALE_LEAST, SCALE_MOST),
    KEEL_YAML_ROW_DOUBLE(keel_loss_scale_config, scale_factor, 1.01, 0x1p16),
    KEEL_YAML_ROW_INT(keel_loss_scale_config, scale_window, 1, MANY),
};

#define WRAPPER_ROWS                                                                                                   \
    KEEL_YAML_ROW_BOOL(keel_wrapper_config, use_clip_grad),                                                            \
        KEEL_YAML_ROW_DOUBLE(keel_wrapper_config, max_grad_norm, KEEL_YAML_POSITIVE, KEEL_YAML_FINITE)
static const keel_yaml_field wrapper_fields[] = {WRAPPER_ROWS, KEEL_YAML_ROW_SECTION(scale_sense)};
static const keel_yaml_field wrapper_fields_fixed[] = {
    // scale_sense: 1024
    WRAPPER_ROWS,
    {.key = "scale_sense",
     .type = KEEL_YAML_DOUBLE,
     .offset = offsetof(keel_wrapper_config, scale_sense.loss_scale_value),
     .min = SCALE_LEAST,
     .max = SCALE_MOST},
};

static const keel_yaml_field model_fields[] = {
    KEEL_YAML_ROW_ENUM(keel_model_config, model_type, model_names),
    KEEL_YAML_ROW_INT(keel_model_config, vocab_size, 1, INT32_MAX),
    KEEL_YAML_ROW_INT(keel_model_config, seq_length, 1, 1 << 24),
    KEEL_YAML_ROW_INT(keel_model_config, max_position_embeddings, 1, 1 << 24),
    KEEL_YAML_ROW_INT(keel_model_config, hidden_size, 1, 1 << 20),
    KEEL_YAML_ROW_INT(keel_model_config, num_layers, 1, 10000),
    KEEL_YAML_ROW_INT(keel_model_config, num_heads, 1, 1 << 20),
    KEEL_YAML_ROW_INT(keel_model_config, n_kv_heads, 1, 1 << 20),
    KEEL_YAML_ROW_INT(keel_model_config, intermediate_size, 1, 1 << 24),
    KEEL_YAML_ROW_DOUBLE(keel_model_config, layer_norm_epsilon, KEEL_YAML_POSITIVE, 1),
    KEEL_YAML_ROW_DOUBLE(keel_model_config, rms_norm_eps, KEEL_YAML_POSITIVE, 1),
    KEEL_YAML_ROW_DOUBLE(keel_model_config, theta, 1, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_BOOL(keel_model_config, tie_word_embeddings),
    KEEL_YAML_ROW_DOUBLE(keel_model_config, initializer_range, KEEL_YAML_POSITIVE, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_STRING(keel_model_config, checkpoint_name_or_path),
    KEEL_YAML_ROW_ENUM(keel_model_config, compute_dtype, precision_names),
    KEEL_YAML_ROW_ENUM(keel_model_config, softmax_compute_dtype, precision_names),
    KEEL_YAML_ROW_ENUM(keel_model_config, layernorm_compute_dtype, precision_names),
    KEEL_YAML_ROW_ENUM(keel_model_config, loss_compute_dtype, precision_names),
    KEEL_YAML_ROW_ENUM(keel_model_config, attention_value_dtype, precision_names),
    KEEL_YAML_ROW_ENUM(keel_model_config, embedding_compute_dtype, precision_names),
    KEEL_YAML_ROW_ENUM(keel_model_config, head_compute_dtype, precision_names),
};

static const keel_yaml_field moe_fields[] = {
    KEEL_YAML_ROW_INT(keel_moe_config, expert_num, 1, 1 << 16),
    KEEL_YAML_ROW_INT(keel_moe_config, num_experts_chosen, 1, 1 << 16),
    KEEL_YAML_ROW_DOUBLE(keel_moe_config, capacity_factor, -MANY, MANY),
    KEEL_YAML_ROW_DOUBLE(keel_moe_config, aux_loss_factor, 0, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_DOUBLE(keel_moe_config, z_loss_factor, 0, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_BOOL(keel_moe_config, norm_topk_prob),
    KEEL_YAML_ROW_BOOL(keel_moe_config, use_gmm),
    KEEL_YAML_ROW_BOOL(keel_moe_config, enable_gmm_safe_tokens),
    KEEL_YAML_ROW_BOOL(keel_moe_config, use_fused_ops_permute),
    KEEL_YAML_ROW_BOOL(keel_moe_config, callback_moe_droprate),
};

static const keel_yaml_field offload_fields[] = {
    KEEL_YAML_ROW_STRING(keel_offload_config, folder),
    KEEL_YAML_ROW_INT(keel_offload_config, memory_limit, 1, MANY),
};

static const keel_yaml_field optimizer_fields[] = {
    KEEL_YAML_ROW_ENUM(keel_optimizer_config, type, optimizer_names),
    KEEL_YAML_ROW_SECTION(betas),
    KEEL_YAML_ROW_DOUBLE(keel_optimizer_config, eps, 1e-37, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_DOUBLE(keel_optimizer_config, weight_decay, 0, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_SECTION(groups),
    KEEL_YAML_ROW_SECTION(offload),
};

static const keel_yaml_field group_fields[] = {
    KEEL_YAML_ROW_STRING(keel_param_group_config, params),
    KEEL_YAML_ROW_DOUBLE(keel_param_group_config, lr_scale, 0, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_DOUBLE(keel_param_group_config, weight_decay, 0, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_DOUBLE(keel_param_group_config, max_grad_norm, KEEL_YAML_POSITIVE, KEEL_YAML_FINITE),
};

static const keel_yaml_field lr_fields[] = {
    KEEL_YAML_ROW_ENUM(keel_lr_config, type, lr_names),
    KEEL_YAML_ROW_DOUBLE(keel_lr_config, learning_rate, 0, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_DOUBLE(keel_lr_config, lr_end, 0, KEEL_YAML_FINITE),
    KEEL_YAML_ROW_INT(keel_lr_config, warmup_steps, 0, MANY),
    KEEL_YAML_ROW_INT(keel_lr_config, total_steps, UNSET, MANY),
};

static const keel_yaml_field parallel_fields[] = {
    KEEL_YAML_ROW_INT(keel_parallel_config, data_parallel, 0, 1 << 20),
    KEEL_YAML_ROW_INT(keel_parallel_config, model_parallel, 1, 1 << 20),
    KEEL_YAML_ROW_INT(keel_parallel_config, pipeline_stage, 1, 1 << 20),
    KEEL_YAML_ROW_INT(keel_parallel_config, micro_batch_num, 1, 1 << 20),
    KEEL_YAML_ROW_SECTION(pipeline_layers),
    KEEL_YAML_ROW_INT(keel_parallel_config, expert_parallel, 1, 1 << 20),
    KEEL_YAML_ROW_BOOL(keel_parallel_config, use_seq_parallel),
    KEEL_YAML_ROW_INT(keel_parallel_config, bucket_bytes, 4, 1 << 30),
    KEEL_YAML_ROW_BOOL(keel_parallel_config, enable_parallel_optimizer),
    KEEL_YAML_ROW_ENUM(keel_parallel_config, grad_reduce_dtype, precision_names),
};

static const keel_yaml_field dataset_fields[] = {
    KEEL_YAML_ROW_SECTION(text),
    KEEL_YAML_ROW_STRING(keel_dataset_config, shards),
    KEEL_YAML_ROW_INT(keel_dataset_config, shard_tokens, 1, 1 << 30),
    KEEL_YAML_ROW_BOOL(keel_dataset_config, shuffle),
};

static const keel_yaml_field callback_fields[] = {KEEL_YAML_ROW_SECTION(checkpoint),
                                                  KEEL_YAML_ROW_SECTION(MoEDropRateCallback)};

static const keel_yaml_field checkpoint_fields[] = {
    KEEL_YAML_ROW_INT(keel_checkpoint_config, save_interval, 0, MANY),
    KEEL_YAML_ROW_INT(keel_checkpoint_config, keep, 1, 1 << 20),
    KEEL_YAML_ROW_INT(keel_checkpoint_config, keep_healthy, 0, 1 << 20),
};

const char *keel_precision_name(keel_precision precision) {
    return precision_names[precision];
}

static keel_status no_memory(void) {
    keel_fail(KEEL_ERR_MEMORY, "trainer configuration: out of memory");
    return KEEL_ERR_MEMORY;
}

typedef struct required_key {
    const char *section, *key;
} required_key;

static const required_key required_keys[] = {
    {"runner_config", "steps"},     {"model_config", "model_type"},   {"model_config", "vocab_size"},
    {"model_config", "seq_length"}, {"model_config", "hidden_size"},  {"model_config", "num_layers"},
    {"model_config", "num_heads"},  {"lr_schedule", "learning_rate"}, {"train_dataset", "shards"},
};

static keel_status check_required(const keel_yaml_node *root) {
    for (const required_key *r = required_keys; r < required_keys + COUNT(required_keys); r++) {
        const keel_yaml_node *section = keel_yaml_get(root, r->section);
        if (keel_yaml_kind_of(section) == KEEL_YAML_NULL) return keel_yaml_fail_key(root, r->section, "missing");
        if (keel_yaml_kind_of(keel_yaml_get(section, r->key)) == KEEL_YAML_NULL)
            return keel_yaml_fail_key(section, r->key, "missing");
    }
    return KEEL_OK;
}

static keel_status check_gpt2(const keel_yaml_node *node, keel_model_config *model) {
    if (model->n_kv_heads != model->num_heads)
        return keel_yaml_fail(keel_yaml_get(node, "n_kv_heads"), "gpt2 has as many as num_heads, %lld; found %lld",
                              (long long)model->num_heads, (long long)model->n_kv_heads);
    if (model->intermediate_size == UNSET) model->intermediate_size = 4 * model->hidden_size;
    if (model->max_position_embeddings == UNSET) model->max_position_embeddings = model->seq_length;
    if (model->max_position_embeddings < model->seq_length)
        return keel_yaml_fail(keel_yaml_get(node, "max_position_embeddings"),
                              "must be at least seq_length, %lld; found %lld", (long long)model->seq_length,
                              (long long)model->max_position_embeddings);
    return KEEL_OK;
}

static keel_status check_llama(const keel_yaml_node *node, keel_model_config *model) {
    if (model->num_heads % model->n_kv_heads != 0)
        return keel_yaml_fail(keel_yaml_get(node, "n_kv_heads"), "%lld does not divide num_heads, %lld",
                              (long long)model->n_kv_heads, (long long)model->num_heads);
    if (model->hidden_size / model->num_heads % 2 != 0)
        return keel_yaml_fail(keel_yaml_get(node, "num_heads"),
                              "a head is hidden_size / num_heads = %lld wide; rotary positions need an even width",
                              (long long)(model->hidden_size / model->num_heads));
    if (model->intermediate_size == UNSET) return keel_yaml_fail_key(node, "intermediate_size", "missing");
    if (model->max_position_embeddings != UNSET)
        return keel_yaml_fail(keel_yaml_get(node, "max_position_embeddings"), "llama has no table of positions");
    model->max_position_embeddings = model->seq_length;
    return KEEL_OK;
}

static keel_status check_model(const keel_yaml_node *node, keel_model_config *model) {
    if (model->hidden_size % model->num_heads != 0)
        return keel_yaml_fail(keel_yaml_get(node, "num_heads"), "%lld does not divide hidden_size, %lld",
                              (long long)model->num_heads, (long long)model->hidden_size);
    if (model->n_kv_heads == UNSET) model->n_kv_heads = model->num_heads;
    bool gpt2 = model->model_type == KEEL_MODEL_GPT2;
    if (!keel_yaml_get(node, "tie_word_embeddings")) model->tie_word_embeddings = gpt2;
    return gpt2 ? check_gpt2(node, model) : check_llama(node, model);
}

// What there are experts for, only where there are some.
static keel_status check_moe(const keel_yaml_node *root, keel_train_config *config) {
    const keel_yaml_node *node = keel_yaml_get(root, "moe_config");
    keel_moe_config *moe = &config->model.moe;
    const int64_t shared = config->parallel.expert_parallel;
    const keel_yaml_node *parallel = keel_yaml_get(keel_yaml_get(root, "parallel_config"), "expert_parallel");
    if (keel_yaml_kind_of(node) != KEEL_YAML_NULL && !keel_yaml_get(node, "expert_num"))
        return keel_yaml_fail_key(node, "expert_num", "missing");
    if (moe->expert_num <= 1) {
        if (shared > 1) return keel_yaml_fail(parallel, "%lld, but the model has no experts", (long long)shared);
        if (moe->callback_moe_droprate)
            return keel_yaml_fail(keel_yaml_kind_of(node) == KEEL_YAML_NULL ? keel_yaml_get(root, "callback") : node,
                                  "drop rates are wanted, but the model has no experts");
        return KEEL_OK;
    }
    if (config->model.model_type != KEEL_MODEL_LLAMA)
        return keel_yaml_fail(keel_yaml_get(node, "expert_num"), "only llama can have experts");
    if (moe->num_experts_chosen > moe->expert_num)
        return keel_yaml_fail(keel_yaml_get(node, "num_experts_chosen"), "%lld is more than expert_num, %lld",
                              (long long)moe->num_experts_chosen, (long long)moe->expert_num);
    if (!keel_yaml_get(node, "norm_topk_prob")) moe->norm_topk_prob = moe->num_experts_chosen > 1;
    if (moe->enable_gmm_safe_tokens && !moe->use_gmm)
        return keel_yaml_fail(keel_yaml_get(node, "enable_gmm_safe_tokens"),
                              "only the grouped product has any: use_gmm");
    if (moe->expert_num % shared)
        return keel_yaml_fail(parallel, "%lld does not divide moe_config.expert_num, %lld", (long long)shared,
                              (long long)moe->expert_num);
    return KEEL_OK;
}

static keel_status read_wrapper(const keel_yaml_node *node, keel_wrapper_config *wrapper) {
    const keel_yaml_node *scale = keel_yaml_get(node, "scale_sense");
    if (keel_yaml_kind_of(scale) == KEEL_YAML_SCALAR) {
        wrapper->scale_sense.type = KEEL_LOSS_SCALE_FIXED;
        return keel_yaml_read(node, wrapper_fields_fixed, COUNT(wrapper_fields_fixed), wrapper);
    }
    keel_status status = keel_yaml_read(node, wrapper_fields, COUNT(wrapper_fields), wrapper);
    if (!status) status = keel_yaml_read(scale, loss_scale_fields, COUNT(loss_scale_fields), &wrapper->scale_sense);
    if (status || keel_yaml_kind_of(scale) == KEEL_YAML_NULL) return status;
    if (!keel_yaml_get(scale, "type"))
        return keel_yaml_fail_key(scale, "type", "missing: %s or %s", loss_scale_names[KEEL_LOSS_SCALE_FIXED],
                                  loss_scale_names[KEEL_LOSS_SCALE_DYNAMIC]);
    static const char *const dynamic_keys[] = {"scale_factor", "scale_window"};
    for (size_t i = 0; i < COUNT(dynamic_keys); i++) {
        const keel_yaml_node *given = keel_yaml_get(scale, dynamic_keys[i]);
        if (given && wrapper->scale_sense.type != KEEL_LOSS_SCALE_DYNAMIC)
            return keel_yaml_fail(given, "only %s changes its scale", loss_scale_names[KEEL_LOSS_SCALE_DYNAMIC]);
    }
    return KEEL_OK;
}

static keel_status read_betas(const keel_yaml_node *betas, keel_optimizer_config *optimizer) {
    if (!betas) return KEEL_OK;
    if (keel_yaml_kind_of(betas) != KEEL_YAML_LIST) return keel_yaml_fail_kind(betas, "a list of two numbers");
    if (keel_yaml_size(betas) != 2) return keel_yaml_fail(betas, "expected two, found %zu", keel_yaml_size(betas));
    double *values[2] = {&optimizer->beta1, &optimizer->beta2};
    for (size_t i = 0; i < 2; i++) {
        const keel_yaml_node *node = keel_yaml_item(betas, i);
        keel_status status = keel_yaml_to_double(node, values[i]);
        if (status) return status;
        if (!(*values[i] >= 0 && *values[i] < 1))
            return keel_yaml_fail(node, "must be at least 0 and less than 1, found %s", keel_yaml_text(node));
    }
    return KEEL_OK;
}

static keel_status read_groups(const keel_yaml_node *groups, keel_optimizer_config *optimizer) {
    size_t count = keel_yaml_size(groups);
    if (keel_yaml_kind_of(groups) == KEEL_YAML_NULL) return KEEL_OK;
    if (keel_yaml_kind_of(groups) != KEEL_YAML_LIST) return keel_yaml_fail_kind(groups, "a list of groups");
    if (count == 0) return KEEL_OK;
    optimizer->groups = calloc(count, sizeof *optimizer->groups);
    if (!optimizer->groups) return no_memory();
    optimizer->group_count = count;
    for (size_t i = 0; i < count; i++) {
        const keel_yaml_node *node = keel_yaml_item(groups, i);
        keel_param_group_config *group = &optimizer->groups[i];
        *group = (keel_param_group_config){
            .lr_scale = 1, .weight_decay = (double)NAN, .max_grad_norm = (double)NAN, .node = node};
        keel_status status = keel_yaml_read(node, group_fields, COUNT(group_fields), group);
        if (status) return status;
        if (!group->params) return keel_yaml_fail_key(node, "params", "missing: a pattern for the parameters' names");
    }
    return KEEL_OK;
}

static keel_status read_offload(const keel_yaml_node *node, keel_offload_config *offload) {
    const keel_status status = keel_yaml_read(node, offload_fields, COUNT(offload_fields), offload);
    offload->node = node;
    if (status || keel_yaml_kind_of(node) == KEEL_YAML_NULL) return status;
    if (!offload->folder) return keel_yaml_fail_key(node, "folder", "missing: where states beyond memory_limit lie");
    if (!offload->memory_limit) return keel_yaml_fail_key(node, "memory_limit", "missing: bytes of states in memory");
    return KEEL_OK;
}

static keel_status read_optimizer(const keel_yaml_node *node, keel_optimizer_config *optimizer) {
    keel_status status = keel_yaml_read(node, optimizer_fields, COUNT(optimizer_fields), optimizer);
    if (!status) status = read_betas(keel_yaml_get(node, "betas"), optimizer);
    if (!status) status = read_groups(keel_yaml_get(node, "groups"), optimizer);
    if (!status) status = read_offload(keel_yaml_get(node, "offload"), &optimizer->offload);
    return status;
}

static keel_status check_lr(const keel_yaml_node *node, int64_t steps, keel_lr_config *lr) {
    if (lr->total_steps == UNSET) lr->total_steps = steps;
    if (lr->total_steps == 0)
        return keel_yaml_fail(keel_yaml_get(node, "total_steps"),
                              "must be at least 1, or -1 for runner_config.steps; found 0");
    if (lr->warmup_steps > lr->total_steps)
        return keel_yaml_fail(keel_yaml_get(node, "warmup_steps"), "%lld is more than total_steps, %lld",
                              (long long)lr->warmup_steps, (long long)lr->total_steps);
    return KEEL_OK;
}

static keel_status read_dataset(const keel_yaml_node *node, keel_dataset_config *dataset) {
    keel_status status = keel_yaml_read(node, dataset_fields, COUNT(dataset_fields), dataset);
    const keel_yaml_node *text = keel_yaml_get(node, "text");
    if (status || keel_yaml_kind_of(text) == KEEL_YAML_NULL) return status;
    status = keel_yaml_to_strings(text, &dataset->text, &dataset->text_count);
    if (!status && dataset->text_count == 0) return keel_yaml_fail(text, "an empty list");
    return status;
}

static keel_status read_callback(const keel_yaml_node *node, keel_train_config *config) {
    const keel_yaml_node *drop_rate = keel_yaml_get(node, "MoEDropRateCallback");
    bool wanted = false;
    keel_status status = keel_yaml_read(node, callback_fields, COUNT(callback_fields), NULL);
    if (!status)
        status = keel_yaml_read(keel_yaml_get(node, "checkpoint"), checkpoint_fields, COUNT(checkpoint_fields),
                                &config->checkpoint);
    if (!status && keel_yaml_kind_of(drop_rate) != KEEL_YAML_NULL) status = keel_yaml_to_bool(drop_rate, &wanted);
    config->model.moe.callback_moe_droprate |= wanted;
    return status;
}

// Every value by itself, before any question of what is missing or does not fit together.
static keel_status read_values(const keel_yaml_node *root, keel_train_config *config) {
#define SECTION(name) keel_yaml_get(root, #name)
    keel_status status = keel_yaml_read(root, top_fields, COUNT(top_fields), config);
    if (!status) status = keel_yaml_read(SECTION(runner_config), runner_fields, COUNT(runner_fields), &config->runner);
    if (!status) status = read_wrapper(SECTION(runner_wrapper), &config->wrapper);
    if (!status) status = keel_yaml_read(SECTION(model_config), model_fields, COUNT(model_fields), &config->model);
    if (!status) status = keel_yaml_read(SECTION(moe_config), moe_fields, COUNT(moe_fields), &config->model.moe);
    if (!status) status = read_optimizer(SECTION(optimizer), &config->optimizer);
    if (!status) status = keel_yaml_read(SECTION(lr_schedule), lr_fields, COUNT(lr_fields), &config->lr);
    if (!status)
        status = keel_yaml_read(SECTION(parallel_config), parallel_fields, COUNT(parallel_fields), &config->parallel);
    config->parallel.node = SECTION(parallel_config);
    if (!status) status = read_dataset(SECTION(train_dataset), &config->dataset);
    if (!status) status = read_callback(SECTION(callback), config);
    if (!status) status = keel_fault_configs_read(SECTION(faults), &config->faults, &config->fault_count);
    if (!status) status = keel_affinity_config_read(SECTION(context), &config->affinity);
    return status;
#undef SECTION
}

static keel_status read_all(const keel_yaml_node *root, keel_train_config *config) {
    config->runner.output_dir = strdup("runs/train");
    if (!config->runner.output_dir) return no_memory();
    keel_status status = read_values(root, config);
    if (!status) status = check_required(root);
    if (!status && !config->runner.output_dir)
        status = keel_yaml_fail_kind(keel_yaml_get(keel_yaml_get(root, "runner_config"), "output_dir"), "a folder");
    if (!status) status = check_model(keel_yaml_get(root, "model_config"), &config->model);
    if (!status) status = check_moe(root, config);
    if (!status)
        status = keel_pipeline_layers_read(keel_yaml_get(root, "parallel_config"), config->parallel.pipeline_stage,
                                           config->model.num_layers, &config->parallel.pipeline_layers);
    if (!status)
        status = keel_recompute_config_read(keel_yaml_get(root, "recompute_config"), config->model.num_layers,
                                            &config->recompute);
    if (!status) status = check_lr(keel_yaml_get(root, "lr_schedule"), config->runner.steps, &config->lr);
    return status;
}

// Takes the document over, also on failure.
static keel_status read_document(keel_yaml *doc, keel_train_config **config) {
    const keel_yaml_node *root = keel_yaml_root(doc);
    keel_train_config *made = malloc(sizeof *made);
    if (!made) {
        keel_yaml_free(doc);
        return no_memory();
    }
    *made = (keel_train_config){
        .doc = doc,
        .runner = {.batch_size = 1, .gradient_accumulation_steps = 1, .log_interval = 10, .stop_after_skipped = 3},
        .wrapper = {.use_clip_grad = true,
                    .max_grad_norm = 1,
                    .scale_sense = {.loss_scale_value = 65536, .scale_factor = 2, .scale_window = 1000}},
        .model =
            {.max_position_embeddings = UNSET,
             .n_kv_heads = UNSET,
             .intermediate_size = UNSET,
             .layer_norm_epsilon = 1e-5,
             .rms_norm_eps = 1e-6,
             .theta = 10000,
             .initializer_range = 0.02,
             .moe = {.num_experts_chosen = 1, .aux_loss_factor = 0.05, .use_gmm = true, .use_fused_ops_permute = true}},
        .optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1},
        .lr = {.type = KEEL_LR_COSINE, .total_steps = UNSET},
        .parallel = {.model_parallel = 1,
                     .pipeline_stage = 1,
                     .micro_batch_num = 1,
                     .expert_parallel = 1,
                     .bucket_bytes = 4 << 20},
        .dataset = {.shard_tokens = 1 << 20, .shuffle = true},
        .checkpoint = {.keep = 3, .keep_healthy = 3},
    };
    keel_status status = KEEL_OK;
    if (root)
        status = read_all(root, made);
    else
        status = keel_fail(KEEL_ERR_CONFIG, "%s:1:1: runner_config: missing, the file is empty", keel_yaml_name(doc));
    if (status) {
        keel_train_config_free(made);
        return status;
    }
    *config = made;
    return KEEL_OK;
}

keel_status keel_train_config_load(const char *path, const char *const *overrides, size_t count,
                                   keel_train_config **config) {
    keel_yaml *doc = NULL;
    keel_status status = keel_yaml_load(path, &doc);
    for (size_t i = 0; !status && i < count; i++) status = keel_yaml_set(doc, overrides[i]);
    if (status) {
        keel_yaml_free(doc);
        return status;
    }
    return read_document(doc, config);
}

keel_status keel_train_config_parse(const char *name, const char *text, size_t size, keel_train_config **config) {
    keel_yaml *doc = NULL;
    keel_status status = keel_yaml_parse(name, text, size, &doc);
    return status ? status : read_document(doc, config);
}

void keel_train_config_free(keel_train_config *config) {
    if (!config) return;
    free(config->runner.output_dir);
    free(config->model.checkpoint_name_or_path);
    free(config->parallel.pipeline_layers);
    keel_recompute_config_free(&config->recompute);
    for (size_t i = 0; i < config->optimizer.group_count; i++) free(config->optimizer.groups[i].params);
    free(config->optimizer.groups);
    free(config->optimizer.offload.folder);
    keel_yaml_free_strings(config->dataset.text);
    free(config->dataset.shards);
    keel_fault_configs_free(config->faults, config->fault_count);
    keel_affinity_config_free(&config->affinity);
    keel_yaml_free(config->doc);
    free(config);
}
