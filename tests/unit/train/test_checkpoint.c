#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "tests/unit/temp_folder.h"
#include "tests/unit/train/tensor_file.h"
#include "train/checkpoint.h"
#include "train/checkpoint_folder.h"
#include "train/earlier_run.h"
#include "train/pretrained.h"
#include "train/recovery.h"
#include "train/safetensors.h"

typedef struct rig {
    char *dir;
    keel_train_config config;
    keel_probe *probe;
    keel_mesh mesh;
    keel_taps *taps;
    keel_model *model;
    keel_zero zero;
    keel_optimizer *optimizer;
    keel_reshard *reshard;
    keel_facts facts;
} rig;

static keel_train_config small_config(keel_model_type type) {
    return (keel_train_config){.runner = {.steps = 10, .batch_size = 1, .gradient_accumulation_steps = 1, .seed = 3},
                               .model = {.model_type = (int)type,
                                         .vocab_size = 16,
                                         .seq_length = 8,
                                         .hidden_size = 8,
                                         .num_layers = 2,
                                         .num_heads = 2,
                                         .n_kv_heads = type == KEEL_MODEL_LLAMA ? 1 : 2,
                                         .intermediate_size = 16,
                                         .layer_norm_epsilon = 1e-5,
                                         .rms_norm_eps = 1e-6,
                                         .theta = 10000,
                                         .max_position_embeddings = 8,
                                         .tie_word_embeddings = type == KEEL_MODEL_GPT2,
                                         .initializer_range = 0.02},
                               .optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
                               .lr = {.learning_rate = 1e-3, .total_steps = 10}};
}

static void open_model(rig *r, keel_model_type type) {
    r->config = small_config(type);
    assert_int_equal(keel_probe_open(0, &r->probe), KEEL_OK);
    assert_int_equal(keel_taps_open(r->probe, 0, NULL, 0, &r->taps), KEEL_OK);
    r->mesh = keel_mesh_alone();
    const keel_model_plan plan = {.config = &r->config.model, .micro_batch = 1, .mesh = &r->mesh, .taps = r->taps};
    if (keel_model_open(&plan, &r->model)) fail_msg("%s", keel_error());
    if (keel_zero_open(r->model, &r->mesh, 1 << 20, false, &r->zero) ||
        keel_optimizer_open(
            &(keel_optimizer_plan){
                .config = &r->config.optimizer, .model = r->model, .taps = r->taps, .zero = &r->zero},
            &r->optimizer))
        fail_msg("%s", keel_error());
    assert_int_equal(keel_reshard_open(&(keel_reshard_plan){.config = &r->config.model,
                                                            .model = r->model,
                                                            .optimizer = r->optimizer,
                                                            .zero = &r->zero,
                                                            .window = 100}, // less than some tensors, more than others
                                       &r->reshard),
                     KEEL_OK);
    keel_facts_of(&r->config, "data", 1, &r->facts);
}

static void close_model(rig *r) {
    keel_reshard_close(r->reshard);
    keel_optimizer_close(r->optimizer);
    keel_zero_close(&r->zero);
    keel_model_close(r->model);
    keel_taps_close(r->taps);
    keel_probe_close(r->probe);
}

static int set_up(void **state) {
    rig *r = calloc(1, sizeof *r);
    *state = r;
    void *dir = NULL;
    if (!r || temp_folder_make(&dir)) return -1;
    r->dir = dir;
    open_model(r, KEEL_MODEL_LLAMA);
    return 0;
}

static int tear_down(void **state) {
    rig *r = *state;
    close_model(r);
    void *dir = r->dir;
    const int result = temp_folder_remove(&dir);
    free(r);
    return result;
}

// Every buffer of a checkpoint full of values that depend on SEED.
static void fill(rig *r, uint64_t seed) {
    keel_model_init(r->model, seed);
    size_t count;
    const keel_optimizer_state *states = keel_optimizer_states(r->optimizer, &count);
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < keel_model_numel(r->model); k++)
            states[i].data[k] = keel_model_weights(r->model)[k] * (float)(i + 2);
}

