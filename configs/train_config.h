// The trainer's YAML. Sections and keys follow MindSpore Transformers where it has the same thing. Unknown keys are
// errors.
#ifndef KEEL_CONFIGS_TRAIN_CONFIG_H
#define KEEL_CONFIGS_TRAIN_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "configs/affinity_config.h"
#include "configs/fault_config.h"
#include "configs/layer_config.h"
#include "configs/yaml.h"

typedef struct keel_runner_config { // runner_config
    int64_t steps;                  // updates to make
    int64_t batch_size;             // sequences of one micro-batch on one data-parallel rank
    int64_t gradient_accumulation_steps;
    int64_t seed;
    char *output_dir;           // checkpoints; "runs/train"
    int64_t log_interval;       // steps between printed lines; 10
    int64_t stop_after_skipped; // non-finite gradient norms in a row that stop the run; 3
} keel_runner_config;

typedef enum keel_loss_scale_type {
    KEEL_LOSS_SCALE_NONE,
    KEEL_LOSS_SCALE_FIXED,  // FixedLossScaleUpdateCell
    KEEL_LOSS_SCALE_DYNAMIC // DynamicLossScaleUpdateCell
} keel_loss_scale_type;

typedef struct keel_loss_scale_config { // runner_wrapper.scale_sense; a bare number: a fixed scale
    int type;                           // keel_loss_scale_type; none unless set
    double loss_scale_value;            // the first; 65536
    double scale_factor;                // dynamic: / on overflow, * after scale_window clean updates; 2
    int64_t scale_window;               // dynamic; 1000
} keel_loss_scale_config;

typedef struct keel_wrapper_config { // runner_wrapper
    bool use_clip_grad;
    double max_grad_norm;
    keel_loss_scale_config scale_sense;
} keel_wrapper_config;

// The dtype that something is computed in: "float32", "bfloat16", "float16".
typedef enum keel_precision { KEEL_FLOAT32, KEEL_BFLOAT16, KEEL_FLOAT16, KEEL_PRECISION_COUNT } keel_precision;
const char *keel_precision_name(keel_precision precision);

typedef struct keel_moe_config { // moe_config: a mixture of experts in place of every layer's mlp; llama only
    int64_t expert_num;          // of a layer; 0 and 1: no mixture
    int64_t num_experts_chosen;  // of them for each token; 1
    double capacity_factor;      // an expert takes ceil(factor * chosen * seq_length / expert_num) assignments of a
                                 // sequence, and drops the rest; <= 0, as unless set: it takes all
    double aux_loss_factor;      // weight of the loss that balances the experts' loads; 0.05
    double z_loss_factor;        // weight of mean(logsumexp(router logits)^2); 0
    bool norm_topk_prob; // the weights of a token's experts are divided by their sum; true if several are chosen
    bool use_gmm;        // grouped product over all experts, else one expert after another; true
    bool enable_gmm_safe_tokens; // an expert without a token gets a row of zeros
    bool use_fused_ops_permute;  // one pass from tokens to experts and one back, else two; true
    bool callback_moe_droprate;  // drop rates in the log, as does callback.MoEDropRateCallback
} keel_moe_config;

typedef enum keel_model_type { KEEL_MODEL_GPT2, KEEL_MODEL_LLAMA } keel_model_type;

typedef struct keel_model_config { // model_config
    int model_type;                // keel_model_type: gpt2, llama
    int64_t vocab_size;
    int64_t seq_length;
    int64_t max_position_embeddings; // gpt2: rows of the learned position table; default seq_length
    int64_t hidden_size;
    int64_t num_layers;
    int64_t num_heads;
    int64_t n_kv_heads;            // llama: divides num_heads; default num_heads
    int64_t intermediate_size;     // default 4 hidden (gpt2), required for llama
    double layer_norm_epsilon;     // 1e-5
    double rms_norm_eps;           // 1e-6
    double theta;                  // RoPE base; 10000
    bool tie_word_embeddings;      // gpt2: true, llama: false unless set
    double initializer_range;      // standard deviation of initial weights; 0.02; residual projections / sqrt(2 layers)
    char *checkpoint_name_or_path; // safetensors with Hugging Face names to start from; NULL: random
    // All keel_precision, float32 unless set. Weights, optimizer and what is stored stay float32. A site's own dtype
    // says how its values are kept, which is float32 everywhere: what a module kind was computed in is told by these
    // keys alone, in the document that the store keeps as /config_yaml. An absent key is float32.
    int compute_dtype;           // products, biases, activation functions and the residual stream: "attention", "mlp"
                                 // and "block"
    int softmax_compute_dtype;   // of attention
    int layernorm_compute_dtype; // "norm"
    int loss_compute_dtype;      // cross entropy
    int attention_value_dtype;   // the product of probabilities and values
    int embedding_compute_dtype; // "embedding"
    int head_compute_dtype;      // the last layer: "head"
    keel_moe_config moe;         // moe_config
} keel_model_config;

typedef struct keel_param_group_config { // optimizer.groups[]: the first whose pattern is found in a parameter's name
    char *params;                        // PCRE2 regular expression
    double lr_scale;                     // times the learning rate; 1
    double weight_decay;                 // NaN: the optimizer's
    double max_grad_norm;                // this group's own clipping, apart from the global one; NaN: none of its own
    const keel_yaml_node *node;          // the entry, for error messages ("params" is its child)
} keel_param_group_config;

