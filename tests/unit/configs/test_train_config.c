#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "configs/monitor_config.h"
#include "configs/train_config.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define PRESET(name) KEEL_SOURCE_DIR "/configs/" name

static const char *const presets[] = {PRESET("demo.yaml"), PRESET("gpt2-124m.yaml"), PRESET("llama-tiny.yaml"),
                                      PRESET("experts-tiny.yaml")};

// The least that a run needs, in one line per section so that a case can replace one.
static const char runner[] = "runner_config: {steps: 100}\n";
static const char gpt2[] =
    "model_config: {model_type: gpt2, vocab_size: 256, seq_length: 64, hidden_size: 48, num_layers: 2, "
    "num_heads: 4}\n";
static const char lr[] = "lr_schedule: {learning_rate: 1.0e-3}\n";
static const char dataset[] = "train_dataset: {shards: data/x}\n";

static keel_status parse(const char *a, const char *b, const char *c, const char *d, const char *e,
                         keel_train_config **config) {
    char text[2048];
    snprintf(text, sizeof text, "%s%s%s%s%s", a, b, c, d, e);
    return keel_train_config_parse("t.yaml", text, strlen(text), config);
}

static keel_train_config *parse_with(const char *more) {
    keel_train_config *config = NULL;
    if (parse(runner, gpt2, lr, dataset, more, &config)) fail_msg("%s", keel_error());
    return config;
}

static void assert_model_refused(const char *model, const char *message) {
    keel_train_config *config = NULL;
    assert_int_equal(parse(runner, model, lr, dataset, "", &config), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), message);
    assert_null(config);
}

static void test_presets_load(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(presets); i++) {
        keel_train_config *config = NULL;
        if (keel_train_config_load(presets[i], NULL, 0, &config)) fail_msg("%s", keel_error());
        assert_true(config->runner.steps > 0);
        keel_train_config_free(config);
    }
    keel_train_config *config = NULL;
    assert_int_equal(keel_train_config_load(presets[1], NULL, 0, &config), KEEL_OK);
    assert_int_equal(config->model.model_type, KEEL_MODEL_GPT2);
    assert_int_equal(config->model.vocab_size, 50304);
    assert_int_equal(config->model.seq_length, 1024);
    assert_int_equal(config->model.max_position_embeddings, 1024);
    assert_int_equal(config->model.hidden_size, 768);
    assert_int_equal(config->model.num_layers, 12);
    assert_int_equal(config->model.num_heads, 12);
    assert_int_equal(config->model.intermediate_size, 3072);
    assert_true(config->model.tie_word_embeddings);
    keel_train_config_free(config);
}

static void test_defaults(void **state) {
    (void)state;
    keel_train_config *c = parse_with("");
    assert_int_equal(c->runner.steps, 100);
    assert_int_equal(c->runner.batch_size, 1);
    assert_int_equal(c->runner.gradient_accumulation_steps, 1);
    assert_string_equal(c->runner.output_dir, "runs/train");
    assert_int_equal(c->runner.log_interval, 10);
    assert_int_equal(c->runner.stop_after_skipped, 3);
    assert_true(c->wrapper.use_clip_grad);
    assert_true(c->wrapper.max_grad_norm == 1);
    assert_int_equal(c->model.n_kv_heads, 4);
    assert_int_equal(c->model.intermediate_size, 192);
    assert_true(c->model.tie_word_embeddings);
    assert_true(c->model.layer_norm_epsilon == 1e-5);
    assert_true(c->model.initializer_range == 0.02);
    assert_null(c->model.checkpoint_name_or_path);
    assert_true(c->optimizer.beta1 == 0.9 && c->optimizer.beta2 == 0.95);
    assert_int_equal(c->optimizer.group_count, 0);
    assert_int_equal(c->lr.type, KEEL_LR_COSINE);
    assert_true(c->lr.learning_rate == 1e-3);
    assert_int_equal(c->lr.total_steps, 100);
    assert_int_equal(c->parallel.data_parallel, 0);
    assert_int_equal(c->parallel.bucket_bytes, 4 << 20);
    assert_string_equal(c->dataset.shards, "data/x");
    assert_int_equal(c->dataset.text_count, 0);
    assert_int_equal(c->dataset.shard_tokens, 1 << 20);
    assert_true(c->dataset.shuffle);
    assert_int_equal(c->checkpoint.save_interval, 0);
    assert_int_equal(c->checkpoint.keep, 3);
    assert_int_equal(c->checkpoint.keep_healthy, 3);
    assert_int_equal(c->model.compute_dtype, KEEL_FLOAT32);
    assert_int_equal(c->model.softmax_compute_dtype, KEEL_FLOAT32);
    assert_int_equal(c->parallel.grad_reduce_dtype, KEEL_FLOAT32);
    assert_int_equal(c->wrapper.scale_sense.type, KEEL_LOSS_SCALE_NONE);
    assert_int_equal(c->fault_count, 0);
    assert_null(c->monitor);
    keel_train_config_free(c);
    keel_train_config_free(NULL);
}