static float *copy_weights(const rig *r) {
    const size_t bytes = keel_model_numel(r->model) * sizeof(float);
    float *copy = malloc(bytes);
    memcpy(copy, keel_model_weights(r->model), bytes);
    return copy;
}

static keel_checkpoint checkpoint_of(rig *r) {
    return (keel_checkpoint){.reshard = r->reshard, .progress = {10, 9, 80, 1, {1.0 / 3, 77}}};
}

static keel_status read_checkpoint(const char *path, const keel_facts *facts, keel_checkpoint *checkpoint,
                                   char **changed) {
    const keel_status status = keel_checkpoint_open(path, facts, checkpoint, changed);
    return status ? status : keel_checkpoint_load(checkpoint);
}

static void test_everything_comes_back(void **state) {
    rig *r = *state;
    const char *path = temp_path(r->dir, "c");
    static uint8_t monitor[5] = {1, 2, 3, 0, 5};
    fill(r, 1);
    keel_checkpoint written = checkpoint_of(r), read = checkpoint_of(r);
    written.monitor = monitor;
    written.monitor_bytes = sizeof monitor;
    assert_int_equal(keel_checkpoint_write(path, &written, &r->facts), KEEL_OK);
    float *weights = copy_weights(r);
    fill(r, 2);

    read.progress = (keel_progress){0};
    char *changed = NULL;
    assert_int_equal(read_checkpoint(path, &r->facts, &read, &changed), KEEL_OK);
    assert_null(changed);
    assert_memory_equal(&read.progress, &written.progress, sizeof read.progress);
    assert_int_equal(read.monitor_bytes, sizeof monitor);
    assert_memory_equal(read.monitor, monitor, sizeof monitor);
    const size_t numel = keel_model_numel(r->model);
    assert_memory_equal(keel_model_weights(r->model), weights, numel * sizeof *weights);
    size_t count;
    const keel_optimizer_state *states = keel_optimizer_states(r->optimizer, &count);
    assert_int_equal(count, 2);
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < numel; k++) assert_true(states[i].data[k] == weights[k] * (float)(i + 2));
    free(read.monitor);
    free(weights);
}

static void test_damage_overwrites_nothing(void **state) {
    rig *r = *state;
    const char *path = temp_path(r->dir, "c");
    fill(r, 1);
    keel_checkpoint checkpoint = checkpoint_of(r);
    assert_int_equal(keel_checkpoint_write(path, &checkpoint, &r->facts), KEEL_OK);
    const size_t size = temp_size(path), numel = keel_model_numel(r->model);
    fill(r, 2);
    float *weights = copy_weights(r);
    char *changed = NULL;
    for (size_t at = 0; at < size; at += 97) {
        temp_flip(path, (long)at);
        assert_int_equal(read_checkpoint(path, &r->facts, &checkpoint, &changed), KEEL_ERR_FORMAT);
        assert_non_null(strstr(keel_error(), path));
        temp_flip(path, (long)at);
    }
    assert_int_equal(truncate(path, (off_t)size / 2), 0);
    assert_int_equal(read_checkpoint(path, &r->facts, &checkpoint, &changed), KEEL_ERR_FORMAT);
    assert_null(changed);
    assert_memory_equal(keel_model_weights(r->model), weights, numel * sizeof *weights);
    free(weights);
}

