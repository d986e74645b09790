// A model cut into stages, with several micro-batches on their way, and one whose layers are computed again, against
// the whole that keeps everything: the same bits, and the same of it seen.
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/unit/train_math/small_models.h"
#include "tests/unit/train_math/watcher.h"
#include "train/model/model_state.h"

enum { BATCH = 2, LAYERS = 5, SEQ = SMALL_SEQ, WIDTH = SMALL_WIDTH, MICRO = 2, ROWS = BATCH * SEQ };

static const keel_model_config gpt2 = SMALL_GPT2(LAYERS);
static const keel_model_config llama = SMALL_LLAMA(LAYERS, .n_kv_heads = 2);
static const keel_model_config experts = SMALL_LLAMA(LAYERS, .moe = {.expert_num = 4,
                                                                     .num_experts_chosen = 2,
                                                                     .capacity_factor = 1.1,
                                                                     .aux_loss_factor = 0.05,
                                                                     .z_loss_factor = 1e-3,
                                                                     .norm_topk_prob = true,
                                                                     .use_gmm = true,
                                                                     .enable_gmm_safe_tokens = true});

// A model with its probe, and one gradient for each micro-batch.
typedef struct part {
    watcher watcher;
    keel_probe *probe;
    keel_mesh mesh;
    keel_taps *taps;
    keel_model *model;
    keel_stage stage;
    float *grads[MICRO];
} part;

static void open_part(const keel_model_config *config, const keel_stage *stage, const keel_recompute_config *recompute,
                      const keel_fault_config *fault, part *p) {
    *p = (part){.watcher = {.on = true}, .mesh = keel_mesh_alone(), .stage = {.count = 1, .layers = LAYERS}};
    if (stage) p->stage = *stage;
    assert_int_equal(keel_probe_open(0, &p->probe), KEEL_OK);
    keel_probe_set_backend(p->probe, &(keel_backend){.context = &p->watcher,
                                                     .start = watcher_start,
                                                     .frame_begin = watcher_frame_begin,
                                                     .frame_end = watcher_frame_end});
    assert_int_equal(keel_taps_open(p->probe, 0, fault, fault != NULL, &p->taps), KEEL_OK);
    const keel_model_plan plan = {.config = config,
                                  .micro_batch = BATCH,
                                  .stage = stage,
                                  .slots = MICRO,
                                  .recompute = recompute,
                                  .mesh = &p->mesh,
                                  .taps = p->taps};
    if (keel_model_open(&plan, &p->model)) fail_msg("%s", keel_error());
    assert_int_equal(keel_probe_start(p->probe), KEEL_OK);
    keel_model_init(p->model, 7);
    keel_model_take_weights(p->model);
    for (size_t m = 0; m < MICRO; m++) {
        p->grads[m] = calloc(keel_model_numel(p->model), sizeof(float));
        assert_non_null(p->grads[m]);
    }
}

static void close_part(part *p) {
    keel_model_close(p->model);
    keel_taps_close(p->taps);
    keel_probe_close(p->probe);
    free(p->watcher.memory);
    for (size_t m = 0; m < MICRO; m++) free(p->grads[m]);
}

static const uint32_t *tokens_of(size_t micro) {
    static uint32_t tokens[MICRO][BATCH * (SEQ + 1)];
    random_tokens(tokens[micro], BATCH * (SEQ + 1), SMALL_VOCAB, 5 + (uint32_t)micro);
    return tokens[micro];
}

static void begin(part *p) {
    keel_step_begin(p->probe, 1);
    (void)keel_taps_arm(p->taps, 1);
}

// ---- stages ----

static const part *owner(const part *parts, size_t count, const char *name, const keel_param **param) {
    for (size_t s = 0; s < count; s++) {
        size_t params;
        const keel_param *list = keel_model_params(parts[s].model, &params);
        for (size_t i = 0; i < params; i++)
            if (list[i].holder == 0 && strcmp(list[i].name, name) == 0) {
                *param = &list[i];
                return &parts[s];
            }
    }
    return NULL;
}

// The gradient that a stage has of the table that the first one owns; NULL: there is none.
static const float *copy_of(const part *last, size_t micro) {
    size_t count;
    const keel_param *first = keel_model_params(last->model, &count);
    return first->holder == 1 ? last->grads[micro] + first->offset : NULL;
}