static void test_every_section(void **state) {
    (void)state;
    keel_train_config *c =
        parse_with("runner_wrapper: {use_clip_grad: false, max_grad_norm: 0.5}\n"
                   "optimizer:\n"
                   "  type: AdamW\n"
                   "  betas: [0.8, 0.999]\n"
                   "  eps: 1.0e-6\n"
                   "  weight_decay: 0\n"
                   "  offload: {folder: /tmp/states, memory_limit: 1048576}\n"
                   "  groups:\n"
                   "    - {params: '^embedding', lr_scale: 0.5, weight_decay: 0.2, max_grad_norm: 0.1}\n"
                   "    - {params: norm}\n"
                   "parallel_config: {data_parallel: 2, model_parallel: 1, pipeline_stage: 1, bucket_bytes: 1024}\n"
                   "callback: {checkpoint: {save_interval: 50, keep: 2, keep_healthy: 0}}\n"
                   "faults:\n"
                   "  - {kind: nan, step: 7, rank: 1, site: layers.1.mlp, quantity: activation, index: 3}\n"
                   "  - {kind: garbage_batch, step: 9, steps: 2}\n"
                   "  - {kind: learning_rate, step: 11, factor: 100}\n"
                   "  - {kind: corrupt_data, step: 5, rank: 1, share: 0.5}\n"
                   "  - {kind: bit_flip, step: 12, rank: 0, site: head.weight, index: 7, bit: 30}\n"
                   "  - {kind: memory_leak, step: 2, bytes: 4096}\n"
                   "  - {kind: initial_scale, site: head.weight, factor: 10}\n"
                   "monitor: {queue_depth: 4}\n");
    assert_false(c->wrapper.use_clip_grad);
    assert_true(c->wrapper.max_grad_norm == 0.5);
    assert_true(c->optimizer.beta1 == 0.8 && c->optimizer.beta2 == 0.999);
    assert_true(c->optimizer.weight_decay == 0);
    const keel_param_group_config *g = c->optimizer.groups;
    assert_int_equal(c->optimizer.group_count, 2);
    assert_string_equal(g[0].params, "^embedding");
    assert_true(g[0].lr_scale == 0.5 && g[0].weight_decay == 0.2 && g[0].max_grad_norm == 0.1);
    assert_true(g[1].lr_scale == 1 && isnan(g[1].weight_decay) && isnan(g[1].max_grad_norm));
    assert_int_equal(keel_yaml_fail(keel_yaml_get(g[1].node, "params"), "odd"), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "t.yaml:14:16: optimizer.groups.1.params: odd");
    assert_string_equal(c->optimizer.offload.folder, "/tmp/states");
    assert_int_equal(c->optimizer.offload.memory_limit, 1 << 20);
    assert_int_equal(c->parallel.data_parallel, 2);
    assert_int_equal(c->parallel.bucket_bytes, 1024);
    assert_int_equal(c->checkpoint.save_interval, 50);
    assert_int_equal(c->checkpoint.keep_healthy, 0);
    const keel_fault_config *f = c->faults;
    assert_int_equal(c->fault_count, 7);
    assert_int_equal(f[0].kind, KEEL_FAULT_NAN);
    assert_int_equal(f[0].step, 7);
    assert_int_equal(f[0].steps, 1);
    assert_int_equal(f[0].rank, 1);
    assert_string_equal(f[0].site, "layers.1.mlp");
    assert_string_equal(f[0].quantity, "activation");
    assert_int_equal(f[0].index, 3);
    assert_int_equal(f[1].kind, KEEL_FAULT_GARBAGE_BATCH);
    assert_int_equal(f[1].rank, -1);
    assert_int_equal(f[1].steps, 2);
    assert_int_equal(f[2].kind, KEEL_FAULT_LEARNING_RATE);
    assert_true(f[2].factor == 100);
    assert_true(keel_fault_due(&f[2], 11) && !keel_fault_due(&f[2], 10) && !keel_fault_due(&f[2], 12));
    assert_int_equal(f[3].kind, KEEL_FAULT_CORRUPT_DATA);
    assert_true(f[3].share == 0.5 && f[1].share == 1);
    assert_true(!keel_fault_due(&f[3], 4) && keel_fault_due(&f[3], 5) && keel_fault_due(&f[3], 1000000)); // to the end
    assert_true(keel_fault_concerns(&f[3], 1) && !keel_fault_concerns(&f[3], 0) && keel_fault_concerns(&f[1], 3));
    assert_int_equal(f[4].index, 7);
    assert_int_equal(f[4].bit, 30);
    assert_int_equal(f[5].bytes, 4096);
    assert_true(f[6].factor == 10 && keel_fault_due(&f[6], 1) && !keel_fault_due(&f[6], 2));

    keel_monitor_config *monitor = NULL;
    assert_int_equal(keel_monitor_config_section(c->monitor, &monitor), KEEL_OK);
    assert_int_equal(monitor->queue_depth, 4);
    keel_monitor_config_free(monitor);
    keel_train_config_free(c);
}