static void test_what_does_not_fit_is_named(void **state) {
    rig *r = *state;
    const char *path = temp_path(r->dir, "c");
    keel_checkpoint checkpoint = checkpoint_of(r);
    assert_int_equal(keel_checkpoint_write(path, &checkpoint, &r->facts), KEEL_OK);
    char *changed = NULL;
    keel_facts other;
    keel_train_config config = r->config;
    config.model.hidden_size = 16;
    keel_facts_of(&config, "data", 1, &other);
    assert_int_equal(read_checkpoint(path, &other, &checkpoint, &changed), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "model_config.hidden_size is 8 there and 16 here"));

    config = r->config;
    config.lr.learning_rate = 2e-3;
    config.optimizer.eps = 1e-6; // 9.9999999999999995e-07 to 17 digits
    keel_facts_of(&config, "data", 2, &other);
    assert_int_equal(read_checkpoint(path, &other, &checkpoint, &changed), KEEL_OK);
    assert_non_null(changed);
    assert_non_null(strstr(changed, "optimizer.eps 1e-08 -> 1e-06"));
    assert_non_null(strstr(changed, "lr_schedule.learning_rate 0.001 -> 0.002, parallel_config.data_parallel 1 -> 2"));
    free(changed);

    // A run with experts is not this one, however much of it is alike, nor the other way round.
    config = r->config;
    config.model.moe.expert_num = 4;
    keel_facts_of(&config, "data", 1, &other);
    assert_int_equal(read_checkpoint(path, &other, &checkpoint, &changed), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "moe_config.expert_num is 1 there and 4 here"));
    assert_int_equal(keel_checkpoint_write(path, &checkpoint, &other), KEEL_OK);
    assert_int_equal(read_checkpoint(path, &r->facts, &checkpoint, &changed), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "moe_config.expert_num is 4 there and 1 here"));

    // A plain model is no checkpoint.
    const float x = 1;
    const keel_safetensors_item item = {"x", "F32", 1, {1}};
    assert_int_equal(tensor_file_write(path,
                                       &(keel_safetensors_content){.items = &item, .item_count = 1, .checksum = true},
                                       (const void *[]){&x}),
                     KEEL_OK);
    assert_int_equal(read_checkpoint(path, &other, &checkpoint, &changed), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "not a checkpoint"));
}

static void expect_nonfinite(rig *r, const char *kind, const char *param) {
    char name[KEEL_SITE_NAME_BYTES + 32], wanted[KEEL_SITE_NAME_BYTES + 32];
    const double first = keel_reshard_nonfinite(r->reshard);
    assert_true(isfinite(first));
    keel_reshard_name_nonfinite(r->reshard, first, name);
    snprintf(wanted, sizeof wanted, "%s.%s", kind, param);
    assert_string_equal(name, wanted);
}

static void test_nonfinite_values_are_named(void **state) {
    rig *r = *state;
    fill(r, 1);
    assert_true(isinf(keel_reshard_nonfinite(r->reshard)));
    size_t params, states;
    const keel_param *param = keel_model_params(r->model, &params);
    keel_model_weights(r->model)[param[1].offset] = NAN;
    expect_nonfinite(r, "model", param[1].name);
    fill(r, 1);
    keel_optimizer_states(r->optimizer, &states)[1].data[param[0].offset] = INFINITY;
    expect_nonfinite(r, "exp_avg_sq", param[0].name);
}

// A write that the system refuses in the middle, as on a full disk.
static void test_a_full_disk_leaves_the_old_one(void **state) {
    rig *r = *state;
    const char *path = temp_path(r->dir, "c");
    keel_checkpoint checkpoint = checkpoint_of(r);
    assert_int_equal(keel_checkpoint_write(path, &checkpoint, &r->facts), KEEL_OK);
    const size_t size = temp_size(path);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4096;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    checkpoint.progress.step = 11;
    const keel_status status = keel_checkpoint_write(path, &checkpoint, &r->facts);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, KEEL_ERR_IO);
    assert_non_null(strstr(keel_error(), "c.partial: "));
    assert_int_equal(access(temp_path(r->dir, "c.partial"), F_OK), -1);
    assert_int_equal(temp_size(path), size);
    char *changed = NULL;
    assert_int_equal(read_checkpoint(path, &r->facts, &checkpoint, &changed), KEEL_OK);
    assert_int_equal(checkpoint.progress.step, 10);
}

// ---- the folder ----

static void put(rig *r, keel_checkpoint_folder *folder, uint64_t step) {
    keel_checkpoint checkpoint = checkpoint_of(r);
    checkpoint.progress.step = step;
    const keel_checkpoint_entry entry = {.step = step};
    char *path = keel_checkpoint_folder_path(folder, &entry);
    assert_int_equal(keel_checkpoint_write(path, &checkpoint, &r->facts), KEEL_OK);
    free(path);
    assert_int_equal(keel_checkpoint_folder_add(folder, step), KEEL_OK);
}

