// One model in every layout that its ranks allow: the losses of the single rank, and the same statistics of every
// weight, reduced gradient, optimizer state and update, however they are cut.
#include <math.h>

#include "tests/mpi/frame_rig.h"

enum { STEPS = 20, MODELS = 2, RECORDS_MAX = 1000, GLOBAL_BATCH = 8 };

// ---- what is watched: every rank's sealed frame, merged here record by record ----

typedef struct record {
    char name[KEEL_SITE_NAME_BYTES];
    keel_quantity quantity;
    keel_stats stats;
} record;

typedef struct run {
    double losses[STEPS], norms[STEPS];
    record *records[STEPS]; // on rank 0
    size_t counts[STEPS];
} run;

typedef struct watcher {
    frame_rig seen; // the first member: the frame_rig's own functions take a watcher for it
    MPI_Comm comm;
    run *out;
} watcher;

static const char exchanged[] = "all_to_all.layers.0.mlp.there"; // where experts are shared out

static bool compared(const keel_site_info *site) {
    switch (site->quantity) {
    case KEEL_WEIGHT:
    case KEEL_GRAD_REDUCED:
    case KEEL_EXP_AVG:
    case KEEL_EXP_AVG_SQ:
    case KEEL_UPDATE:
        return true;
    case KEEL_ACTIVATION:
        return strstr(site->name, ".max_logit") != NULL;
    default:
        return strcmp(site->name, exchanged) == 0;
    }
}

static void merge(run *out, uint64_t step, const record *one) {
    record *list = out->records[step - 1];
    size_t i = 0;
    while (i < out->counts[step - 1] && (list[i].quantity != one->quantity || strcmp(list[i].name, one->name) != 0))
        i++;
    CHECK(i < RECORDS_MAX);
    if (i == out->counts[step - 1]) {
        list[i] = *one;
        out->counts[step - 1]++;
    } else {
        keel_stats_merge(&list[i].stats, &one->stats);
    }
}

static void frame_end(void *context, keel_frame *frame, const keel_step *step) {
    watcher *w = context;
    record *mine = calloc(w->seen.sites, sizeof *mine), *theirs = NULL;
    int count = 0, rank, size;
    CHECK(mine != NULL && step->step >= 1 && step->step <= STEPS);
    for (uint32_t i = 0; i < w->seen.sites; i++) {
        const keel_site_info *site = keel_probe_site_info(w->seen.probe, i);
        if (!compared(site)) continue;
        record *one = &mine[count++];
        strcpy(one->name, site->name);
        one->quantity = site->quantity;
        one->stats = keel_frame_stats(frame)[i];
    }
    MPI_Comm_rank(w->comm, &rank);
    MPI_Comm_size(w->comm, &size);
    if (rank == 0) {
        w->out->records[step->step - 1] = calloc(RECORDS_MAX, sizeof(record));
        theirs = calloc(RECORDS_MAX, sizeof(record));
        CHECK(w->out->records[step->step - 1] && theirs);
        for (int i = 0; i < count; i++) merge(w->out, step->step, &mine[i]);
    }
    for (int from = 1; from < size; from++) {
        const int bytes = count * (int)sizeof(record);
        if (rank == from) MPI_Send(mine, bytes, MPI_BYTE, 0, 0, w->comm);
        if (rank != 0) continue;
        MPI_Status status;
        MPI_Recv(theirs, RECORDS_MAX * (int)sizeof(record), MPI_BYTE, from, 0, w->comm, &status);
        int received;
        MPI_Get_count(&status, MPI_BYTE, &received);
        for (size_t i = 0; i < (size_t)received / sizeof(record); i++) merge(w->out, step->step, &theirs[i]);
    }
    free(mine);
    free(theirs);
}

// ---- a layout ----

typedef struct layout {
    int dp, tp, pp, ep, micro;
    bool optimizer_parallel, seq_parallel, recompute, select_recompute, offload;
} layout;

static const layout single = {.dp = 1, .tp = 1, .pp = 1, .ep = 1, .micro = 1};