static void assert_same_gradients(const part *whole, const part *parts, size_t count) {
    size_t params;
    const keel_param *list = keel_model_params(whole->model, &params);
    for (size_t i = 0; i < params; i++) {
        const keel_param *param = NULL;
        const part *p = owner(parts, count, list[i].name, &param);
        if (!p || !param) {
            fail_msg("no stage has %s", list[i].name);
            return;
        }
        assert_int_equal(param->place, list[i].place);
        assert_int_equal(param->stage, p->stage.index);
        assert_memory_equal(keel_model_weights(p->model) + param->offset,
                            keel_model_weights(whole->model) + list[i].offset, param->numel * sizeof(float));
        for (size_t m = 0; m < MICRO; m++) {
            const float *copy = param->holders > 1 ? copy_of(&parts[count - 1], m) : NULL;
            for (size_t k = 0; k < param->numel; k++) {
                const float expected = whole->grads[m][list[i].offset + k];
                float found = p->grads[m][param->offset + k];
                if (copy) found += copy[k]; // in another order than that of the whole
                const bool same = copy ? fabsf(found - expected) <= 1e-6f : found == expected;
                if (!same) fail_msg("%s[%zu]: %.9g, expected %.9g", param->name, k, (double)found, (double)expected);
            }
        }
    }
}

// Every site of the whole is a site of one stage, with the same order, and saw the same.
static void assert_same_sites(const part *whole, const part *parts, size_t count) {
    uint32_t sites = 0;
    for (size_t s = 0; s < count; s++) {
        for (uint32_t i = 0; i < keel_probe_site_count(parts[s].probe); i++, sites++) {
            const keel_site_info *info = keel_probe_site_info(parts[s].probe, i), *other = NULL;
            uint32_t k = 0;
            for (; k < keel_probe_site_count(whole->probe); k++) {
                other = keel_probe_site_info(whole->probe, k);
                if (other->quantity == info->quantity && strcmp(other->name, info->name) == 0) break;
            }
            if (!other) {
                fail_msg("the whole model has no %s", info->name);
                return;
            }
            assert_string_equal(other->name, info->name);
            assert_int_equal(other->order, info->order);
            assert_int_equal(other->phase, info->phase);
            assert_int_equal(info->stage, s);
            const keel_stats *a = keel_frame_stats(whole->watcher.frame) + k;
            const keel_stats *b = keel_frame_stats(parts[s].watcher.frame) + i;
            assert_true(a->n == b->n && a->sum == b->sum && a->sum_sq == b->sum_sq && a->max == b->max);
        }
    }
    assert_int_equal(sites, keel_probe_site_count(whole->probe));
}

static double forward(part *p, size_t micro, float *stream, float *out) {
    double loss = 0;
    keel_taps_begin_micro(p->taps, (uint32_t)micro);
    const keel_stage_forward pass = {.slot = micro,
                                     .tokens = tokens_of(micro),
                                     .scale = 0.02,
                                     .grad = p->grads[micro],
                                     .stream = stream,
                                     .out = out};
    assert_int_equal(keel_model_forward_stage(p->model, &pass, &loss), KEEL_OK);
    return loss;
}

// All micro-batches are before the last stage when the first comes back.
static double run_stages(part *parts, size_t count) {
    static float streams[4][MICRO][ROWS * WIDTH], dstream[ROWS * WIDTH];
    double loss = 0;
    for (size_t s = 0; s < count; s++) begin(&parts[s]);
    for (size_t s = 0; s + 1 < count; s++)
        for (size_t m = 0; m < MICRO; m++) (void)forward(&parts[s], m, streams[s][m], streams[s + 1][m]);
    for (size_t m = 0; m < MICRO; m++) {
        loss += forward(&parts[count - 1], m, streams[count - 1][m], NULL);
        for (size_t s = count; s-- > 0;) {
            keel_taps_begin_micro(parts[s].taps, (uint32_t)m);
            keel_model_backward_stage(parts[s].model,
                                      &(keel_stage_backward){.slot = m, .grad = parts[s].grads[m], .dstream = dstream});
        }
    }
    for (size_t s = 0; s < count; s++) keel_step_end(parts[s].probe, &(keel_step){.step = 1});
    return loss;
}