static void open_folder(const rig *r, keel_checkpoint_folder *folder) {
    mkdir(temp_path(r->dir, "checkpoints"), 0777);
    assert_int_equal(keel_checkpoint_folder_open(r->dir, folder), KEEL_OK);
}

// "100 200h 300": the steps, h: healthy. Both as the folder lists them and as a new look at the disk does.
static void expect_entries(const rig *r, keel_checkpoint_folder *folder, const char *wanted) {
    for (int look = 0; look < 2; look++) {
        char text[256] = "";
        for (size_t i = 0; i < folder->count; i++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%llu%s", i ? " " : "",
                     (unsigned long long)folder->entries[i].step, folder->entries[i].healthy ? "h" : "");
        assert_string_equal(text, wanted);
        if (look) break;
        keel_checkpoint_folder_close(folder);
        assert_int_equal(keel_checkpoint_folder_open(r->dir, folder), KEEL_OK);
    }
}

static void test_marks_of_health(void **state) {
    rig *r = *state;
    keel_checkpoint_folder folder;
    open_folder(r, &folder);
    for (uint64_t step = 100; step <= 400; step += 100) put(r, &folder, step);
    assert_int_equal(keel_checkpoint_folder_judge(&folder, &(keel_health){0}), KEEL_OK);
    expect_entries(r, &folder, "100 200 300 400");
    // Quiet since step 150: 100 saw trouble after it; 300 has not yet seen 200 steps.
    assert_int_equal(keel_checkpoint_folder_judge(&folder, &(keel_health){.judged_step = 499, .quiet_steps = 349}),
                     KEEL_OK);
    expect_entries(r, &folder, "100 200h 300 400");
    assert_int_equal(keel_checkpoint_folder_judge(&folder, &(keel_health){.judged_step = 500, .quiet_steps = 350}),
                     KEEL_OK);
    expect_entries(r, &folder, "100 200h 300h 400");
    assert_int_equal(keel_checkpoint_folder_judge(&folder, &(keel_health){.judged_step = 700, .quiet_steps = 199}),
                     KEEL_OK);
    expect_entries(r, &folder, "100 200h 300h 400");
    put(r, &folder, 300); // a course that was given up
    expect_entries(r, &folder, "100 200h 300 400");
    keel_checkpoint_folder_close(&folder);
}

static void test_what_is_deleted(void **state) {
    rig *r = *state;
    keel_checkpoint_folder folder;
    open_folder(r, &folder);
    for (uint64_t step = 100; step <= 500; step += 100) put(r, &folder, step);
    const keel_health quiet = {.judged_step = 700, .quiet_steps = 700};
    assert_int_equal(keel_checkpoint_folder_judge(&folder, &quiet), KEEL_OK);
    for (uint64_t step = 600; step <= 900; step += 100) put(r, &folder, step);
    expect_entries(r, &folder, "100h 200h 300h 400h 500h 600 700 800 900");
    assert_int_equal(keel_checkpoint_folder_prune(&folder, 2, 3), KEEL_OK);
    expect_entries(r, &folder, "300h 400h 500h 800 900");
    assert_int_equal(keel_checkpoint_folder_prune(&folder, 0, 0), KEEL_OK);
    expect_entries(r, &folder, "900");
    keel_checkpoint_folder_close(&folder);
}