static const char *const model_names[MODELS] = {"dense", "mixture of experts"};
static const char *const models[MODELS] = {
    "model_config: {model_type: gpt2, vocab_size: 32, seq_length: 16, hidden_size: 32, num_layers: 4, num_heads: 4}\n",
    "model_config: {model_type: llama, vocab_size: 32, seq_length: 16, hidden_size: 32, num_layers: 4, num_heads: 4,\n"
    "               n_kv_heads: 4, intermediate_size: 48}\n"
    "moe_config: {expert_num: 4, num_experts_chosen: 2, aux_loss_factor: 0.01, z_loss_factor: 0.001}\n"};

static const char *describe(const layout *l) {
    static char text[160];
    snprintf(text, sizeof text, "dp %d, tp %d, pp %d, ep %d, %d micro-batches%s%s%s%s%s", l->dp, l->tp, l->pp, l->ep,
             l->micro, l->optimizer_parallel ? ", optimizer parallel" : "",
             l->seq_parallel ? ", sequence parallel" : "", l->recompute ? ", recompute" : "",
             l->select_recompute ? ", selective recompute" : "", l->offload ? ", offload" : "");
    return text;
}

static keel_train_config *configure(int model, const layout *l, const char *folder, double lr) {
    char text[4096];
    const char *yes[] = {"false", "true"};
    const int length = snprintf(
        text, sizeof text,
        "runner_config: {steps: %d, batch_size: %d, gradient_accumulation_steps: %d, seed: 11, output_dir: %s, "
        "log_interval: 1}\n"
        "train_dataset: {text: [none], shards: none}\n"
        "runner_wrapper: {use_clip_grad: true, max_grad_norm: 1.0}\n"
        "%s"
        "optimizer: {type: AdamW, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: 0.1%s%s%s}\n"
        "lr_schedule: {type: cosine, learning_rate: %g, lr_end: 0, warmup_steps: 3, total_steps: 40}\n"
        "recompute_config: {recompute: %s, select_recompute: %s}\n"
        "parallel_config: {data_parallel: %d, model_parallel: %d, pipeline_stage: %d, expert_parallel: %d, "
        "micro_batch_num: %d, bucket_bytes: 6000, use_seq_parallel: %s, enable_parallel_optimizer: %s}\n",
        STEPS, GLOBAL_BATCH / (l->dp * l->micro), l->pp > 1 ? 1 : l->micro, folder, models[model],
        l->offload ? ", offload: {folder: " : "", l->offload ? folder : "", l->offload ? ", memory_limit: 200000}" : "",
        lr, yes[l->recompute], yes[l->select_recompute], l->dp, l->tp, l->pp, l->ep, l->pp > 1 ? l->micro : 1,
        yes[l->seq_parallel], yes[l->optimizer_parallel]);
    CHECK(length > 0 && (size_t)length < sizeof text);
    keel_train_config *config = NULL;
    const keel_status status = keel_train_config_parse("layout.yaml", text, (size_t)length, &config);
    if (status) fprintf(stderr, "%s: %s\n", describe(l), keel_error());
    CHECK(status == KEEL_OK);
    return config;
}

static void train(int model, const layout *l, MPI_Comm comm, const char *folder, double lr, int steps, run *out) {
    keel_train_config *config = configure(model, l, folder, lr);
    const keel_sequences language = rig_language();
    watcher w = {.comm = comm, .out = out};
    keel_backend backend = frame_rig_backend(&w.seen);
    backend.frame_end = frame_end;
    keel_probe *probe;
    keel_trainer *trainer = NULL;
    int rank;
    MPI_Comm_rank(comm, &rank);
    *out = (run){0};
    CHECK(keel_probe_open((uint32_t)rank, &probe) == KEEL_OK);
    keel_probe_set_backend(probe, &backend);
    keel_status status = keel_trainer_open_with(config, &language, comm, probe, false, NULL, &trainer);
    if (!status) status = keel_probe_start(probe);
    for (int i = 0; i < steps && !status; i++) status = keel_trainer_step(trainer, &out->losses[i], &out->norms[i]);
    if (status) fprintf(stderr, "%s, %s: %s\n", model_names[model], describe(l), keel_error());
    CHECK(status == KEEL_OK);
    keel_trainer_close(trainer);
    keel_probe_close(probe);
    free(w.seen.frame);
    keel_train_config_free(config);
}