static void test_precision(void **state) {
    (void)state;
    keel_train_config *c = NULL;
    assert_int_equal(
        parse(
            runner,
            "model_config: {model_type: gpt2, vocab_size: 256, seq_length: 64, hidden_size: 48, num_layers: 2, "
            "num_heads: 4, compute_dtype: bfloat16, softmax_compute_dtype: float16, layernorm_compute_dtype: float16, "
            "loss_compute_dtype: bfloat16, attention_value_dtype: float32, embedding_compute_dtype: bfloat16, "
            "head_compute_dtype: float16}\n",
            lr, dataset,
            "parallel_config: {grad_reduce_dtype: bfloat16}\n"
            "runner_wrapper: {scale_sense: {type: DynamicLossScaleUpdateCell, loss_scale_value: 1024, "
            "scale_factor: 4, scale_window: 7}}\n",
            &c),
        KEEL_OK);
    assert_int_equal(c->model.compute_dtype, KEEL_BFLOAT16);
    assert_int_equal(c->model.softmax_compute_dtype, KEEL_FLOAT16);
    assert_int_equal(c->model.layernorm_compute_dtype, KEEL_FLOAT16);
    assert_int_equal(c->model.loss_compute_dtype, KEEL_BFLOAT16);
    assert_int_equal(c->model.attention_value_dtype, KEEL_FLOAT32);
    assert_int_equal(c->model.embedding_compute_dtype, KEEL_BFLOAT16);
    assert_int_equal(c->model.head_compute_dtype, KEEL_FLOAT16);
    assert_int_equal(c->parallel.grad_reduce_dtype, KEEL_BFLOAT16);
    assert_int_equal(c->wrapper.scale_sense.type, KEEL_LOSS_SCALE_DYNAMIC);
    assert_true(c->wrapper.scale_sense.loss_scale_value == 1024 && c->wrapper.scale_sense.scale_factor == 4);
    assert_int_equal(c->wrapper.scale_sense.scale_window, 7);
    assert_true(c->wrapper.use_clip_grad);
    keel_train_config_free(c);
    c = parse_with("runner_wrapper: {scale_sense: {type: FixedLossScaleUpdateCell}}\n");
    assert_int_equal(c->wrapper.scale_sense.type, KEEL_LOSS_SCALE_FIXED);
    assert_true(c->wrapper.scale_sense.loss_scale_value == 65536);
    keel_train_config_free(c);
    c = parse_with("runner_wrapper: {scale_sense: 1.28e2, max_grad_norm: 2}\n");
    assert_int_equal(c->wrapper.scale_sense.type, KEEL_LOSS_SCALE_FIXED);
    assert_true(c->wrapper.scale_sense.loss_scale_value == 128 && c->wrapper.max_grad_norm == 2);
    keel_train_config_free(c);
    assert_model_refused("model_config: {compute_dtype: float8}\n",
                         "t.yaml:2:31: model_config.compute_dtype: unknown value 'float8'; nearest known: float32");
}