static void test_leftovers_and_old_runs(void **state) {
    rig *r = *state;
    keel_checkpoint_folder folder;
    assert_int_equal(keel_checkpoint_folder_open(r->dir, &folder), KEEL_OK); // no folder yet
    keel_checkpoint_folder_clean(&folder);
    keel_checkpoint_folder_close(&folder);

    open_folder(r, &folder);
    put(r, &folder, 1);
    const char *partial = temp_path(r->dir, "checkpoints/step-0000000002.safetensors.partial");
    temp_write(partial, "x", 1);
    temp_write(temp_path(r->dir, "checkpoints/step-1.safetensors"), "x", 1);
    temp_write(temp_path(r->dir, "checkpoints/step-0000000003.safetensors.damaged"), "x", 1);
    expect_entries(r, &folder, "1");
    assert_int_equal(access(partial, F_OK), 0); // it may be another job's that is writing now
    keel_checkpoint_folder_clean(&folder);
    assert_int_equal(access(partial, F_OK), -1);
    expect_entries(r, &folder, "1");

    keel_checkpoint_folder_close(&folder);
    static const char *const names[] = {"earlier.1", "earlier.2"}, *const files[] = {"earlier.1/train.csv",
                                                                                     "earlier.2/train.csv"};
    char *moved = NULL;
    for (size_t i = 0; i < 2; i++) {
        temp_write(temp_path(r->dir, "train.csv"), "step\n", 5);
        assert_int_equal(keel_earlier_run_move(r->dir, &moved), KEEL_OK);
        assert_string_equal(moved, temp_path(r->dir, names[i]));
        free(moved);
        assert_int_equal(access(temp_path(r->dir, "train.csv"), F_OK), -1);
        assert_int_equal(access(temp_path(r->dir, files[i]), F_OK), 0);
    }
    assert_int_equal(keel_checkpoint_folder_open(temp_path(r->dir, names[0]), &folder), KEEL_OK);
    assert_int_equal(folder.count, 1);
    keel_checkpoint_folder_close(&folder);
    assert_int_equal(keel_earlier_run_move(r->dir, &moved), KEEL_OK); // nothing left
    assert_null(moved);
}

// ---- recovery ----

static void hear(void *context, const char *text) {
    strcat(context, text);
    strcat(context, "\n");
}

static void damage(keel_checkpoint_folder *folder, size_t index) {
    char *path = keel_checkpoint_folder_path(folder, &folder->entries[index]);
    temp_flip(path, (long)temp_size(path) / 2);
    free(path);
}

static void test_the_newest_whole_one_is_taken(void **state) {
    rig *r = *state;
    keel_checkpoint_folder folder;
    char notes[4096] = "";
    open_folder(r, &folder);
    keel_checkpoint checkpoint = checkpoint_of(r);
    assert_int_equal(keel_recover(&folder, &r->facts, false, hear, notes, &checkpoint), KEEL_ERR_NOT_FOUND);
    assert_non_null(strstr(keel_error(), "no checkpoint to resume from"));

    for (uint64_t step = 100; step <= 300; step += 100) put(r, &folder, step);
    damage(&folder, 2);
    assert_int_equal(keel_recover(&folder, &r->facts, true, hear, notes, &checkpoint), KEEL_OK); // only to look
    keel_checkpoint_close(&checkpoint);
    assert_int_equal(checkpoint.progress.step, 200);
    assert_non_null(strstr(notes, "step-0000000300.safetensors: damaged"));
    assert_non_null(strstr(notes, "passed over, the one before it is tried"));
    expect_entries(r, &folder, "100 200 300");
    assert_int_equal(keel_recover(&folder, &r->facts, false, hear, notes, &checkpoint), KEEL_OK);
    keel_checkpoint_close(&checkpoint);
    assert_int_equal(checkpoint.progress.step, 200);
    assert_non_null(strstr(notes, "step-0000000300.safetensors: damaged"));
    assert_non_null(strstr(notes, "resumed from "));
    expect_entries(r, &folder, "100 200");
    assert_int_equal(access(temp_path(r->dir, "checkpoints/step-0000000300.safetensors.damaged"), F_OK), 0);

    damage(&folder, 0);
    damage(&folder, 1);
    assert_int_equal(keel_recover(&folder, &r->facts, false, hear, notes, &checkpoint), KEEL_ERR_NOT_FOUND);
    assert_non_null(strstr(keel_error(), "none of its 2 checkpoints is whole"));
    keel_checkpoint_folder_close(&folder);
}

