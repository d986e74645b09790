// A checkpoint knows no layout: saved by one, it is taken up by any other, bit for bit; and files of whole models too.
#include <math.h>

#include "tests/mpi/trainer_rig.h"

enum { FIRST = 10, LAST = 20, MOST_RANKS = 4 };

typedef struct layout {
    int ranks;
    int64_t tp, pp, ep;
    bool shared; // optimizer parallel
} layout;

static const layout dense[] = {
    {.ranks = 1, .tp = 1, .pp = 1, .ep = 1},
    {.ranks = 2, .tp = 1, .pp = 1, .ep = 1},
    {.ranks = 2, .tp = 1, .pp = 1, .ep = 1, .shared = true},
    {.ranks = 4, .tp = 1, .pp = 1, .ep = 1, .shared = true},
    {.ranks = 2, .tp = 1, .pp = 2, .ep = 1},
    {.ranks = 4, .tp = 1, .pp = 2, .ep = 1, .shared = true},
    {.ranks = 2, .tp = 2, .pp = 1, .ep = 1},
    {.ranks = 4, .tp = 2, .pp = 1, .ep = 1, .shared = true},
};
static const layout tied[] = {
    // the first and the last stage have the table
    {.ranks = 1, .tp = 1, .pp = 1, .ep = 1},
    {.ranks = 2, .tp = 1, .pp = 2, .ep = 1},
    {.ranks = 4, .tp = 1, .pp = 2, .ep = 1, .shared = true},
    {.ranks = 4, .tp = 2, .pp = 2, .ep = 1},
};
static const layout expert[] = {
    {.ranks = 1, .tp = 1, .pp = 1, .ep = 1},
    {.ranks = 2, .tp = 1, .pp = 1, .ep = 2},
    {.ranks = 4, .tp = 1, .pp = 1, .ep = 2},
    {.ranks = 4, .tp = 1, .pp = 1, .ep = 2, .shared = true},
    {.ranks = 4, .tp = 1, .pp = 1, .ep = 4, .shared = true},
};

typedef struct kind {
    const char *name;
    const layout *layouts;
    size_t count;
    bool tied;
    keel_moe_config moe;
} kind;

static const kind kinds[] = {
    {.name = "dense", .layouts = dense, .count = sizeof dense / sizeof *dense},
    {.name = "tied", .layouts = tied, .count = sizeof tied / sizeof *tied, .tied = true},
    {.name = "experts",
     .layouts = expert,
     .count = sizeof expert / sizeof *expert,
     .moe =
         {.expert_num = 4, .num_experts_chosen = 2, .aux_loss_factor = 0.05, .norm_topk_prob = true, .use_gmm = true}},
};

static keel_sequences language;
static MPI_Comm firsts[MOST_RANKS + 1]; // the first n ranks; MPI_COMM_NULL on the others

static void make_comms(void) {
    for (int n = 1; n <= MOST_RANKS; n++)
        MPI_Comm_split(MPI_COMM_WORLD, check_rank < n ? 0 : MPI_UNDEFINED, check_rank, &firsts[n]);
}

static keel_train_config config_of(const kind *k, const layout *l, char *folder) {
    keel_train_config config = rig_config(folder, 1);
    config.model.moe = k->moe;
    config.model.tie_word_embeddings = k->tied;
    config.runner.batch_size = 4 * l->tp * l->pp / l->ranks;
    config.parallel.model_parallel = l->tp;
    config.parallel.pipeline_stage = l->pp;
    config.parallel.micro_batch_num = 2;
    if (l->pp > 1) config.runner.batch_size /= 2;
    config.parallel.expert_parallel = l->ep;
    config.parallel.enable_parallel_optimizer = l->shared;
    config.checkpoint.save_interval = FIRST;
    config.runner.steps = LAST;
    config.lr.total_steps = LAST;
    return config;
}

static const char *name_of(const layout *l) {
    static char names[2][96];
    static int next;
    char *name = names[next++ % 2];
    snprintf(name, sizeof names[0], "%d ranks, tp %d, pp %d, ep %d%s", l->ranks, (int)l->tp, (int)l->pp, (int)l->ep,
             l->shared ? ", optimizer parallel" : "");
    return name;
}

static void check_losses(const rig_record *record, const rig_record *single, size_t first, const layout *a,
                         const layout *b) {
    if (check_rank != 0) return;
    CHECK(record->count == LAST - first);
    for (size_t i = first; i < LAST; i++) {
        const double far = fabs(record->losses[i] / single->losses[i] - 1);
        if (!(far <= 2e-5))
            fprintf(stderr, "%s, then %s: step %zu: relative distance %.3g\n", name_of(a), name_of(b), i + 1, far);
        CHECK(far <= 2e-5);
    }
}

