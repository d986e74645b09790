#include "analyzers/run_settings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "configs/yaml.h"

// NULL: the run keeps no settings, or none that can be read.
static keel_yaml *parse(const keel_run_info *info) {
    keel_yaml *doc = NULL;
    if (!info->config_yaml || !info->config_yaml[0]) return NULL;
    if (keel_yaml_parse("config_yaml", info->config_yaml, strlen(info->config_yaml), &doc)) return NULL;
    return doc;
}

static double number(const keel_yaml_node *node, double fallback) {
    const char *text = node ? keel_yaml_text(node) : NULL;
    if (!text) return fallback;
    char *end;
    double parsed = strtod(text, &end);
    return end != text && *end == 0 && isfinite(parsed) ? parsed : fallback;
}

static bool is_text(const keel_yaml_node *node, const char *wanted) {
    const char *text = node ? keel_yaml_text(node) : NULL;
    return text && strcmp(text, wanted) == 0;
}

static const char *const computed_names[] = {
    [KEEL_COMPUTED_FLOAT32] = "float32", [KEEL_COMPUTED_BFLOAT16] = "bfloat16", [KEEL_COMPUTED_FLOAT16] = "float16"};

const char *keel_computed_name(keel_computed dtype) {
    return computed_names[dtype];
}

static keel_computed computed(const keel_yaml_node *section, const char *key) {
    const keel_yaml_node *node = keel_yaml_get(section, key);
    if (is_text(node, computed_names[KEEL_COMPUTED_FLOAT16])) return KEEL_COMPUTED_FLOAT16;
    return is_text(node, computed_names[KEEL_COMPUTED_BFLOAT16]) ? KEEL_COMPUTED_BFLOAT16 : KEEL_COMPUTED_FLOAT32;
}

static keel_scaling scaling(const keel_yaml_node *wrapper) {
    const keel_yaml_node *type = keel_yaml_get(keel_yaml_get(wrapper, "scale_sense"), "type");
    if (is_text(type, "DynamicLossScaleUpdateCell")) return KEEL_SCALING_DYNAMIC;
    return is_text(type, "FixedLossScaleUpdateCell") ? KEEL_SCALING_FIXED : KEEL_SCALING_NONE;
}

void keel_run_settings_read(const keel_run_info *info, keel_run_settings *settings) {
    *settings = (keel_run_settings){.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    keel_yaml *doc = parse(info);
    if (!doc) return;
    const keel_yaml_node *root = keel_yaml_root(doc);
    const keel_yaml_node *model = keel_yaml_get(root, "model_config"), *runner = keel_yaml_get(root, "runner_config"),
                         *wrapper = keel_yaml_get(root, "runner_wrapper"),
                         *optimizer = keel_yaml_get(root, "optimizer"), *lr = keel_yaml_get(root, "lr_schedule"),
                         *betas = keel_yaml_get(optimizer, "betas");
    keel_run_settings *s = settings;
    s->known = model != NULL;
    if (s->known) s->beta2 = 0.95; // the trainer's defaults
    s->vocab_size = number(keel_yaml_get(model, "vocab_size"), 0);
    s->initializer_range = number(keel_yaml_get(model, "initializer_range"), 0);
    const keel_yaml_node *start = keel_yaml_get(model, "checkpoint_name_or_path");
    s->pretrained = start && keel_yaml_text(start);
    if (!is_text(keel_yaml_get(wrapper, "use_clip_grad"), "false"))
        s->max_grad_norm = number(keel_yaml_get(wrapper, "max_grad_norm"), s->known ? 1 : 0);
    s->learning_rate = number(keel_yaml_get(lr, "learning_rate"), 0);
    s->warmup_steps = number(keel_yaml_get(lr, "warmup_steps"), 0);
    s->steps = number(keel_yaml_get(runner, "steps"), 0);
    if (keel_yaml_kind_of(betas) == KEEL_YAML_LIST) {
        s->beta1 = number(keel_yaml_item(betas, 0), s->beta1);
        s->beta2 = number(keel_yaml_item(betas, 1), s->beta2);
    }
    s->eps = number(keel_yaml_get(optimizer, "eps"), s->eps);
    s->scaling = scaling(wrapper);
    s->compute = computed(model, "compute_dtype");
    s->softmax = computed(model, "softmax_compute_dtype");
    s->norm = computed(model, "layernorm_compute_dtype");
    s->loss = computed(model, "loss_compute_dtype");
    s->value = computed(model, "attention_value_dtype");
    s->embedding = computed(model, "embedding_compute_dtype");
    s->head = computed(model, "head_compute_dtype");
    s->grad_reduce = computed(keel_yaml_get(root, "parallel_config"), "grad_reduce_dtype");
    keel_yaml_free(doc);
}

double keel_run_setting(const keel_run_info *info, const char *section, const char *key, double fallback) {
    keel_yaml *doc = parse(info);
    if (!doc) return fallback;
    double value = number(keel_yaml_get(keel_yaml_get(keel_yaml_root(doc), section), key), fallback);
    keel_yaml_free(doc);
    return value;
}