static void free_run(run *r) {
    for (size_t i = 0; i < STEPS; i++) free(r->records[i]);
    *r = (run){0};
}

// ---- comparisons, on rank 0 ----

static const keel_stats *find(const run *r, int step, const record *wanted) {
    for (size_t i = 0; i < r->counts[step]; i++)
        if (r->records[step][i].quantity == wanted->quantity && !strcmp(r->records[step][i].name, wanted->name))
            return &r->records[step][i].stats;
    return NULL;
}

static bool near(double a, double b, double bound) {
    return fabs(a - b) <= bound * fabs(b);
}

// An update is a difference of two float32 weights, so that it comes in steps of their last bit: one element that falls
// to the next step moves the norm of updates of weights near 1 by more than 1e-5 of it.
static double last_bits(const run *r, int step, const record *one) {
    if (one->quantity != KEEL_UPDATE) return 0;
    record weight = *one;
    weight.quantity = KEEL_WEIGHT;
    const keel_stats *w = find(r, step, &weight);
    CHECK(w != NULL);
    return 0x1p-24 * fmax(fabs(w->min), fabs(w->max)) * sqrt((double)w->n);
}

static void check_same_run(const layout *l, const run *whole, const run *cut) {
    for (int step = 0; step < STEPS; step++) {
        const bool loss = near(cut->losses[step], whole->losses[step], 2e-5);
        const bool grad_norm = near(cut->norms[step], whole->norms[step], 2e-5);
        if (!loss || !grad_norm)
            fprintf(stderr, "%s: step %d: loss %.9g for %.9g, grad_norm %.9g for %.9g\n", describe(l), step + 1,
                    cut->losses[step], whole->losses[step], cut->norms[step], whole->norms[step]);
        CHECK(loss && grad_norm);
        CHECK(cut->counts[step] == whole->counts[step] + (l->ep > 1 ? 2 : 0));
        for (size_t i = 0; i < whole->counts[step]; i++) {
            const record *one = &whole->records[step][i];
            const keel_stats *same = find(cut, step, one);
            CHECK(same != NULL);
            const double norm = keel_stats_view(&one->stats, KEEL_OP_norm), other = keel_stats_view(same, KEEL_OP_norm);
            const double bound = 1e-5 * norm + last_bits(whole, step, one);
            const bool good = same->n == one->stats.n && fabs(other - norm) <= bound && same->replica_residual == 0;
            if (!good)
                fprintf(stderr, "%s: step %d, %s %s: %llu values of norm %.9g for %llu of %.9g, residual %llx\n",
                        describe(l), step + 1, one->name, keel_quantity_name(one->quantity),
                        (unsigned long long)same->n, other, (unsigned long long)one->stats.n, norm,
                        (unsigned long long)same->replica_residual);
            CHECK(good);
        }
    }
}

// Each row goes to two experts, and counts once, whatever tensor ranks send it.
static void check_exchange(const layout *l, const run *cut) {
    for (int out = 0; out < 2 && l->ep > 1; out++) {
        record wanted = {.quantity = out ? KEEL_COLLECTIVE_OUT : KEEL_COLLECTIVE_IN};
        strcpy(wanted.name, exchanged);
        const keel_stats *seen = find(cut, 0, &wanted);
        CHECK(seen && seen->n == GLOBAL_BATCH * 16 * 2 * 32 && seen->replica_residual == 0);
    }
}

