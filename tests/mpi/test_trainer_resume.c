// A run that is stopped and taken up again goes on bit for bit.
#include <sys/stat.h>

#include "tests/mpi/trainer_rig.h"

static keel_sequences language;

static char *path_in(const char *folder, const char *name) {
    static char paths[32][512];
    static unsigned next;
    char *path = paths[next++ % 32];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void flip_byte(const char *path) {
    struct stat about;
    CHECK(stat(path, &about) == 0);
    FILE *file = fopen(path, "r+b");
    CHECK(file && fseek(file, about.st_size / 2, SEEK_SET) == 0);
    const int byte = fgetc(file);
    CHECK(fseek(file, about.st_size / 2, SEEK_SET) == 0 && fputc(byte ^ 1, file) != EOF && fclose(file) == 0);
}

static void test_resume(int64_t accumulation) {
    static rig_record whole, cut;
    char *folder = rig_folder();
    memset(&whole, 0, sizeof whole);
    memset(&cut, 0, sizeof cut);
    keel_train_config config = rig_config(path_in(folder, "whole"), accumulation);
    config.checkpoint.save_interval = 10;
    CHECK(rig_train(&config, &language, false, &whole) == KEEL_OK);

    config.runner.output_dir = path_in(folder, "cut");
    config.runner.steps = 17;
    CHECK(rig_train(&config, &language, false, &cut) == KEEL_OK);
    config.runner.steps = 30;
    CHECK(rig_train(&config, &language, true, &cut) == KEEL_OK);
    rig_check_same(&whole, &cut, 1, 30);
    if (check_rank == 0) {
        CHECK(whole.count == 30 && cut.count == 30);
        CHECK(whole.losses[29] <
              0.8 * whole.losses[0]); // it has learned: the losses are not equal because they are all alike
        CHECK(strstr(cut.notes, "resumed from ") && strstr(cut.notes, "step-0000000017"));
        CHECK(!strstr(cut.notes, "bit for bit"));
        CHECK(cut.steps[17].flags & KEEL_STEP_RESUMED && !(cut.steps[18].flags & KEEL_STEP_RESUMED));
        for (size_t i = 0; i < 30; i++) {
            CHECK(cut.steps[i].samples == 4 * (i + 1) && cut.steps[i].update == i + 1);
            CHECK(cut.steps[i].last_batch - cut.steps[i].first_batch + 1 == (uint64_t)accumulation);
            CHECK(cut.steps[i].first_batch == i * (uint64_t)accumulation);
        }
    }
    rig_remove_folder(folder);
}

// The newest checkpoint is damaged: the one before it is taken, and the run still comes to the same losses.
static void test_damaged_checkpoints(void) {
    static rig_record whole, again;
    char *folder = rig_folder();
    keel_train_config config = rig_config(path_in(folder, "run"), 1);
    config.checkpoint.save_interval = 10;
    CHECK(rig_train(&config, &language, false, &whole) == KEEL_OK);
    if (check_rank == 0) flip_byte(path_in(folder, "run/checkpoints/step-0000000030.safetensors"));
    CHECK(rig_train(&config, &language, true, &again) == KEEL_OK);
    rig_check_same(&whole, &again, 21, 30);
    if (check_rank == 0) CHECK(again.count == 10 && strstr(again.notes, "step-0000000030.safetensors: damaged"));

    config.model.hidden_size = 64;
    CHECK(rig_train(&config, &language, true, &again) == KEEL_ERR_CONFIG);
    CHECK(strstr(keel_error(), "model_config.hidden_size is 32 there and 64 here"));
    config.model.hidden_size = 32;

    for (int step = 10; step <= 30 && check_rank == 0; step += 10) {
        char name[64];
        snprintf(name, sizeof name, "run/checkpoints/step-%010d.safetensors", step);
        flip_byte(path_in(folder, name));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(rig_train(&config, &language, true, &again) == KEEL_ERR_NOT_FOUND);
    CHECK(strstr(keel_error(), "none of its 3 checkpoints is whole"));
    rig_remove_folder(folder);
}

static keel_status start_nothing(void *context, keel_probe *probe, keel_site_plan *plans) {
    (void)context, (void)probe, (void)plans;
    return KEEL_OK;
}

static keel_frame *no_frame(void *context, uint64_t step) {
    (void)context, (void)step;
    return NULL;
}

static void end_nothing(void *context, keel_frame *frame, const keel_step *step) {
    (void)context, (void)frame, (void)step;
}

static keel_status refuse_state(void *context, uint64_t step, const void *bytes, size_t size) {
    (void)context, (void)step, (void)bytes, (void)size;
    return keel_fail(KEEL_ERR_FORMAT, "state of another version");
}

// Of another version of the monitor, say: the run goes on, with rules that know nothing of the past.
static void test_a_state_of_the_monitor_that_does_not_fit(void) {
    static rig_record record;
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    config.runner.steps = 10;
    config.checkpoint.save_interval = 10;
    CHECK(rig_train(&config, &language, false, &record) == KEEL_OK);
    memset(&record, 0, sizeof record);
    config.runner.steps = 12;
    const keel_backend backend = {
        .start = start_nothing, .frame_begin = no_frame, .frame_end = end_nothing, .load = refuse_state};
    rig r;
    CHECK(rig_open_with(&config, &language, true, &record, &backend, &r) == KEEL_OK);
    CHECK(keel_trainer_run(r.trainer) == KEEL_OK);
    rig_close(&r);
    if (check_rank == 0) {
        CHECK(record.count == 2);
        CHECK(strstr(record.notes, "the monitor's rules begin anew, since what the checkpoint has of them does not "
                                   "fit: state of another version"));
    }
    rig_remove_folder(folder);
}

static void test_idle_settings_are_told(void) {
    static rig_record record;
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    CHECK(rig_train(&config, &language, false, &record) == KEEL_OK);
    CHECK(!strstr(record.notes, "no effect") && !strstr(record.notes, "norm_topk_prob"));
    memset(&record, 0, sizeof record);
    config.lr = (keel_lr_config){.type = KEEL_LR_CONSTANT, .learning_rate = 1e-3, .lr_end = 1e-4, .total_steps = 30};
    config.parallel.micro_batch_num = 3;
    config.model.moe = (keel_moe_config){.expert_num = 1, .num_experts_chosen = 1, .capacity_factor = 1.5};
    CHECK(rig_train(&config, &language, false, &record) == KEEL_OK);
    if (check_rank == 0) {
        CHECK(strstr(record.notes, "lr_schedule.lr_end 0.0001 has no effect on a constant learning rate"));
        CHECK(strstr(record.notes, "parallel_config.micro_batch_num 3 has no effect with one pipeline stage"));
        CHECK(strstr(record.notes, "moe_config has no effect with expert_num 1"));
    }
    memset(&record, 0, sizeof record);
    config.model.model_type = KEEL_MODEL_LLAMA;
    config.model.moe = (keel_moe_config){.expert_num = 4, .num_experts_chosen = 1, .norm_topk_prob = true};
    CHECK(rig_train(&config, &language, false, &record) == KEEL_OK);
    if (check_rank == 0) CHECK(strstr(record.notes, "norm_topk_prob with one expert chosen makes each weight 1"));
    rig_remove_folder(folder);
}

static void test_nothing_left_to_train(void) {
    static rig_record record;
    char *folder = rig_folder();
    keel_train_config config = rig_config(folder, 1);
    config.checkpoint.save_interval = 30;
    CHECK(rig_train(&config, &language, false, &record) == KEEL_OK);
    memset(&record, 0, sizeof record);
    config.runner.steps = 20;
    CHECK(rig_train(&config, &language, true, &record) == KEEL_OK);
    if (check_rank == 0) {
        CHECK(record.count == 0);
        CHECK(strstr(record.notes, "nothing was trained: the checkpoint of step 30 has made 30 updates, and "
                                   "runner_config.steps is 20"));
        CHECK(strstr(record.notes, "model of that checkpoint: ") && !strstr(record.notes, "trained model"));
    }
    rig_remove_folder(folder);
}

// Stopped from one rank alone: all end at the same step, with a checkpoint.
static void test_stop(void) {
    static rig_record whole, cut;
    char *folder = rig_folder();
    keel_train_config config = rig_config(path_in(folder, "whole"), 1);
    CHECK(rig_train(&config, &language, false, &whole) == KEEL_OK);
    config.runner.output_dir = path_in(folder, "cut");
    config.checkpoint.save_interval = 1000;
    rig r;
    CHECK(rig_open(&config, &language, false, &cut, &r) == KEEL_OK);
    if (check_rank == check_size - 1) keel_trainer_stop(r.trainer);
    CHECK(keel_trainer_run(r.trainer) == KEEL_OK);
    CHECK(r.trainer->progress.step == 1);
    rig_close(&r);
    if (check_rank == 0) {
        CHECK(strstr(cut.notes, "stopped after step 1"));
        CHECK(access(path_in(folder, "cut/model.safetensors"), F_OK) != 0);
        CHECK(access(path_in(folder, "whole/model.safetensors"), F_OK) == 0);
    }
    CHECK(rig_train(&config, &language, true, &cut) == KEEL_OK);
    rig_check_same(&whole, &cut, 1, 30);
    rig_remove_folder(folder);
}

int main(void) {
    int provided;
    check_begin(&provided);
    language = rig_language();
    test_resume(1);
    check_say("resume");
    if (check_size <= 2) test_resume(2);
    check_say("resume with accumulation");
    test_idle_settings_are_told();
    check_say("settings without effect");
    test_a_state_of_the_monitor_that_does_not_fit();
    check_say("a state of the monitor that does not fit");
    test_damaged_checkpoints();
    check_say("damaged checkpoints");
    test_nothing_left_to_train();
    test_stop();
    check_say("stop");
    MPI_Finalize();
    return 0;
}