// Whole files that do not fit this run are neither damaged nor passed over.
static void test_what_does_not_fit_is_not_set_aside(void **state) {
    rig *r = *state;
    keel_checkpoint_folder folder;
    char notes[4096] = "";
    open_folder(r, &folder);
    for (uint64_t step = 100; step <= 200; step += 100) put(r, &folder, step);
    keel_checkpoint checkpoint = checkpoint_of(r);
    // As if written before there was this fact, so that only the tensors tell.
    close_model(r);
    open_model(r, KEEL_MODEL_GPT2);
    checkpoint.reshard = r->reshard;
    keel_facts facts = r->facts;
    facts.count = 0;
    assert_int_equal(keel_recover(&folder, &facts, false, hear, notes, &checkpoint), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "no tensor model."));
    expect_entries(r, &folder, "100 200");
    keel_checkpoint_folder_close(&folder);
}

static void test_to_look_at_a_step_the_healthy_one_before_it_is_taken(void **state) {
    rig *r = *state;
    keel_checkpoint_folder folder;
    char notes[4096] = "";
    open_folder(r, &folder);
    keel_checkpoint checkpoint = checkpoint_of(r);
    assert_int_equal(keel_recover_before(&folder, 50, &r->facts, hear, notes, &checkpoint), KEEL_ERR_NOT_FOUND);
    assert_non_null(strstr(keel_error(), "checkpoints: no checkpoint"));
    for (uint64_t step = 100; step <= 300; step += 100) put(r, &folder, step);
    assert_int_equal(keel_recover_before(&folder, 300, &r->facts, hear, notes, &checkpoint), KEEL_OK);
    keel_checkpoint_close(&checkpoint);
    assert_int_equal(checkpoint.progress.step, 200);
    assert_non_null(strstr(notes, "no checkpoint before it has the mark of health"));

    const keel_health quiet = {.judged_step = 320, .quiet_steps = 320};
    assert_int_equal(keel_checkpoint_folder_judge(&folder, &quiet), KEEL_OK);
    assert_int_equal(keel_recover_before(&folder, 350, &r->facts, hear, notes, &checkpoint), KEEL_OK);
    keel_checkpoint_close(&checkpoint);
    assert_int_equal(checkpoint.progress.step, 100);
    assert_non_null(strstr(notes, "parameters of the healthy checkpoint "));
    assert_int_equal(keel_recover_before(&folder, 100, &r->facts, hear, notes, &checkpoint), KEEL_ERR_NOT_FOUND);
    assert_non_null(strstr(keel_error(), "no whole checkpoint before step 100; the oldest is of step 100"));

    damage(&folder, 0); // passed over, and left where it is
    assert_int_equal(keel_recover_before(&folder, 350, &r->facts, hear, notes, &checkpoint), KEEL_OK);
    keel_checkpoint_close(&checkpoint);
    assert_int_equal(checkpoint.progress.step, 300);
    assert_int_equal(access(temp_path(r->dir, "checkpoints/step-0000000100.healthy.safetensors"), F_OK), 0);
    keel_checkpoint_folder_close(&folder);
}

// ---- export ----

static keel_status load_weights(rig *r, const char *path, size_t *ignored) {
    keel_pretrained *weights;
    keel_status status = keel_pretrained_open(path, r->reshard, &weights, ignored);
    if (status) return status;
    status = keel_pretrained_load(weights, r->reshard);
    keel_pretrained_close(weights);
    return status;
}

static void test_exported_weights_come_back(void **state) {
    rig *r = *state;
    static const keel_model_type types[] = {KEEL_MODEL_LLAMA, KEEL_MODEL_GPT2};
    for (size_t t = 0; t < 2; t++) {
        close_model(r);
        open_model(r, types[t]);
        fill(r, 1);
        float *weights = copy_weights(r);
        const char *path = temp_path(r->dir, "model.safetensors");
        assert_int_equal(keel_pretrained_save(path, r->reshard), KEEL_OK);
        fill(r, 2);
        size_t ignored = 7;
        if (load_weights(r, r->dir, &ignored)) fail_msg("%s", keel_error());
        assert_int_equal(ignored, 0);
        assert_memory_equal(keel_model_weights(r->model), weights, keel_model_numel(r->model) * sizeof *weights);
        free(weights);
    }
    // GPT-2's file does not make a LLaMA.
    close_model(r);
    open_model(r, KEEL_MODEL_LLAMA);
    size_t ignored;
    assert_int_equal(load_weights(r, r->dir, &ignored), KEEL_ERR_FORMAT);
    assert_non_null(strstr(keel_error(), "no tensor model."));
}

