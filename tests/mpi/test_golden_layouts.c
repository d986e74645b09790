// Trajectories computed in float64 by another framework, by models that are cut over ranks in every way.
#include "tests/golden/golden_case.h"
#include "tests/mpi/trainer_rig.h"

typedef struct layout {
    int dp, tp, pp, ep, micro;
    bool seq_parallel, optimizer_parallel;
} layout;

static const layout layouts[] = {
    {1, 2, 1, 1, 1, false, false}, {1, 2, 1, 1, 2, true, false},  {1, 1, 2, 1, 1, false, false},
    {1, 1, 2, 1, 4, false, false}, {2, 1, 1, 1, 1, false, true},  {2, 1, 1, 2, 1, false, false},
    {2, 1, 1, 2, 1, false, true},  {2, 2, 1, 1, 1, true, true},   {2, 1, 2, 1, 2, false, true},
    {1, 2, 2, 1, 4, true, false},  {1, 2, 2, 1, 1, false, false}, {4, 1, 1, 4, 1, false, true},
    {4, 1, 1, 2, 1, false, false}, {2, 2, 1, 2, 1, true, true},   {2, 1, 2, 2, 1, false, false},
};

static const char *describe(const layout *l) {
    static char text[160];
    snprintf(text, sizeof text, "dp %d, tp %d, pp %d, ep %d, %d micro-batches%s%s", l->dp, l->tp, l->pp, l->ep,
             l->micro, l->seq_parallel ? ", sequence parallel" : "",
             l->optimizer_parallel ? ", optimizer parallel" : "");
    return text;
}

// What this rank holds of a tensor of GROUP, against the whole one: squares of the distance and of the norm, and how
// many elements it has found. HELD_BY: ranks that hold the same part.
typedef struct closeness {
    double distance, norm, elements, whole;
} closeness;

static closeness compare(const golden_case *golden, const char *group, const keel_model *model,
                         const keel_hf_tensor *tensor, const float *flat) {
    char path[512];
    hsize_t shape[4];
    int ndim;
    size_t params, n = 1;
    const keel_param *param = &keel_model_params(model, &params)[tensor->param];
    snprintf(path, sizeof path, "%s/%s", group, tensor->name);
    float *expected = golden_read(golden->file, path, H5T_NATIVE_FLOAT, shape, &ndim);
    for (int d = 0; d < ndim; d++) n *= (size_t)shape[d];
    float *found = malloc(n * sizeof *found);
    CHECK(found != NULL);
    for (size_t i = 0; i < n; i++) found[i] = NAN;
    keel_param_give(param, flat, found, tensor->row, tensor->rows);
    closeness c = {.whole = (double)n};
    for (size_t i = 0; i < n; i++) {
        const double e = (double)expected[i], x = (double)found[i];
        c.norm += e * e;
        if (isnan(found[i])) continue;
        c.distance += (x - e) * (x - e);
        c.elements++;
    }
    free(expected);
    free(found);
    return c;
}

static void check_weights(const golden_case *golden, const layout *l, const rig *r) {
    const keel_model *model = r->trainer->model;
    const float *weights = keel_model_weights(r->trainer->model);
    size_t count;
    const keel_hf_tensor *tensors = keel_model_hf_tensors(model, &count);
    double held = 0;
    for (size_t i = 0; i < count; i++) {
        const closeness c = compare(golden, "param_after", model, &tensors[i], weights);
        held += c.elements;
        const double relative = sqrt(c.distance / c.norm);
        if (!(relative <= 1e-4))
            fprintf(stderr, "%s: %s: relative distance %.3g\n", describe(l), tensors[i].name, relative);
        CHECK(relative <= 1e-4);
    }
    CHECK(held == (double)keel_model_numel(model)); // nothing of this rank's was left out
}

static void run_case(const char *name, const layout *l) {
    golden_case golden = golden_open(name);
    char *folder = rig_folder(), weights[512];
    snprintf(weights, sizeof weights, "%s/%s.safetensors", KEEL_TEST_DATA, name);
    keel_train_config config = rig_config(folder, 1);
    config.runner.batch_size = 4 / (l->dp * l->micro);
    config.runner.gradient_accumulation_steps = l->pp > 1 ? 1 : l->micro;
    config.runner.steps = (int64_t)golden.steps;
    config.model = golden_model_config(&golden);
    config.model.checkpoint_name_or_path = weights;
    config.optimizer = golden_optimizer_config(&golden);
    const double lr = golden_number(golden.optimizer, "lr");
    config.lr = (keel_lr_config){.type = KEEL_LR_CONSTANT, .learning_rate = lr, .total_steps = (int64_t)golden.steps};
    config.wrapper.max_grad_norm = golden_number(golden.optimizer, "max_grad_norm");
    config.parallel.data_parallel = l->dp;
    config.parallel.model_parallel = l->tp;
    config.parallel.pipeline_stage = l->pp;
    config.parallel.expert_parallel = l->ep;
    config.parallel.micro_batch_num = l->pp > 1 ? l->micro : 1;
    config.parallel.use_seq_parallel = l->seq_parallel;
    config.parallel.enable_parallel_optimizer = l->optimizer_parallel;
    config.dataset.shuffle = false;
    rig_data data = {.tokens = golden.tokens, .width = golden.width};
    const keel_sequences sequences = {
        .context = &data, .count = golden.steps * golden.sequences, .identity = name, .read = rig_read};
    CHECK(golden.sequences == 4);

    static rig_record record;
    memset(&record, 0, sizeof record);
    rig r;
    const keel_status opened = rig_open(&config, &sequences, false, &record, &r);
    if (opened && check_rank == 0) fprintf(stderr, "%s, %s: %s\n", name, describe(l), keel_error());
    CHECK(opened == KEEL_OK);
    CHECK(keel_trainer_run(r.trainer) == KEEL_OK);
    for (size_t i = 0; i < golden.steps && check_rank == 0; i++) {
        const bool good = golden_near(record.losses[i], golden.losses[i], 1e-5) &&
                          golden_near(record.norms[i], golden.norms[i], 1e-5);
        if (!good)
            fprintf(stderr, "%s, %s: step %zu: loss %.9g for %.9g, grad_norm %.9g for %.9g\n", name, describe(l), i + 1,
                    record.losses[i], golden.losses[i], record.norms[i], golden.norms[i]);
        CHECK(good);
    }
    check_weights(&golden, l, &r);
    rig_close(&r);
    golden_close(&golden);
    rig_remove_folder(folder);
    char text[256];
    snprintf(text, sizeof text, "%s, %s", name, describe(l));
    check_say(text);
}

int main(void) {
    static const char *const names[] = {"gpt2-tiny", "llama-tiny", "mixtral-tiny", "mixtral-capacity"};
    int provided;
    check_begin(&provided);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
            const layout *l = &layouts[i];
            const bool experts = n >= 2;
            if (l->dp * l->tp * l->pp != check_size || (l->ep > 1 && !experts)) continue;
            if (experts && l->micro > 1) continue; // their balance is that of a micro-batch of all ranks
            run_case(names[n], l);
        }
    MPI_Finalize();
    return 0;
}