static double run_whole(part *p) {
    double loss = 0;
    begin(p);
    for (size_t m = 0; m < MICRO; m++) {
        double sum;
        keel_taps_begin_micro(p->taps, (uint32_t)m);
        assert_int_equal(keel_model_forward(p->model, tokens_of(m), 0.02, p->grads[m], &sum), KEEL_OK);
        assert_int_equal(keel_model_backward(p->model, NULL, NULL), KEEL_OK);
        loss += sum;
    }
    keel_step_end(p->probe, &(keel_step){.step = 1});
    return loss;
}

static void check_stages(const keel_model_config *config, uint32_t count, const keel_recompute_config *recompute) {
    keel_train_config train = {.model = *config, .parallel = {.pipeline_stage = count}};
    part whole, parts[3];
    open_part(config, NULL, NULL, NULL, &whole);
    for (uint32_t s = 0; s < count; s++) {
        const keel_stage stage = keel_stage_of(&train, s);
        open_part(config, &stage, recompute, NULL, &parts[s]);
    }
    const double loss = run_whole(&whole);
    assert_true(run_stages(parts, count) == loss);
    assert_same_gradients(&whole, parts, count);
    assert_same_sites(&whole, parts, count);
    close_part(&whole);
    for (uint32_t s = 0; s < count; s++) close_part(&parts[s]);
}

static void test_stages(void **state) {
    (void)state;
    bool all[LAYERS] = {true, true, true, true, true}, some[LAYERS] = {false, false, true, false, true};
    const keel_recompute_config recompute = {.full = some, .select = all};
    for (uint32_t count = 2; count <= 3; count++) {
        check_stages(&gpt2, count, NULL);
        check_stages(&llama, count, NULL);
        check_stages(&experts, count, NULL);
        check_stages(&gpt2, count, &recompute);
        check_stages(&llama, count, &recompute);
        check_stages(&experts, count, &recompute);
    }
}

static const keel_param *param_of(const part *p, const char *name) {
    size_t count;
    const keel_param *list = keel_model_params(p->model, &count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0) return &list[i];
    return NULL;
}

static uint32_t order_back_at(const part *p, const char *name) {
    for (uint32_t i = 0; i < keel_probe_site_count(p->probe); i++) {
        const keel_site_info *info = keel_probe_site_info(p->probe, i);
        if (info->quantity == KEEL_ACTIVATION_GRAD && strcmp(info->name, name) == 0) return info->order;
    }
    fail_msg("no gradient by %s", name);
    return 0;
}

// A parameter's gradient stands where the gradient by its module's output does.
static void test_orders(void **state) {
    (void)state;
    static const char *const places[][2] = {{"embedding.weight", "embedding"},
                                            {"position.weight", "embedding"},
                                            {"layers.3.norm1.bias", "layers.3.norm1"},
                                            {"layers.3.attention.qkv.weight", "layers.3.attention.qkv"},
                                            {"layers.3.attention.out.bias", "layers.3.attention.out"},
                                            {"layers.3.norm2.weight", "layers.3.norm2"},
                                            {"layers.3.mlp.up.weight", "layers.3.mlp.up"},
                                            {"layers.3.mlp.down.bias", "layers.3.mlp.down"},
                                            {"layers.4.mlp.router.weight", "layers.4.mlp.router"},
                                            {"layers.4.mlp.experts.gate_up.weight", "layers.4.mlp.experts.gate_up"},
                                            {"layers.4.mlp.experts.down.weight", "layers.4.mlp"},
                                            {"final_norm.weight", "final_norm"},
                                            {"head.weight", "head"}};
    enum { PLACES = sizeof places / sizeof *places };
    bool seen[PLACES] = {false};
    const keel_model_config *const configs[] = {&gpt2, &experts};
    for (size_t c = 0; c < 2; c++) {
        part whole;
        open_part(configs[c], NULL, NULL, NULL, &whole);
        for (size_t i = 0; i < PLACES; i++) {
            const keel_param *param = param_of(&whole, places[i][0]);
            if (!param) continue;
            assert_int_equal(param->order, order_back_at(&whole, places[i][1]));
            seen[i] = true;
        }
        close_part(&whole);
    }
    for (size_t i = 0; i < PLACES; i++) assert_true(seen[i]);
    const keel_stage last = {.index = 1, .count = 2, .first = 3, .layers = 2};
    part end;
    open_part(&gpt2, &last, NULL, NULL, &end);
    const keel_param *tied = param_of(&end, "embedding.weight");
    assert_non_null(tied);
    assert_int_equal(tied->order, order_back_at(&end, "head"));
    close_part(&end);
}