typedef struct keel_offload_config { // optimizer.offload: Adam's states beyond a limit lie in a mapped file
    char *folder;                    // on a disk with room for them; NULL: they are all in memory
    int64_t memory_limit;            // bytes of states in each rank's memory
    const keel_yaml_node *node;      // the section, for error messages; NULL: none
} keel_offload_config;

typedef struct keel_optimizer_config { // optimizer
    int type;                          // AdamW
    double beta1, beta2;               // betas: [b1, b2]
    double eps;                        // 1e-8; at least 1e-37, since less has no float32 reciprocal
    double weight_decay;               // on matrices; vectors (biases, norms) only through groups
    keel_param_group_config *groups;
    size_t group_count;
    keel_offload_config offload;
} keel_optimizer_config;

typedef enum keel_lr_type { KEEL_LR_CONSTANT, KEEL_LR_LINEAR, KEEL_LR_COSINE } keel_lr_type;

typedef struct keel_lr_config { // lr_schedule
    int type;                   // keel_lr_type: constant, linear, cosine
    double learning_rate;       // peak
    double lr_end;              // at total_steps
    int64_t warmup_steps;       // linear from 0 (update t has lr * t / warmup_steps for t <= warmup_steps)
    int64_t total_steps;        // default runner_config.steps
} keel_lr_config;

typedef struct keel_parallel_config { // parallel_config
    int64_t data_parallel;            // 0: all ranks
    int64_t model_parallel;           // tensor parallel ranks; 1
    int64_t pipeline_stage;           // 1
    int64_t micro_batch_num;          // micro-batches of a step with several stages; 1
    int64_t *pipeline_layers;         // [pipeline_stage] layers of each; NULL: as even as may be
    int64_t expert_parallel;          // divides data_parallel; 1
    bool use_seq_parallel;            // between the products rows are shared out over the tensor ranks
    int64_t bucket_bytes;             // gradient bucket; 4 MiB
    bool enable_parallel_optimizer;   // optimizer states and update shared out over the data-parallel ranks; false
    int grad_reduce_dtype;      // keel_precision of the gradients' sums over ranks; float32. With one rank there is
                                // no sum, and it changes nothing
    const keel_yaml_node *node; // the section, for error messages; NULL: none
} keel_parallel_config;

typedef struct keel_dataset_config { // train_dataset
    char **text;                     // plain text files or folders, tokenized to SHARDS when that is absent or older
    size_t text_count;
    char *shards;         // folder of token shards (HDF5)
    int64_t shard_tokens; // tokens per shard; 1 Mi
    bool shuffle;         // a seeded permutation of sequences per epoch; true
} keel_dataset_config;

typedef struct keel_checkpoint_config { // callback.checkpoint
    int64_t save_interval;              // steps; 0: never
    int64_t keep;                       // newest to keep besides healthy ones; 3
    int64_t keep_healthy;               // 3
} keel_checkpoint_config;

typedef struct keel_train_config {
    keel_yaml *doc; // owned
    keel_runner_config runner;
    keel_wrapper_config wrapper;
    keel_model_config model;
    keel_optimizer_config optimizer;
    keel_lr_config lr;
    keel_parallel_config parallel;
    keel_recompute_config recompute;
    keel_dataset_config dataset;
    keel_checkpoint_config checkpoint;
    keel_fault_config *faults; // for experiments and tests
    size_t fault_count;
    keel_affinity_config affinity; // context.affinity_config
    const keel_yaml_node *monitor; // top-level `monitor`, if any: read by keel_monitor_config_section
} keel_train_config;

// The file's top-level keys beside `monitor`, as rows of a table of fields: for whoever else reads a file that serves
// both.
#define KEEL_TRAIN_SECTION_ROWS                                                                                        \
    KEEL_YAML_ROW_SECTION(runner_config), KEEL_YAML_ROW_SECTION(runner_wrapper), KEEL_YAML_ROW_SECTION(model_config),  \
        KEEL_YAML_ROW_SECTION(moe_config), KEEL_YAML_ROW_SECTION(optimizer), KEEL_YAML_ROW_SECTION(lr_schedule),       \
        KEEL_YAML_ROW_SECTION(parallel_config), KEEL_YAML_ROW_SECTION(recompute_config),                               \
        KEEL_YAML_ROW_SECTION(train_dataset), KEEL_YAML_ROW_SECTION(callback), KEEL_YAML_ROW_SECTION(faults),          \
        KEEL_YAML_ROW_SECTION(context)

// Loads, applies OVERRIDES ("key.path=value"), checks every range and how the values fit together (heads divide
// hidden_size, ...).
keel_status keel_train_config_load(const char *path, const char *const *overrides, size_t count,
                                   keel_train_config **config);
keel_status keel_train_config_parse(const char *name, const char *text, size_t size,
                                    keel_train_config **config); // for tests
void keel_train_config_free(keel_train_config *config);

// Micro-batches of a step on each data-parallel rank: those of the pipeline, or of gradient accumulation without one.
static inline size_t keel_train_micro_batches(const keel_train_config *config) {
    return (size_t)(config->parallel.pipeline_stage > 1 ? config->parallel.micro_batch_num
                                                        : config->runner.gradient_accumulation_steps);
}

#endif