static void test_llama(void **state) {
    (void)state;
    keel_train_config *c = NULL;
    assert_int_equal(
        parse(runner,
              "model_config: {model_type: llama, vocab_size: 99, seq_length: 64, hidden_size: 48, num_layers: 2, "
              "num_heads: 4, n_kv_heads: 2, intermediate_size: 100, theta: 5e5}\n",
              lr, dataset, "", &c),
        KEEL_OK);
    assert_int_equal(c->model.model_type, KEEL_MODEL_LLAMA);
    assert_int_equal(c->model.n_kv_heads, 2);
    assert_int_equal(c->model.intermediate_size, 100);
    assert_true(c->model.theta == 5e5);
    assert_false(c->model.tie_word_embeddings);
    keel_train_config_free(c);
}

static void test_models_that_do_not_fit(void **state) {
    (void)state;
    assert_model_refused(
        "model_config: {model_type: gpt2, vocab_size: 256, seq_length: 64, hidden_size: 48, num_layers: 2, "
        "num_heads: 5}\n",
        "t.yaml:2:110: model_config.num_heads: 5 does not divide hidden_size, 48");
    assert_model_refused(
        "model_config: {model_type: gpt2, vocab_size: 256, seq_length: 64, hidden_size: 48, num_layers: 2, "
        "num_heads: 4, n_kv_heads: 2}\n",
        "t.yaml:2:125: model_config.n_kv_heads: gpt2 has as many as num_heads, 4; found 2");
    assert_model_refused(
        "model_config: {model_type: llama, vocab_size: 256, seq_length: 64, hidden_size: 48, num_layers: 2, "
        "num_heads: 4, n_kv_heads: 3, intermediate_size: 9}\n",
        "t.yaml:2:126: model_config.n_kv_heads: 3 does not divide num_heads, 4");
    assert_model_refused(
        "model_config: {model_type: llama, vocab_size: 256, seq_length: 64, hidden_size: 48, num_layers: 2, "
        "num_heads: 16, intermediate_size: 9}\n",
        "t.yaml:2:111: model_config.num_heads: a head is hidden_size / num_heads = 3 wide; rotary positions need "
        "an even width");
    assert_model_refused(
        "model_config: {model_type: llama, vocab_size: 256, seq_length: 64, hidden_size: 48, num_layers: 2, "
        "num_heads: 4}\n",
        "t.yaml:2:15: model_config.intermediate_size: missing");
    assert_model_refused(
        "model_config: {model_type: gpt2, vocab_size: 256, seq_length: 64, hidden_size: 48, num_layers: 2, "
        "num_heads: 4, max_position_embeddings: 63}\n",
        "t.yaml:2:138: model_config.max_position_embeddings: must be at least seq_length, 64; found 63");
    assert_model_refused(
        "model_config: {model_type: llama, vocab_size: 256, seq_length: 64, hidden_size: 48, num_layers: 2, "
        "num_heads: 4, intermediate_size: 9, max_position_embeddings: 64}\n",
        "t.yaml:2:161: model_config.max_position_embeddings: llama has no table of positions");
    assert_model_refused("model_config: {model_type: bert}\n",
                         "t.yaml:2:28: model_config.model_type: unknown value 'bert'; nearest known: gpt2");
    assert_model_refused("model_config: {hidden_size: -8}\n",
                         "t.yaml:2:29: model_config.hidden_size: must be at least 1, found -8");
    assert_model_refused("model_config: {model_type: gpt2}\n", "t.yaml:2:15: model_config.vocab_size: missing");
    assert_model_refused("model_config:\n", "t.yaml:2:14: model_config: missing");
    assert_model_refused("", "t.yaml:1:1: model_config: missing");
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"runner_wraper: {}\n", "t.yaml:5:1: runner_wraper: unknown key; nearest known: runner_wrapper"},
        {"runner_wrapper: {max_grad_norm: 0}\n",
         "t.yaml:5:33: runner_wrapper.max_grad_norm: must be greater than 0, found 0"},
        {"runner_wrapper: {scale_sense: {loss_scale_value: 8}}\n",
         "t.yaml:5:31: runner_wrapper.scale_sense.type: missing: FixedLossScaleUpdateCell or "
         "DynamicLossScaleUpdateCell"},
        {"runner_wrapper: {scale_sense: {type: FixedLossScaleUpdateCell, scale_window: 8}}\n",
         "t.yaml:5:78: runner_wrapper.scale_sense.scale_window: only DynamicLossScaleUpdateCell changes its scale"},
        {"runner_wrapper: {scale_sense: {type: DynamicLossScaleUpdateCell, loss_scale_value: 0}}\n",
         "t.yaml:5:84: runner_wrapper.scale_sense.loss_scale_value: must be at least 1, found 0"},
        {"runner_wrapper: {scale_sense: 0.5}\n",
         "t.yaml:5:31: runner_wrapper.scale_sense: must be at least 1, found 0.5"},
        {"runner_wrapper: {scale_sense: dynamic}\n",
         "t.yaml:5:31: runner_wrapper.scale_sense: expected a number, found 'dynamic'"},
        {"runner_wrapper: {scale_sense: 128, use_clipping: true}\n",
         "t.yaml:5:36: runner_wrapper.use_clipping: unknown key; nearest known: use_clip_grad"},
        {"parallel_config: {grad_reduce_dtype: half}\n",
         "t.yaml:5:38: parallel_config.grad_reduce_dtype: unknown value 'half'; nearest known: float32"},
        {"optimizer: {type: Adam}\n", "t.yaml:5:19: optimizer.type: unknown value 'Adam'; nearest known: AdamW"},
        {"optimizer: {betas: 0.9}\n", "t.yaml:5:20: optimizer.betas: expected a list of two numbers, found '0.9'"},
        {"optimizer: {betas: [0.9, 0.95, 1]}\n", "t.yaml:5:20: optimizer.betas: expected two, found 3"},
        {"optimizer: {betas: [0.9, 1]}\n",
         "t.yaml:5:26: optimizer.betas.1: must be at least 0 and less than 1, found 1"},
        {"optimizer: {groups: {params: x}}\n",
         "t.yaml:5:21: optimizer.groups: expected a list of groups, found a mapping"},
        {"optimizer: {groups: [{lr_scale: 2}]}\n",
         "t.yaml:5:22: optimizer.groups.0.params: missing: a pattern for the parameters' names"},
        {"optimizer: {groups: [{params: a, lr: 2}]}\n",
         "t.yaml:5:34: optimizer.groups.0.lr: unknown key; nearest known: params"},
        {"optimizer: {groups: [a]}\n", "t.yaml:5:22: optimizer.groups.0: expected a mapping, found 'a'"},
        {"optimizer: {groups: [~]}\n",
         "t.yaml:5:22: optimizer.groups.0.params: missing: a pattern for the parameters' names"},
        {"optimizer: {offload: {folder: /tmp}}\n",
         "t.yaml:5:22: optimizer.offload.memory_limit: missing: bytes of states in memory"},
        {"optimizer: {offload: {memory_limit: 1000}}\n",
         "t.yaml:5:22: optimizer.offload.folder: missing: where states beyond memory_limit lie"},
        {"parallel_config: {model_parallel: 0}\n",
         "t.yaml:5:35: parallel_config.model_parallel: must be at least 1, found 0"},
        {"parallel_config: {data_parallel: -1}\n",
         "t.yaml:5:34: parallel_config.data_parallel: must be at least 0, found -1"},
        {"callback: {checkpoint: {keep: 0}}\n", "t.yaml:5:31: callback.checkpoint.keep: must be at least 1, found 0"},
        {"callback: {chekpoint: {}}\n", "t.yaml:5:12: callback.chekpoint: unknown key; nearest known: checkpoint"},
        {"faults: {kind: nan}\n", "t.yaml:5:9: faults: expected a list of faults, found a mapping"},
        {"faults: [{step: 3}]\n", "t.yaml:5:10: faults.0.kind: missing, such as nan"},
        {"faults: [~]\n", "t.yaml:5:10: faults.0.kind: missing, such as nan"},
        {"faults: [{kind: nan, site: a, quantity: weight}]\n",
         "t.yaml:5:10: faults.0.step: missing, fault nan needs it"},
        {"faults: [{kind: nan, step: 3, quantity: weight}]\n",
         "t.yaml:5:10: faults.0.site: missing, fault nan needs it"},
        {"faults: [{kind: nan, step: 3, site: a}]\n", "t.yaml:5:10: faults.0.quantity: missing, fault nan needs it"},
        {"faults: [{kind: learning_rate, step: 3}]\n",
         "t.yaml:5:10: faults.0.factor: missing, fault learning_rate needs it"},
        {"faults: [{kind: bit_flip, step: 3, site: a}]\n",
         "t.yaml:5:10: faults.0.bit: missing, fault bit_flip needs it"},
        {"faults: [{kind: bit_flip, step: 3, site: a, bit: 32}]\n",
         "t.yaml:5:50: faults.0.bit: must be at most 31, found 32"},
        {"faults: [{kind: nan, step: 3, site: a, quantity: weight, factor: 2}]\n",
         "t.yaml:5:66: faults.0.factor: fault nan has no such key"},
        {"faults: [{kind: initial_scale, step: 3, site: a, factor: 2}]\n",
         "t.yaml:5:38: faults.0.step: fault initial_scale has no such key"},
        {"faults: [{kind: replica_skip, step: 3}]\n",
         "t.yaml:5:10: faults.0.rank: missing, fault replica_skip needs it"},
        {"faults: [{kind: repeat_batch, step: 1}]\n",
         "t.yaml:5:37: faults.0.step: must be at least 2: the batch of the step before is repeated"},
        {"faults: [{kind: nan, step: 0}]\n", "t.yaml:5:28: faults.0.step: must be at least 1, found 0"},
        {"faults: [{kind: nan, rank: -2}]\n", "t.yaml:5:28: faults.0.rank: must be at least -1, found -2"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        keel_train_config *config = NULL;
        assert_int_equal(parse(runner, gpt2, lr, dataset, cases[i].text, &config), KEEL_ERR_CONFIG);
        assert_string_equal(keel_error(), cases[i].message);
        assert_null(config);
    }
}

