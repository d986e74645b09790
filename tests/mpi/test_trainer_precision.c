// Trainings in bfloat16 and float16 on several ranks.
#include <math.h>

#include "tests/mpi/trainer_rig.h"

static rig_record first, second;

// The mean loss of the last five steps.
static double final_loss(const rig_record *record) {
    double sum = 0;
    for (uint64_t i = record->count - 5; i < record->count; i++) sum += record->losses[i];
    return sum / 5;
}

static void train(const keel_train_config *config, rig_record *record) {
    const keel_sequences language = rig_language();
    *record = (rig_record){0};
    CHECK(rig_train(config, &language, false, record) == KEEL_OK);
}

// The loss in bfloat16 stays near that of float32 and is not the same; the same run again gives the same bits.
static void test_bfloat16_stays_near(const char *folder, int64_t accumulation) {
    keel_train_config config = rig_config((char *)folder, accumulation);
    train(&config, &first);
    config.model.compute_dtype = KEEL_BFLOAT16;
    train(&config, &second);
    for (uint64_t i = 0; i < second.count; i++) {
        CHECK(first.losses[i] != second.losses[i]);
        CHECK(fabs(first.losses[i] - second.losses[i]) < 0.02 * first.losses[i]);
    }
    train(&config, &first);
    rig_check_same(&first, &second, 1, 30);
}

// With one rank there is no sum over ranks: the bits are those of float32. With more they differ, and are the same in
// every run.
static void test_gradient_sums(const char *folder) {
    keel_train_config config = rig_config((char *)folder, 1);
    for (int precision = KEEL_BFLOAT16; precision <= KEEL_FLOAT16; precision++) {
        config.parallel.grad_reduce_dtype = KEEL_FLOAT32;
        train(&config, &first);
        config.parallel.grad_reduce_dtype = precision;
        train(&config, &second);
        if (check_rank == 0) {
            CHECK((first.norms[0] == second.norms[0]) == (check_size == 1));
            CHECK(fabs(final_loss(&first) - final_loss(&second)) < 0.05 * final_loss(&first));
        }
        train(&config, &first);
        rig_check_same(&first, &second, 1, 30);
    }
}

int main(void) {
    int provided;
    check_begin(&provided);
    const char *folder = rig_folder();
    test_bfloat16_stays_near(folder, 1);
    if (check_size < 4) test_bfloat16_stays_near(folder, 2);
    check_say("bfloat16");
    test_gradient_sums(folder);
    check_say("sums of gradients in 16 bits");
    rig_remove_folder(folder);
    MPI_Finalize();
    return 0;
}