// The tensors of the model as two files that an index names.
static void write_shards(rig *r, const char *index) {
    size_t count;
    const keel_hf_tensor *tensors = keel_model_hf_tensors(r->model, &count);
    size_t params;
    const keel_param *list = keel_model_params(r->model, &params);
    keel_safetensors_item *items = calloc(count, sizeof *items);
    const void **data = calloc(count, sizeof *data);
    FILE *file = fopen(index, "w");
    fputs("{\"metadata\": {\"total_size\": 1}, \"weight_map\": {", file);
    for (size_t i = 0; i < count; i++) {
        const keel_param *param = &list[tensors[i].param];
        const size_t at = param->offset + tensors[i].row * keel_param_cols(param);
        items[i] = (keel_safetensors_item){.name = tensors[i].name, .dtype = "F32", .ndim = tensors[i].ndim};
        data[i] = keel_model_weights(r->model) + at;
        memcpy(items[i].shape, tensors[i].shape, sizeof tensors[i].shape);
        fprintf(file, "%s\"%s\": \"model-%d.safetensors\"", i ? ", " : "", tensors[i].name, i < count / 2 ? 1 : 2);
    }
    fputs("}}", file);
    fclose(file);
    const keel_safetensors_content first = {.items = items, .item_count = count / 2},
                                   second = {.items = items + count / 2, .item_count = count - count / 2};
    assert_int_equal(tensor_file_write(temp_path(r->dir, "model-1.safetensors"), &first, data), KEEL_OK);
    assert_int_equal(tensor_file_write(temp_path(r->dir, "model-2.safetensors"), &second, data + count / 2), KEEL_OK);
    free(data);
    free(items);
}

static void refuse_index(rig *r, const char *path, const char *text, const char *what) {
    size_t ignored;
    temp_write(path, text, strlen(text));
    assert_int_equal(load_weights(r, r->dir, &ignored), KEEL_ERR_FORMAT);
    assert_non_null(strstr(keel_error(), path));
    assert_non_null(strstr(keel_error(), what));
}

static void test_weights_in_several_files(void **state) {
    rig *r = *state;
    const char *index = temp_path(r->dir, "model.safetensors.index.json");
    fill(r, 1);
    float *weights = copy_weights(r);
    write_shards(r, index);
    const char *const paths[] = {r->dir, index};
    for (size_t i = 0; i < 2; i++) {
        fill(r, 2);
        size_t ignored = 7;
        if (load_weights(r, paths[i], &ignored)) fail_msg("%s", keel_error());
        assert_int_equal(ignored, 0);
        assert_memory_equal(keel_model_weights(r->model), weights, keel_model_numel(r->model) * sizeof *weights);
    }
    free(weights);
    size_t ignored;
    assert_int_equal(remove(temp_path(r->dir, "model-2.safetensors")), 0);
    assert_int_equal(load_weights(r, r->dir, &ignored), KEEL_ERR_NOT_FOUND);
    assert_non_null(strstr(keel_error(), "model-2.safetensors"));
    refuse_index(r, index, "{\n\"weight_map\": ", "index.json:");
    refuse_index(r, index, "{}", "no weight_map");
    refuse_index(r, index, "{\"weight_map\": {\"x\": \"../model.safetensors\"}}", "x: expected the name of a file");
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        TEST(test_everything_comes_back),
        TEST(test_damage_overwrites_nothing),
        TEST(test_what_does_not_fit_is_named),
        TEST(test_nonfinite_values_are_named),
        TEST(test_a_full_disk_leaves_the_old_one),
        TEST(test_marks_of_health),
        TEST(test_what_is_deleted),
        TEST(test_leftovers_and_old_runs),
        TEST(test_the_newest_whole_one_is_taken),
        TEST(test_what_does_not_fit_is_not_set_aside),
        TEST(test_to_look_at_a_step_the_healthy_one_before_it_is_taken),
        TEST(test_exported_weights_come_back),
        TEST(test_weights_in_several_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