static void test_other_sections_refused(void **state) {
    (void)state;
    static const struct {
        const char *runner, *lr, *dataset, *message;
    } cases[] = {
        {"", lr, dataset, "t.yaml:1:1: runner_config: missing"},
        {"runner_config: {batch_size: 2}\n", lr, dataset, "t.yaml:1:16: runner_config.steps: missing"},
        {"runner_config: {steps: many}\n", lr, dataset,
         "t.yaml:1:24: runner_config.steps: expected an integer, found 'many'"},
        {"runner_config: {steps: 5, output_dir: }\n", lr, dataset,
         "t.yaml:1:39: runner_config.output_dir: expected a folder, found nothing"},
        {runner, "", dataset, "t.yaml:1:1: lr_schedule: missing"},
        {runner, "lr_schedule: {type: cosine}\n", dataset, "t.yaml:3:14: lr_schedule.learning_rate: missing"},
        {runner, "lr_schedule: {learning_rate: -1}\n", dataset,
         "t.yaml:3:30: lr_schedule.learning_rate: must be at least 0, found -1"},
        {runner, "lr_schedule: {learning_rate: 1, warmup_steps: 101}\n", dataset,
         "t.yaml:3:47: lr_schedule.warmup_steps: 101 is more than total_steps, 100"},
        {runner, "lr_schedule: {learning_rate: 1, total_steps: 0}\n", dataset,
         "t.yaml:3:46: lr_schedule.total_steps: must be at least 1, or -1 for runner_config.steps; found 0"},
        {runner, lr, "optimizer: {eps: 1.0e-38}\n",
         "t.yaml:4:18: optimizer.eps: must be at least 1e-37, found 1.0e-38"},
        {runner, lr, "", "t.yaml:1:1: train_dataset: missing"},
        {runner, lr, "train_dataset: {text: a.txt}\n", "t.yaml:4:16: train_dataset.shards: missing"},
        {runner, lr, "train_dataset: {text: [], shards: x}\n", "t.yaml:4:23: train_dataset.text: an empty list"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        keel_train_config *config = NULL;
        assert_int_equal(parse(cases[i].runner, gpt2, cases[i].lr, cases[i].dataset, "", &config), KEEL_ERR_CONFIG);
        assert_string_equal(keel_error(), cases[i].message);
        assert_null(config);
    }
}

static void test_empty_and_not_a_mapping(void **state) {
    (void)state;
    keel_train_config *config = NULL;
    assert_int_equal(keel_train_config_parse("t.yaml", "", 0, &config), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "t.yaml:1:1: runner_config: missing, the file is empty");
    assert_int_equal(keel_train_config_parse("t.yaml", "- 1\n", 4, &config), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "t.yaml:1:1: expected a mapping, found a list");
    assert_int_equal(keel_train_config_load("/nonexistent.yaml", NULL, 0, &config), KEEL_ERR_IO);
    assert_int_equal(keel_train_config_load("/tmp", NULL, 0, &config), KEEL_ERR_IO);
    assert_null(config);
}

static void test_overrides(void **state) {
    (void)state;
    const char *const sets[] = {"runner_config.steps=7", "faults.0.rank=0", "train_dataset.text=[a.txt, b.txt]",
                                "parallel_config.bucket_bytes=4096", "monitor.output=runs/z"};
    keel_train_config *c = NULL;
    if (keel_train_config_load(PRESET("demo.yaml"), sets, COUNT(sets), &c)) {
        // The preset's warm-up is longer than 7 steps: that, too, must name the place in the file.
        assert_non_null(strstr(keel_error(), "lr_schedule.warmup_steps: 20 is more than total_steps, 7"));
        const char *const more[] = {"runner_config.steps=70", sets[1], sets[2], sets[3], sets[4]};
        if (keel_train_config_load(PRESET("demo.yaml"), more, COUNT(more), &c)) fail_msg("%s", keel_error());
    }
    assert_int_equal(c->faults[0].rank, 0);
    assert_int_equal(c->dataset.text_count, 2);
    assert_string_equal(c->dataset.text[1], "b.txt");
    assert_int_equal(c->parallel.bucket_bytes, 4096);
    assert_string_equal(keel_yaml_text(keel_yaml_get(c->monitor, "output")), "runs/z");
    char *text = NULL;
    size_t size = 0;
    assert_int_equal(keel_yaml_dump(c->doc, &text, &size), KEEL_OK);
    assert_non_null(strstr(text, "bucket_bytes: 4096"));
    free(text);
    keel_train_config_free(c);

    const char *const bad[] = {"runner_config.steps=70", "model_config.num_heads=5"};
    c = NULL;
    assert_int_equal(keel_train_config_load(PRESET("demo.yaml"), bad, 2, &c), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "--set:2:24: model_config.num_heads: 5 does not divide hidden_size, 128");
    const char *const torn[] = {"runner_config.steps"};
    assert_int_equal(keel_train_config_load(PRESET("demo.yaml"), torn, 1, &c), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), "--set:1:1: expected key.path=value, found 'runner_config.steps'");
    assert_null(c);
}