// All weights and states of the trainer, as a file has them, and their number.
static float *state_of(const keel_train_config *config, const rig *r, size_t *count) {
    keel_reshard *reshard;
    CHECK(keel_reshard_open(&(keel_reshard_plan){.config = &config->model,
                                                 .model = r->trainer->model,
                                                 .optimizer = r->trainer->optimizer,
                                                 .zero = &r->trainer->zero,
                                                 .collectives = r->trainer->collectives,
                                                 .window = 1234},
                            &reshard) == KEEL_OK);
    const size_t numel = keel_reshard_numel(reshard), window = keel_reshard_window(reshard);
    float *all = calloc(3 * numel, sizeof *all);
    CHECK(all != NULL && window == 1234);
    for (size_t k = 0; keel_reshard_name(reshard, k); k++)
        for (size_t at = 0; at < numel; at += window) {
            const float *data;
            CHECK(keel_reshard_gather(reshard, k, at, &data) == KEEL_OK);
            memcpy(all + k * numel + at, data, (numel - at < window ? numel - at : window) * sizeof *all);
        }
    keel_reshard_close(reshard);
    *count = 3 * numel;
    return all;
}

// Trains FROM to the first checkpoint, then takes it up in every layout.
static void test_from(const kind *k, const layout *from, const rig_record *single, const char *folder) {
    static rig_record record;
    char path[512];
    snprintf(path, sizeof path, "%s/from", folder);
    float *saved = NULL;
    size_t count = 0;
    if (firsts[from->ranks] != MPI_COMM_NULL) {
        rig r;
        keel_train_config config = config_of(k, from, path);
        config.runner.steps = FIRST;
        CHECK(rig_open_on(firsts[from->ranks], &config, &language, false, &record, NULL, &r) == KEEL_OK);
        CHECK(keel_trainer_run(r.trainer) == KEEL_OK);
        saved = state_of(&config, &r, &count);
        rig_close(&r);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (size_t i = 0; i < k->count; i++) {
        const layout *to = &k->layouts[i];
        if (to->ranks > check_size) continue;
        memset(&record, 0, sizeof record);
        if (firsts[to->ranks] != MPI_COMM_NULL) {
            rig r;
            size_t again;
            keel_train_config config = config_of(k, to, path);
            config.checkpoint.save_interval = 0;
            CHECK(rig_open_on(firsts[to->ranks], &config, &language, true, &record, NULL, &r) == KEEL_OK);
            float *loaded = state_of(&config, &r, &again);
            if (check_rank == 0)
                CHECK(saved && loaded && again == count && memcmp(loaded, saved, count * sizeof *saved) == 0);
            free(loaded);
            CHECK(keel_trainer_run(r.trainer) == KEEL_OK);
            rig_close(&r);
        }
        check_losses(&record, single, FIRST, from, to);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    free(saved);
}

// The trained model's file, which is whole, is the start of a training in every layout.
static void test_files(const kind *k, const char *folder) {
    static rig_record record;
    char path[512], start[512];
    double loss = 0;
    snprintf(start, sizeof start, "%s/from/model.safetensors", folder);
    snprintf(path, sizeof path, "%s/file", folder);
    for (size_t i = 0; i < k->count; i++) {
        const layout *l = &k->layouts[i];
        if (l->ranks > check_size) continue;
        memset(&record, 0, sizeof record);
        keel_train_config config = config_of(k, l, path);
        config.runner.steps = 1;
        config.checkpoint.save_interval = 0;
        config.model.checkpoint_name_or_path = start;
        rig r;
        if (firsts[l->ranks] != MPI_COMM_NULL) {
            CHECK(rig_open_on(firsts[l->ranks], &config, &language, false, &record, NULL, &r) == KEEL_OK);
            CHECK(keel_trainer_run(r.trainer) == KEEL_OK);
            rig_close(&r);
        }
        if (i == 0) loss = record.losses[0];
        if (check_rank == 0) CHECK(fabs(record.losses[0] / loss - 1) < 2e-5 && loss < 3);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

static void test_kind(const kind *k) {
    static rig_record single;
    char *folder = rig_folder(), path[512];
    memset(&single, 0, sizeof single);
    if (check_rank == 0) {
        snprintf(path, sizeof path, "%s/single", folder);
        const keel_train_config config = config_of(k, &k->layouts[0], path);
        rig r;
        CHECK(rig_open_on(firsts[1], &config, &language, false, &single, NULL, &r) == KEEL_OK);
        CHECK(keel_trainer_run(r.trainer) == KEEL_OK);
        rig_close(&r);
    }
    for (size_t i = 0; i < k->count; i++) {
        char text[160];
        if (k->layouts[i].ranks > check_size) continue;
        test_from(k, &k->layouts[i], &single, folder);
        snprintf(text, sizeof text, "%s: from %s", k->name, name_of(&k->layouts[i]));
        check_say(text);
    }
    test_files(k, folder);
    check_say("files of whole models");
    rig_remove_folder(folder);
}

int main(void) {
    int provided;
    check_begin(&provided);
    language = rig_language();
    make_comms();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) test_kind(&kinds[i]);
    for (int n = 1; n <= MOST_RANKS; n++)
        if (firsts[n] != MPI_COMM_NULL) MPI_Comm_free(&firsts[n]);
    MPI_Finalize();
    return 0;
}