// The first weights, which no rounding has touched.
static void check_same_weights(const layout *l, const run *whole, const run *cut) {
    for (size_t i = 0; i < whole->counts[0]; i++) {
        const record *one = &whole->records[0][i];
        if (one->quantity != KEEL_WEIGHT) continue;
        const keel_stats *a = &one->stats, *b = find(cut, 0, one);
        CHECK(b != NULL);
        const bool good = a->n == b->n && a->zeros == b->zeros && a->near_zeros == b->near_zeros &&
                          a->nans == b->nans && a->subnormals == b->subnormals && a->min == b->min &&
                          a->max == b->max && a->abs_min == b->abs_min && a->checksum == b->checksum &&
                          b->replica_residual == 0;
        if (!good)
            fprintf(stderr, "%s: %s: n %llu/%llu, min %.9g/%.9g, max %.9g/%.9g, checksum %llx/%llx, residual %llx\n",
                    describe(l), one->name, (unsigned long long)a->n, (unsigned long long)b->n, a->min, b->min, a->max,
                    b->max, (unsigned long long)a->checksum, (unsigned long long)b->checksum,
                    (unsigned long long)b->replica_residual);
        CHECK(good);
    }
}

// ---- all of them ----

static run references[MODELS][3]; // of 1, 2, 4 micro-batches
static run first_weights[MODELS];
static int tried;

static void try_layout(int model, layout l, const char *folder) {
    static run cut;
    const int k = l.micro == 1 ? 0 : l.micro == 2 ? 1 : 2;
    run *whole = &references[model][k];
    layout alone = single;
    alone.micro = l.micro;
    if (check_rank == 0 && !whole->counts[0]) train(model, &alone, MPI_COMM_SELF, folder, 1e-3, STEPS, whole);
    if (check_rank == 0 && !first_weights[model].counts[0])
        train(model, &single, MPI_COMM_SELF, folder, 1e-50, 1, &first_weights[model]);
    train(model, &l, MPI_COMM_WORLD, folder, 1e-3, STEPS, &cut);
    if (check_rank == 0) check_same_run(&l, whole, &cut);
    if (check_rank == 0) check_exchange(&l, &cut);
    free_run(&cut);
    train(model, &l, MPI_COMM_WORLD, folder, 1e-50, 1, &cut);
    if (check_rank == 0) check_same_weights(&l, &first_weights[model], &cut);
    free_run(&cut);
    tried++;
    char text[256];
    snprintf(text, sizeof text, "%s, %s", model_names[model], describe(&l));
    check_say(text);
}

// What is not part of the mesh goes with it by turns, so that everything meets everything.
static layout dress(layout l, int turn) {
    l.optimizer_parallel = l.dp > 1 && turn % 2;
    l.seq_parallel = l.tp > 1 && turn / 2 % 2 == 0;
    l.recompute = turn % 3 == 1;
    l.select_recompute = turn % 3 == 2;
    l.offload = check_size <= 2 && turn % 4 == 3; // windows this small are slow on a busy disk
    const int most = GLOBAL_BATCH / l.dp;
    l.micro = 1 << turn % 3;
    if (l.micro > most) l.micro = most;
    return l;
}

int main(void) {
    int provided, turn = 0;
    check_begin(&provided);
    char *folder = rig_folder();
    for (int model = 0; model < MODELS; model++)
        for (int tp = 1; tp <= 4 && tp <= check_size; tp *= 2)
            for (int pp = 1; pp <= 4 && tp * pp <= check_size; pp *= 2) {
                const int dp = check_size / (tp * pp);
                for (int ep = 1; ep <= dp && ep <= (model ? 4 : 1); ep *= 2) {
                    const layout l = {.dp = dp, .tp = tp, .pp = pp, .ep = ep};
                    try_layout(model, dress(l, turn), folder);
                    try_layout(model, dress(l, turn + 1), folder);
                    turn++;
                }
            }
    for (int model = 0; model < MODELS; model++) {
        for (int k = 0; k < 3; k++) free_run(&references[model][k]);
        free_run(&first_weights[model]);
    }
    rig_remove_folder(folder);
    char text[64];
    snprintf(text, sizeof text, "%d layouts of %d ranks", tried, check_size);
    check_say(text);
    MPI_Finalize();
    return 0;
}