static void assert_experts_refused(const char *model, const char *more, const char *message) {
    keel_train_config *config = NULL;
    assert_int_equal(parse(runner, model, lr, dataset, more, &config), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), message);
}

static void test_experts(void **state) {
    (void)state;
    static const char llama[] = "model_config: {model_type: llama, vocab_size: 256, seq_length: 64, hidden_size: 48, "
                                "num_layers: 2, num_heads: 4, intermediate_size: 96}\n";
    keel_train_config *c = parse_with("");
    assert_true(c->model.moe.expert_num <= 1);
    keel_train_config_free(c);
    c = NULL;
    assert_int_equal(
        parse(runner, llama, lr, dataset, "moe_config: {expert_num: 8}\ncallback: {MoEDropRateCallback: true}\n", &c),
        KEEL_OK);
    const keel_moe_config *moe = &c->model.moe;
    assert_int_equal(moe->expert_num, 8);
    assert_int_equal(moe->num_experts_chosen, 1);
    assert_true(moe->capacity_factor <= 0 && moe->aux_loss_factor == 0.05 && moe->z_loss_factor == 0);
    assert_true(!moe->norm_topk_prob && moe->use_gmm && moe->use_fused_ops_permute && moe->callback_moe_droprate);
    assert_false(moe->enable_gmm_safe_tokens);
    keel_train_config_free(c);

    assert_int_equal(parse(runner, llama, lr, dataset, "moe_config: {expert_num: 8, num_experts_chosen: 2}\n", &c),
                     KEEL_OK);
    assert_true(c->model.moe.norm_topk_prob);
    keel_train_config_free(c);

    assert_experts_refused(llama, "moe_config: {num_experts_chosen: 2}\n",
                           "t.yaml:5:13: moe_config.expert_num: missing");
    assert_experts_refused(gpt2, "moe_config: {expert_num: 4}\n",
                           "t.yaml:5:26: moe_config.expert_num: only llama can have experts");
    assert_experts_refused(llama, "moe_config: {expert_num: 4, num_experts_chosen: 5}\n",
                           "t.yaml:5:49: moe_config.num_experts_chosen: 5 is more than expert_num, 4");
    assert_experts_refused(llama, "moe_config: {expert_num: 4, use_gmm: false, enable_gmm_safe_tokens: true}\n",
                           "t.yaml:5:69: moe_config.enable_gmm_safe_tokens: only the grouped product has any: use_gmm");
    assert_experts_refused(llama, "moe_config: {expert_num: 6}\nparallel_config: {expert_parallel: 4}\n",
                           "t.yaml:6:36: parallel_config.expert_parallel: 4 does not divide moe_config.expert_num, 6");
    assert_experts_refused(llama, "parallel_config: {expert_parallel: 2}\n",
                           "t.yaml:5:36: parallel_config.expert_parallel: 2, but the model has no experts");
    assert_experts_refused(llama, "callback: {MoEDropRateCallback: true}\n",
                           "t.yaml:5:11: callback: drop rates are wanted, but the model has no experts");
}