static void assert_layers(const keel_train_config *config, const size_t *expected) {
    size_t first = 0;
    for (uint32_t s = 0; s < (uint32_t)config->parallel.pipeline_stage; s++) {
        const keel_stage stage = keel_stage_of(config, s);
        assert_int_equal(stage.first, first);
        assert_int_equal(stage.layers, expected[s]);
        first += stage.layers;
    }
    assert_int_equal(first, config->model.num_layers);
}

static void test_layers_of_stages(void **state) {
    (void)state;
    int64_t given[] = {1, 4};
    keel_train_config config = {.model = {.num_layers = 5}, .parallel = {.pipeline_stage = 2}};
    assert_layers(&config, (size_t[]){3, 2});
    config.parallel.pipeline_stage = 3;
    assert_layers(&config, (size_t[]){2, 2, 1});
    config.parallel.pipeline_stage = 4;
    assert_layers(&config, (size_t[]){1, 2, 1, 1});
    config.parallel.pipeline_stage = 5;
    assert_layers(&config, (size_t[]){1, 1, 1, 1, 1});
    config.parallel.pipeline_stage = 2;
    config.parallel.pipeline_layers = given;
    assert_layers(&config, (size_t[]){1, 4});
}

// ---- computed again ----

static size_t check_recompute(const keel_model_config *config, const keel_recompute_config *recompute,
                              const keel_fault_config *fault) {
    part kept, again;
    open_part(config, NULL, NULL, fault, &kept);
    open_part(config, NULL, recompute, fault, &again);
    assert_true(run_whole(&kept) == run_whole(&again));
    for (size_t m = 0; m < MICRO; m++)
        assert_memory_equal(kept.grads[m], again.grads[m], keel_model_numel(kept.model) * sizeof(float));
    assert_same_sites(&kept, &again, 1);
    const size_t saved = keel_model_bytes(kept.model) - keel_model_bytes(again.model);
    close_part(&kept);
    close_part(&again);
    return saved;
}

static void test_recompute(void **state) {
    (void)state;
    bool all[LAYERS] = {true, true, true, true, true}, some[LAYERS] = {true, false, false, true, true};
    const keel_recompute_config full = {.full = all}, select = {.select = all}, mixed = {.full = some, .select = all};
    const keel_model_config *const configs[] = {&gpt2, &llama, &experts};
    for (size_t i = 0; i < 3; i++) {
        const keel_model_config *c = configs[i];
        const size_t f = (size_t)c->intermediate_size, slots = MICRO, width = sizeof(float);
        const size_t least = (slots * LAYERS - 1) * ROWS * (WIDTH + f) * width; // core and act
        const size_t saved = check_recompute(c, &select, NULL);
        assert_true(saved >= least);
        assert_true(check_recompute(c, &full, NULL) > 2 * saved);
        assert_true(check_recompute(c, &mixed, NULL) > saved);
    }
    assert_int_equal(check_recompute(&gpt2, &(keel_recompute_config){0}, NULL), 0);
}

// What a fault does in the first micro-batch it does to that one again, and to no other.
static void test_recompute_disturbed(void **state) {
    (void)state;
    bool all[LAYERS] = {true, true, true, true, true};
    const keel_recompute_config full = {.full = all};
    char up[] = "layers.2.mlp.act";
    const keel_fault_config dead = {.kind = KEEL_FAULT_DEAD_LAYER, .step = 1, .steps = 1, .rank = -1, .site = up};
    check_recompute(&gpt2, &full, &dead);
    check_recompute(&llama, &full, &dead);
}

int main(void) {
    omp_set_num_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_layers_of_stages),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_recompute_disturbed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