static void assert_set(const bool *set, const bool *expected, size_t count) {
    for (size_t i = 0; i < count; i++) assert_int_equal(set[i], expected[i]);
}

static void test_stages_and_recompute(void **state) {
    (void)state;
    keel_train_config *c =
        parse_with("parallel_config: {pipeline_stage: 2, micro_batch_num: 4, pipeline_layers: [1, 1]}\n"
                   "recompute_config: {recompute: [1], select_recompute: true}\n");
    assert_int_equal(c->parallel.pipeline_layers[0] + c->parallel.pipeline_layers[1], 2);
    assert_int_equal(keel_train_micro_batches(c), 4);
    assert_set(c->recompute.full, (bool[]){false, true}, 2);
    assert_set(c->recompute.select, (bool[]){true, true}, 2);
    keel_train_config_free(c);
    c = parse_with("recompute_config: {recompute: false}\nparallel_config: {micro_batch_num: 4}\n");
    assert_null(c->recompute.full);
    assert_null(c->parallel.pipeline_layers);
    assert_int_equal(keel_train_micro_batches(c), 1);
    keel_train_config_free(c);
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"parallel_config: {pipeline_stage: 3}\n",
         "t.yaml:5:35: parallel_config.pipeline_stage: 3 stages for num_layers 2: every stage needs a layer"},
        {"parallel_config: {pipeline_stage: 2, pipeline_layers: [1, 2]}\n",
         "t.yaml:5:55: parallel_config.pipeline_layers: the stages have 3 layers together, but num_layers is 2"},
        {"parallel_config: {pipeline_stage: 2, pipeline_layers: [2]}\n",
         "t.yaml:5:55: parallel_config.pipeline_layers: 1 numbers of layers for pipeline_stage 2"},
        {"parallel_config: {pipeline_stage: 2, pipeline_layers: [2, 0]}\n",
         "t.yaml:5:59: parallel_config.pipeline_layers.1: must be from 1 to num_layers, 2; found 0"},
        {"recompute_config: {select_recompute: [2]}\n",
         "t.yaml:5:39: recompute_config.select_recompute.0: no layer 2: num_layers is 2, and they are counted from 0"},
        {"recompute_config: {recompute: some}\n",
         "t.yaml:5:31: recompute_config.recompute: expected true or false, found 'some'"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        keel_train_config *refused = NULL;
        assert_int_equal(parse(runner, gpt2, lr, dataset, cases[i].text, &refused), KEEL_ERR_CONFIG);
        assert_string_equal(keel_error(), cases[i].message);
        assert_null(refused);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets_load),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_every_section),
        cmocka_unit_test(test_precision),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_models_that_do_not_fit),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_other_sections_refused),
        cmocka_unit_test(test_empty_and_not_a_mapping),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_stages_and_recompute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
