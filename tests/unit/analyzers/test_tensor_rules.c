// Rules on tensors: each fires on what it looks for, and keeps still on what resembles it.
#include "tests/unit/analyzers/tensor_run.h"

static const char plain[] = "model_config: {vocab_size: 256}\n"
                            "optimizer: {betas: [0.9, 0.95]}\n"
                            "lr_schedule: {learning_rate: 0.001, warmup_steps: 20}\n"
                            "runner_config: {steps: 1000}\n";

static void healthy_tensors_are_quiet(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(2, plain);
    tensor_begin(r);
    tensor_quiet(r, 3000);
    tensor_expect_quiet(r);
    tensor_end(r);
}

// ---- tensor_jump ----

static void a_weight_that_jumps_and_stays_is_a_warning(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, plain);
    tensor_begin(r);
    tensor_quiet(r, 100);
    int site = tensor_find(r, "layers.2.mlp.down.weight", KEEL_WEIGHT);
    for (int i = 0; i < 3; i++) {
        tensor_next(r);
        tensor_set_norm(r, site, 20);
        r->f64[KEEL_OP_max][site] = 1e4;
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "tensor_jump", KEEL_WARNING);
    assert_non_null(k);
    assert_int_equal(k->first_step, 101);
    assert_string_equal(k->site, "layers.2.mlp.down.weight:weight");
    assert_string_equal(k->series, "max");
    assert_string_equal(k->cause, "bit flip in a weight");
    assert_true(k->value == 1e4);
    tensor_end(r);
}

static void one_outlier_at_one_site_is_a_note(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, plain);
    tensor_begin(r);
    tensor_quiet(r, 100);
    tensor_next(r);
    tensor_set_norm(r, tensor_find(r, "layers.1.mlp.down", KEEL_ACTIVATION_GRAD), 5);
    tensor_judge(r);
    tensor_quiet(r, 20);
    tensor_expect_quiet(r);
    const keel_incident *k = tensor_incident(r, "tensor_jump", KEEL_INFO);
    assert_non_null(k);
    assert_int_equal(k->first_step, 101);
    assert_int_equal(k->last_step, 101);
    assert_int_equal(k->open, 0);
    tensor_end(r);
}

static void many_sites_at_once_are_a_warning_at_the_first(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, plain);
    tensor_begin(r);
    tensor_quiet(r, 100);
    tensor_next(r);
    for (int l = 3; l > 0; l--) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.mlp.down.weight", l);
        tensor_set_norm(r, tensor_find(r, name, KEEL_GRAD_REDUCED), 50);
    }
    tensor_judge(r);
    const keel_incident *k = tensor_incident(r, "tensor_jump", KEEL_WARNING);
    assert_non_null(k);
    assert_string_equal(k->site, "layers.1.mlp.down.weight:grad_reduced");
    tensor_end(r);
}

static void a_new_learning_rate_is_no_jump_of_the_updates(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, plain);
    tensor_begin(r);
    tensor_quiet(r, 100);
    for (int i = 0; i < 100; i++) {
        tensor_next(r);
        r->scalars[T_LR] = 1e-5 + 1e-4 * i;
        for (uint32_t s = 0; s < r->info.site_count; s++)
            if (r->sites[s].quantity == KEEL_UPDATE)
                tensor_set_norm(r, (int)s, r->f64[KEEL_OP_norm][s] * r->scalars[T_LR] / 1e-3);
        tensor_judge(r);
    }
    assert_null(tensor_incident(r, "tensor_jump", KEEL_INFO));
    tensor_end(r);
}

// A note that goes on is not when the trouble began.
static void a_note_does_not_date_what_comes_later(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, plain);
    tensor_begin(r);
    tensor_quiet(r, 100);
    int note = tensor_find(r, "layers.0.mlp.down.weight", KEEL_UPDATE);
    for (int i = 0; i < 20; i++) { // a level that stays, of what remembers
        tensor_next(r);
        tensor_set_norm(r, note, 30);
        if (i == 15) r->u64[KEEL_OP_nans][tensor_find(r, "layers.2.mlp.down", KEEL_ACTIVATION)] = 3;
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "nonfinite", KEEL_CRITICAL);
    assert_non_null(k);
    assert_int_equal(k->first_step, 116);
    assert_string_equal(k->site, "layers.2.mlp.down:activation");
    tensor_end(r);
}

// ---- tensor_trend ----

static void layers_that_rise_slowly(tensor_run *r, int layers, double factor) {
    tensor_begin(r);
    tensor_quiet(r, 300);
    for (int i = 0; i < 300; i++) {
        tensor_next(r);
        for (uint32_t s = 0; s < r->info.site_count; s++)
            if (r->sites[s].quantity == KEEL_GRAD_REDUCED && r->sites[s].layer < layers)
                tensor_set_norm(r, (int)s, r->f64[KEEL_OP_norm][s] * pow(factor, i / 300.0));
        tensor_judge(r);
    }
}

static void early_layers_that_rise_slowly_are_told(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, plain);
    layers_that_rise_slowly(r, 2, 12);
    const keel_incident *k = tensor_incident(r, "tensor_trend", KEEL_WARNING);
    assert_non_null(k);
    assert_true(k->first_step > 350 && k->first_step < 560);
    assert_string_equal(k->site, "layers.0.mlp.down.weight:grad_reduced");
    tensor_end(r);
}

static void one_layer_or_a_small_rise_is_no_warning(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, plain);
    layers_that_rise_slowly(r, 1, 12);
    tensor_expect_quiet(r);
    assert_non_null(tensor_incident(r, "tensor_trend", KEEL_INFO));
    tensor_end(r);
    r = tensor_open(1, plain);
    layers_that_rise_slowly(r, 4, 2);
    assert_null(tensor_incident(r, "tensor_trend", KEEL_INFO));
    tensor_end(r);
}

// ---- dead_unit ----

static void a_layer_that_dies_is_told_at_its_second_record(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, plain);
    tensor_begin(r);
    tensor_quiet(r, 80);
    for (int i = 0; i < 2; i++) {
        assert_null(tensor_incident(r, "dead_unit", KEEL_INFO));
        tensor_next(r);
        tensor_set_norm(r, tensor_find(r, "layers.1.mlp.down", KEEL_ACTIVATION), 0);
        tensor_set_norm(r, tensor_find(r, "layers.1.mlp.down.weight", KEEL_GRAD_UNREDUCED), 0);
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "dead_unit", KEEL_WARNING);
    assert_non_null(k);
    assert_string_equal(k->site, "layers.1.mlp.down:activation");
    assert_string_equal(k->cause, "dead layer");
    assert_true(tensor_evidence_has(r, k, "layers.1.mlp.down (activation) is all zero at step 82"));
    tensor_end(r);
}

static void a_branch_that_begins_at_zero_and_experts_without_tokens_are_no_dead_units(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, plain);
    int expert = tensor_site(r, "layers.0.moe.experts.3", KEEL_ACTIVATION, 0, 1);
    strcpy(r->sites[expert].module, "expert");
    tensor_begin(r);
    for (int i = 0; i < 200; i++) {
        tensor_next(r);
        if (i < 5) tensor_set_norm(r, tensor_find(r, "layers.1.mlp.down", KEEL_ACTIVATION), 0);
        if (i > 50) tensor_set_norm(r, expert, 0);
        tensor_judge(r);
    }
    assert_null(tensor_incident(r, "dead_unit", KEEL_INFO));
    tensor_end(r);
}

static void what_never_lives_is_told_later(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, plain);
    tensor_begin(r);
    for (int i = 0; i < 70; i++) {
        tensor_next(r);
        tensor_set_norm(r, tensor_find(r, "layers.1.mlp.down", KEEL_ACTIVATION), 0);
        tensor_judge(r);
        assert_int_equal(tensor_incident(r, "dead_unit", KEEL_WARNING) != NULL, i >= 63);
    }
    tensor_end(r);
}

// ---- fake_float32 ----

static void float32_made_of_bfloat16_is_told(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, plain);
    tensor_begin(r);
    tensor_quiet(r, 10);
    int site = tensor_find(r, "layers.3.mlp.down.weight", KEEL_WEIGHT);
    for (int i = 0; i < 2; i++) {
        tensor_next(r);
        r->u64[KEEL_OP_not_bf16][site] = 0;
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "fake_float32", KEEL_WARNING);
    assert_non_null(k);
    assert_string_equal(k->site, "layers.3.mlp.down.weight:weight");
    assert_string_equal(k->cause, "fake float32");
    assert_non_null(strstr(k->message, "fake float32"));
    tensor_end(r);
}

static void one_value_in_a_million_changes_it(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, plain);
    tensor_begin(r);
    int site = tensor_find(r, "layers.3.mlp.down.weight", KEEL_WEIGHT);
    for (int i = 0; i < 8; i++) {
        tensor_next(r);
        r->u64[KEEL_OP_not_bf16][site] = 1;
        tensor_judge(r);
    }
    tensor_expect_quiet(r);
    const keel_incident *k = tensor_incident(r, "fake_float32", KEEL_INFO);
    assert_non_null(k);
    assert_non_null(strstr(k->message, "float32, one in a million"));
    tensor_end(r);
}

static void constant_tensors_and_gradients_of_a_short_run_are_no_fakes(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, "model_config: {vocab_size: 256, compute_dtype: bfloat16}\n");
    tensor_begin(r);
    int weight = tensor_find(r, "layers.3.mlp.down.weight", KEEL_WEIGHT);
    int grad = tensor_find(r, "layers.3.mlp.down.weight", KEEL_GRAD_REDUCED);
    for (int i = 0; i < 20; i++) {
        tensor_next(r);
        r->u64[KEEL_OP_not_bf16][weight] = r->u64[KEEL_OP_not_bf16][grad] = 0;
        r->f64[KEEL_OP_min][weight] = r->f64[KEEL_OP_max][weight] = 1;
        tensor_judge(r);
    }
    assert_null(tensor_incident(r, "fake_float32", KEEL_INFO));
    tensor_end(r);
}

// ---- precision_policy ----

static void settings_that_are_too_weak_are_told_once(void **unused) {
    (void)unused;
    static const struct {
        const char *yaml, *series, *cause;
        keel_severity severity;
    } cases[] = {
        {"model_config: {softmax_compute_dtype: float16}\n", "softmax_compute_dtype", "softmax in low precision",
         KEEL_WARNING},
        {"model_config: {vocab_size: 256}\nparallel_config: {grad_reduce_dtype: bfloat16}\n", "grad_reduce_dtype",
         "gradients reduced in low precision", KEEL_WARNING},
        {"model_config: {compute_dtype: float16}\n", "scale_sense", "fp16 underflow", KEEL_WARNING},
        {"model_config: {head_compute_dtype: bfloat16}\n", "head_compute_dtype", "unknown", KEEL_INFO},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tensor_run *r = tensor_open(2, cases[i].yaml);
        tensor_begin(r);
        tensor_quiet(r, 50);
        size_t count;
        const keel_incident *k = keel_analysis_incidents(r->analysis, &count);
        assert_int_equal(count, 1);
        assert_string_equal(k->rule, "precision_policy");
        assert_string_equal(k->series, cases[i].series);
        assert_string_equal(k->cause, cases[i].cause);
        assert_int_equal(k->severity, cases[i].severity);
        tensor_end(r);
    }
}

static void usual_mixed_precision_is_no_trouble(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, "model_config: {compute_dtype: float16, softmax_compute_dtype: float32}\n"
                                   "parallel_config: {grad_reduce_dtype: bfloat16}\n" // of one rank nothing is summed
                                   "runner_wrapper: {scale_sense: {type: DynamicLossScaleUpdateCell}}\n");
    tensor_begin(r);
    tensor_quiet(r, 50);
    assert_null(tensor_incident(r, "precision_policy", KEEL_INFO));
    tensor_end(r);
}

// ---- update_ratio ----

static void scale_updates(tensor_run *r, double factor) {
    for (uint32_t s = 0; s < r->info.site_count; s++)
        if (r->sites[s].quantity == KEEL_UPDATE) tensor_set_norm(r, (int)s, r->f64[KEEL_OP_norm][s] * factor);
}

static void updates_as_large_as_the_weights_are_told(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, plain);
    tensor_begin(r);
    tensor_quiet(r, 20);
    for (int i = 0; i < 4; i++) {
        tensor_next(r);
        scale_updates(r, 20);
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "update_ratio", KEEL_WARNING);
    assert_non_null(k);
    assert_int_equal(k->first_step, 21);
    assert_string_equal(k->cause, "learning rate too high");
    tensor_end(r);
}

static void the_first_steps_of_a_small_model_are_not(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, plain);
    tensor_begin(r);
    for (int i = 0; i < 100; i++) {
        tensor_next(r);
        scale_updates(r, 1 + 9.0 / (1 + i)); // 0.15, 0.08, 0.06, ... of the weights
        tensor_judge(r);
    }
    assert_null(tensor_incident(r, "update_ratio", KEEL_INFO));
    tensor_end(r);
}

static void an_epsilon_above_the_second_moment_is_told(void **unused) {
    (void)unused;
    static const double factors[] = {0.01, 1}; // of an update of 0.3 of the learning rate
    for (size_t f = 0; f < 2; f++) {
        tensor_run *r = tensor_open(1, plain);
        tensor_begin(r);
        for (int i = 0; i < 20; i++) {
            tensor_next(r);
            scale_updates(r, factors[f]);
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "update_ratio", KEEL_WARNING);
        if (f == 0) {
            assert_non_null(k);
            assert_string_equal(k->cause, "Adam epsilon too large");
        } else
            assert_null(k);
        tensor_end(r);
    }
}

// ---- vanishing_gradient ----

static void gradients_that_fade_with_depth_are_told(void **unused) {
    (void)unused;
    static const double falls[] = {20, 4}; // per layer, of four
    for (size_t f = 0; f < 2; f++) {
        tensor_run *r = tensor_open(1, plain);
        for (uint32_t s = 0; s < r->info.site_count; s++)
            if (r->sites[s].quantity == KEEL_GRAD_REDUCED) r->base[s] *= pow(falls[f], r->sites[s].layer - 3);
        tensor_begin(r);
        tensor_quiet(r, 64);
        assert_null(tensor_incident(r, "vanishing_gradient", KEEL_INFO));
        tensor_quiet(r, 40);
        const keel_incident *k = tensor_incident(r, "vanishing_gradient", KEEL_WARNING);
        assert_int_equal(k != NULL, f == 0);
        if (k) assert_string_equal(k->site, "layers.0.mlp.down.weight:grad_reduced");
        if (k) assert_string_equal(k->cause, "vanishing gradient");
        tensor_end(r);
    }
}

// ---- rank_outlier ----

static void make_rank_odd(tensor_run *r, bool last, double factor) {
    for (uint32_t s = 0; s < r->info.site_count; s++) {
        if (r->sites[s].quantity != KEEL_GRAD_UNREDUCED && r->sites[s].quantity != KEEL_ACTIVATION) continue;
        double norm = r->f64[KEEL_OP_norm][s];
        tensor_set_ranks(r, (int)s, last ? norm : factor * norm, norm, last ? factor * norm : norm);
    }
}

static void the_odd_rank_is_named(void **unused) {
    (void)unused;
    static const struct {
        uint32_t ranks;
        bool last;
        double factor;
    } cases[] = {{2, true, 4}, {2, false, 4}, {2, true, 0.2}, {4, true, 4}, {4, false, 0.2}, {3, false, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tensor_run *r = tensor_open(cases[i].ranks, plain);
        tensor_begin(r);
        tensor_quiet(r, 100);
        for (int n = 0; n < 3; n++) {
            tensor_next(r);
            make_rank_odd(r, cases[i].last, cases[i].factor);
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "rank_outlier", KEEL_WARNING);
        assert_non_null(k);
        assert_int_equal(k->rank, cases[i].last ? (int)cases[i].ranks - 1 : 0);
        assert_int_equal(k->first_step, 101);
        assert_string_equal(k->site, "layers.0.mlp.down:activation");
        assert_string_equal(k->cause, "corrupt data on one rank");
        tensor_end(r);
    }
}

static void a_rank_that_was_odd_from_the_start_is_found(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(4, plain);
    tensor_begin(r);
    for (int n = 0; n < 60; n++) {
        tensor_next(r);
        make_rank_odd(r, true, 1.5);
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "rank_outlier", KEEL_WARNING);
    assert_non_null(k);
    assert_int_equal(k->rank, 3);
    tensor_end(r);
}

static void one_odd_site_is_no_odd_rank(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(4, plain);
    tensor_begin(r);
    tensor_quiet(r, 100);
    for (int n = 0; n < 3; n++) {
        tensor_next(r);
        tensor_set_ranks(r, tensor_find(r, "layers.0.mlp.down", KEEL_ACTIVATION), 50, 50, 500);
        tensor_judge(r);
    }
    assert_null(tensor_incident(r, "rank_outlier", KEEL_INFO));
    tensor_end(r);
}

static void a_local_loss_that_stands_out_names_its_rank(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(4, plain);
    tensor_begin(r);
    for (int i = 0; i < 103; i++) {
        tensor_next(r);
        r->scalars[T_LOSS_MAX] = r->scalars[T_LOSS] * (i < 100 ? 1.02 : 1.9);
        r->scalars[T_LOSS_MAX_RANK] = i < 100 ? i % 4 : 2;
        r->set[T_LOSS_MAX] = r->set[T_LOSS_MAX_RANK] = true;
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "rank_outlier", KEEL_WARNING);
    assert_non_null(k);
    assert_int_equal(k->rank, 2);
    tensor_end(r);
}

// ---- replica_divergence ----

static void set_residuals(tensor_run *r, bool all, int odd) {
    for (uint32_t s = 0; s < r->info.site_count; s++) {
        if (r->sites[s].quantity != KEEL_WEIGHT) continue;
        r->sites[s].replica_count = r->info.world_size;
        double norm = r->f64[KEEL_OP_norm][s];
        tensor_set_ranks(r, (int)s, norm, norm, norm);
        r->u64[KEEL_OP_replica_residual][s] = all || (int)s == odd ? 12345 : 0;
    }
}

static void a_bit_flip_in_one_weight_of_one_rank_is_told_at_once(void **unused) {
    (void)unused;
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
        tensor_run *r = tensor_open(ranks, plain);
        int odd = tensor_find(r, "layers.2.mlp.down.weight", KEEL_WEIGHT);
        for (uint32_t s = 0; s < r->info.site_count; s++) r->sites[s].replica_count = ranks;
        tensor_begin(r);
        for (int i = 0; i < 100; i++) {
            tensor_next(r);
            set_residuals(r, false, -1);
            tensor_judge(r);
        }
        assert_null(tensor_incident(r, "replica_divergence", KEEL_INFO));
        tensor_next(r);
        set_residuals(r, false, odd);
        tensor_set_ranks(r, odd, 20, 20, 400);
        tensor_judge(r);
        const keel_incident *k = tensor_incident(r, "replica_divergence", KEEL_WARNING);
        assert_non_null(k);
        assert_int_equal(k->rank, (int)ranks - 1);
        assert_string_equal(k->site, "layers.2.mlp.down.weight:weight");
        assert_string_equal(k->cause, "bit flip in a weight");
        tensor_end(r);
    }
}

// Of two copies: the first one's sum and the sum of its update tell, however small the flip is.
static void of_two_copies_the_sum_of_the_update_tells_the_odd_one(void **unused) {
    (void)unused;
    for (int odd_rank = 0; odd_rank < 2; odd_rank++) {
        tensor_run *r = tensor_open(2, plain);
        int weight = tensor_find(r, "layers.2.mlp.down.weight", KEEL_WEIGHT);
        int update = tensor_find(r, "layers.2.mlp.down.weight", KEEL_UPDATE);
        for (uint32_t s = 0; s < r->info.site_count; s++) r->sites[s].replica_count = 2;
        tensor_begin(r);
        double mean = 0.001, norm = 20;
        for (int i = 0; i < 50; i++) {
            bool flip = i == 49;
            tensor_next(r);
            set_residuals(r, false, flip ? weight : -1);
            double step = 1e-6 * random_normal(&r->seed);
            mean += step;
            norm += 1e-3 * random_normal(&r->seed);
            r->f64[KEEL_OP_mean][update] = step;
            r->f64[KEEL_OP_mean][weight] = mean + 1e-12 * random_normal(&r->seed) + (flip && odd_rank == 0 ? 1e-9 : 0);
            tensor_set_ranks(r, weight, norm, norm, flip ? norm + 1e-9 : norm);
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "replica_divergence", KEEL_WARNING);
        assert_non_null(k);
        assert_int_equal(k->rank, odd_rank);
        tensor_end(r);
    }
}

// The copy whose norm is to the bit what it was has missed the update.
static void of_two_copies_the_one_that_stood_still_is_out_of_step(void **unused) {
    (void)unused;
    for (int odd_rank = 0; odd_rank < 2; odd_rank++) {
        tensor_run *r = tensor_open(2, plain);
        tensor_begin(r);
        double norm = 20, before = 20;
        for (int i = 0; i < 50; i++) {
            tensor_next(r);
            set_residuals(r, i == 49, -1);
            before = norm;
            norm += 1e-3;
            for (uint32_t s = 0; s < r->info.site_count; s++)
                if (r->sites[s].quantity == KEEL_WEIGHT)
                    tensor_set_ranks(r, (int)s, i == 49 && odd_rank == 0 ? before : norm, norm,
                                     i == 49 && odd_rank == 1 ? before : norm);
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "replica_divergence", KEEL_WARNING);
        assert_non_null(k);
        assert_int_equal(k->rank, odd_rank);
        assert_string_equal(k->cause, "replica out of step");
        tensor_end(r);
    }
}

static void a_replica_out_of_step_has_all_its_weights_different(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(2, plain);
    tensor_begin(r);
    for (int i = 0; i < 22; i++) {
        tensor_next(r);
        set_residuals(r, i >= 20, -1);
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "replica_divergence", KEEL_CRITICAL);
    assert_non_null(k);
    assert_string_equal(k->cause, "replica out of step");
    assert_int_equal(k->rank, -1);
    tensor_end(r);
}

// ---- fp16 ----

static const char half[] = "model_config: {vocab_size: 256, compute_dtype: float16}\n"
                           "runner_wrapper: {scale_sense: {type: FixedLossScaleUpdateCell}}\n";

static void gradients_that_are_flushed_are_told_in_half_only(void **unused) {
    (void)unused;
    for (int in_half = 0; in_half < 2; in_half++) {
        tensor_run *r = tensor_open(1, in_half ? half : plain);
        tensor_begin(r);
        for (int i = 0; i < 40; i++) {
            tensor_next(r);
            for (uint32_t s = 0; s < r->info.site_count; s++) r->f64[KEEL_OP_underflow][s] = 0.2;
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "fp16_underflow", KEEL_WARNING);
        assert_int_equal(k != NULL, in_half);
        if (k) assert_string_equal(k->cause, "fp16 underflow");
        if (k) assert_int_equal(k->severity, KEEL_WARNING);
        tensor_end(r);
    }
}

static void half_of_all_flushed_is_critical_at_once(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, half);
    tensor_begin(r);
    tensor_quiet(r, 100);
    for (int i = 0; i < 4; i++) {
        tensor_next(r);
        for (uint32_t s = 0; s < r->info.site_count; s++) r->f64[KEEL_OP_underflow][s] = 0.7;
        tensor_judge(r);
    }
    assert_non_null(tensor_incident(r, "fp16_underflow", KEEL_CRITICAL));
    tensor_end(r);
}

static void a_site_three_times_its_history_is_told(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, half);
    tensor_begin(r);
    int site = tensor_find(r, "layers.0.mlp.down", KEEL_ACTIVATION_GRAD);
    for (int i = 0; i < 200; i++) {
        tensor_next(r);
        r->f64[KEEL_OP_underflow][site] = i < 150 ? 0.03 : 0.12;
        tensor_judge(r);
        assert_int_equal(tensor_incident(r, "fp16_underflow", KEEL_INFO) != NULL, i >= 169);
    }
    tensor_end(r);
}

static void a_scale_that_is_too_large_and_stays_is_critical(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, half);
    r->names[T_EXTRA] = "loss_scale";
    tensor_begin(r);
    tensor_quiet(r, 10);
    for (int i = 0; i < 2; i++) {
        tensor_next(r);
        r->scalars[T_EXTRA] = 0x1p24;
        r->set[T_EXTRA] = true;
        r->row.step.flags = KEEL_STEP_SKIPPED | KEEL_STEP_OVERFLOW;
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "fp16_overflow", KEEL_CRITICAL);
    assert_non_null(k);
    assert_int_equal(k->first_step, 11);
    assert_string_equal(k->cause, "loss scale too large");
    tensor_end(r);
}

static void a_search_for_the_scale_is_no_trouble(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, "model_config: {compute_dtype: float16}\n"
                                   "runner_wrapper: {scale_sense: {type: DynamicLossScaleUpdateCell}}\n");
    r->names[T_EXTRA] = "loss_scale";
    tensor_begin(r);
    for (int i = 0; i < 12; i++) {
        tensor_next(r);
        r->scalars[T_EXTRA] = ldexp(1, 24 - i);
        r->set[T_EXTRA] = true;
        r->row.step.flags = KEEL_STEP_SKIPPED | KEEL_STEP_OVERFLOW;
        tensor_judge(r);
    }
    assert_null(tensor_incident(r, "fp16_overflow", KEEL_INFO));
    tensor_end(r);
}

static void activations_beyond_half_are_told(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, half);
    tensor_begin(r);
    int site = tensor_find(r, "layers.2.mlp.down", KEEL_ACTIVATION);
    tensor_quiet(r, 5);
    for (int i = 0; i < 2; i++) {
        tensor_next(r);
        r->f64[KEEL_OP_overflow][site] = 1e-6;
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "fp16_overflow", KEEL_WARNING);
    assert_non_null(k);
    assert_string_equal(k->site, "layers.2.mlp.down:activation");
    tensor_end(r);
    r = tensor_open(1, half);
    tensor_begin(r);
    for (int i = 0; i < 25; i++) {
        tensor_next(r);
        r->f64[KEEL_OP_max][site] = 50000;
        tensor_judge(r);
    }
    tensor_expect_quiet(r);
    assert_non_null(tensor_incident(r, "fp16_overflow", KEEL_INFO));
    tensor_end(r);
}

// ---- stale_second_moment ----

static void a_second_moment_that_lags_is_told(void **unused) {
    (void)unused;
    static const struct {
        const char *yaml;
        double rms; // in two of the records
        bool told;
    } cases[] = {
        {"model_config: {vocab_size: 256}\noptimizer: {betas: [0.9, 0.999]}\n", 2.6, true},
        {"model_config: {vocab_size: 256}\noptimizer: {betas: [0.9, 0.999]}\n", 1.9, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tensor_run *r = tensor_open(1, cases[i].yaml);
        int site = tensor_site(r, "embedding.weight", KEEL_ADAM_RMS, -1, 1);
        r->sites[site].numel = 1;
        tensor_begin(r);
        for (int n = 0; n < 110; n++) {
            tensor_next(r);
            r->f64[KEEL_OP_max][site] = n == 100 || n == 103 || n < 3 ? cases[i].rms : 0.9; // early ones do not count
            tensor_judge(r);
            assert_int_equal(tensor_incident(r, "stale_second_moment", KEEL_WARNING) != NULL,
                             cases[i].told && n >= 103);
        }
        const keel_incident *k = tensor_incident(r, "stale_second_moment", KEEL_WARNING);
        if (k) assert_string_equal(k->site, "embedding.weight:adam_rms");
        if (k) assert_string_equal(k->cause, "beta2 too large");
        if (k) assert_true(tensor_evidence_has(r, k, "beta2 is 0.999"));
        tensor_end(r);
    }
}

// ---- attention_logit_growth, router_collapse, drop_rate ----

static void logits_that_grow_without_bound_are_told(void **unused) {
    (void)unused;
    static const double factors[] = {1.04, 1.004}; // per step, from 5
    for (size_t f = 0; f < 2; f++) {
        tensor_run *r = tensor_open(1, plain);
        int site = tensor_site(r, "layers.1.attention.max_logit", KEEL_ACTIVATION, 1, 5);
        r->sites[site].numel = 1;
        tensor_begin(r);
        tensor_quiet(r, 100);
        for (int i = 0; i < 150; i++) {
            tensor_next(r);
            r->f64[KEEL_OP_max][site] = 5 * pow(factors[f], i);
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "attention_logit_growth", KEEL_WARNING);
        assert_int_equal(k != NULL, f == 0);
        if (k) assert_string_equal(k->site, "layers.1.attention.max_logit:activation");
        if (k) assert_string_equal(k->cause, "attention logit growth");
        tensor_end(r);
    }
}

static void a_router_that_settles_on_a_few_experts_is_told(void **unused) {
    (void)unused;
    for (int sick = 0; sick < 2; sick++) {
        tensor_run *r = tensor_open(1, plain);
        int load = tensor_site(r, "layers.1.moe.expert_load", KEEL_ACTIVATION, 1, 5);
        r->sites[load].numel = 8;
        strcpy(r->sites[load].module, "router");
        tensor_begin(r);
        for (int i = 0; i < 120; i++) {
            tensor_next(r);
            r->f64[KEEL_OP_mean][load] = 16;
            r->f64[KEEL_OP_max][load] = sick && i > 80 ? 100 : 40;
            r->f64[KEEL_OP_zeros][load] = 0.25;
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "router_collapse", KEEL_WARNING);
        assert_int_equal(k != NULL, sick);
        if (k) assert_string_equal(k->cause, "router collapse");
        tensor_end(r);
    }
}

static void dropped_tokens_are_told(void **unused) {
    (void)unused;
    for (int sick = 0; sick < 2; sick++) {
        tensor_run *r = tensor_open(1, plain);
        int rate = tensor_site(r, "layers.1.moe.drop_rate", KEEL_ACTIVATION, 1, 1);
        r->sites[rate].numel = 1;
        tensor_begin(r);
        for (int i = 0; i < 120; i++) {
            tensor_next(r);
            tensor_set_norm(r, rate, 1); // in the test's own scale
            r->f64[KEEL_OP_max][rate] = i < 20 ? 0.5 : sick ? 0.2 : 0.02;
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "drop_rate", KEEL_WARNING);
        assert_int_equal(k != NULL, sick);
        if (k) assert_string_equal(k->cause, "experts drop tokens");
        tensor_end(r);
    }
}

// ---- initialisation ----

static void bad_initial_values_are_told_at_the_first_step(void **unused) {
    (void)unused;
    static const struct {
        double loss; // of step 1, of a vocabulary of 256
        int layer;   // whose matrix is times FACTOR; -1: all
        double factor;
    } cases[] = {{9, -1, 1}, {5.6, -1, 20}, {5.6, 2, 8}, {5.6, 1, 0.1}, {5.6, -1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool bad = i + 1 < sizeof cases / sizeof *cases;
        tensor_run *r = tensor_open(1, plain);
        tensor_begin(r);
        tensor_next(r);
        r->scalars[T_LOSS] = cases[i].loss;
        for (uint32_t s = 0; s < r->info.site_count; s++)
            if (r->sites[s].quantity == KEEL_WEIGHT && (cases[i].layer < 0 || cases[i].layer == r->sites[s].layer))
                tensor_set_norm(r, (int)s, 20 * cases[i].factor);
        tensor_judge(r);
        const keel_incident *k = tensor_incident(r, "initialisation", KEEL_WARNING);
        assert_int_equal(k != NULL, bad);
        if (k) assert_string_equal(k->cause, "bad initialisation");
        if (k && cases[i].layer == 2) assert_string_equal(k->site, "layers.2.mlp.down.weight:weight");
        tensor_end(r);
    }
}

// ---- what ranks the machine has ----

static void a_leak_is_told_with_its_rank(void **unused) {
    (void)unused;
    for (int leak = 0; leak < 2; leak++) {
        tensor_run *r = tensor_open(2, plain);
        r->names[T_EXTRA] = "rss_growth_bytes";
        r->names[T_EXTRA_RANK] = "rss_growth_bytes_rank";
        r->names[T_MORE] = "rss_anon_bytes";
        tensor_begin(r);
        for (int i = 0; i < 300; i++) {
            tensor_next(r);
            // Without a leak: bursts that are given back, and a cache that fills up.
            r->scalars[T_EXTRA] = leak ? 524288.0 * i : 4e6 * (i % 50) + 2e7 * (1 - exp(-i / 60.0));
            r->scalars[T_EXTRA_RANK] = 1;
            r->scalars[T_MORE] = 2e8 + r->scalars[T_EXTRA];
            r->set[T_EXTRA] = r->set[T_EXTRA_RANK] = r->set[T_MORE] = true;
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "memory_growth", KEEL_WARNING);
        assert_int_equal(k != NULL, leak);
        if (k) assert_int_equal(k->rank, 1);
        if (k) assert_string_equal(k->cause, "memory leak");
        tensor_end(r);
    }
}

static void the_rank_that_others_wait_for_is_named(void **unused) {
    (void)unused;
    for (int slow = 0; slow < 2; slow++) {
        tensor_run *r = tensor_open(4, plain);
        r->names[T_EXTRA] = "reduce_wait_seconds";
        r->names[T_MORE] = "reduce_wait_least_seconds";
        r->names[T_EXTRA_RANK] = "reduce_wait_least_seconds_rank";
        tensor_begin(r);
        for (int i = 0; i < 200; i++) {
            tensor_next(r);
            // Noise: waits of any length, for any rank, a burst of 20 steps for one.
            bool burst = slow ? i >= 100 : i >= 100 && i < 120;
            r->scalars[T_EXTRA] = burst ? 0.05 : 0.04 * random_uniform(&r->seed);
            r->scalars[T_MORE] = 0.001;
            r->scalars[T_EXTRA_RANK] = burst ? 2 : (int)(4 * random_uniform(&r->seed));
            r->set[T_EXTRA] = r->set[T_EXTRA_RANK] = r->set[T_MORE] = true;
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "straggler", KEEL_WARNING);
        assert_int_equal(k != NULL, slow);
        if (k) assert_int_equal(k->rank, 2);
        if (k) assert_in_range(k->first_step, 90, 101);
        if (k) assert_string_equal(k->cause, "straggler");
        tensor_end(r);
    }
}

static void a_step_that_does_not_end_is_told_while_it_lasts(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(2, plain);
    tensor_begin(r);
    assert_int_equal(keel_analysis_watch(r->analysis, 1000), KEEL_OK); // the first step may take its time
    tensor_quiet(r, 20);
    size_t changed;
    assert_int_equal(keel_analysis_watch(r->analysis, 299), KEEL_OK);
    assert_null(tensor_incident(r, "hang", KEEL_INFO));
    assert_int_equal(keel_analysis_watch(r->analysis, 301), KEEL_OK);
    keel_analysis_changed(r->analysis, &changed);
    assert_int_equal(changed, 1);
    const keel_incident *k = tensor_incident(r, "hang", KEEL_CRITICAL);
    assert_non_null(k);
    assert_int_equal(k->open, 1);
    assert_int_equal(k->first_step, 21);
    assert_string_equal(k->cause, "hang");
    assert_int_equal(keel_analysis_health(r->analysis).open_criticals, 1);
    tensor_next(r);
    r->row.step.seconds = 400;
    tensor_judge(r);
    k = tensor_incident(r, "hang", KEEL_CRITICAL);
    assert_int_equal(k->open, 0);
    assert_true(k->value == 400);
    assert_int_equal(keel_analysis_health(r->analysis).open_criticals, 0);
    const keel_incident live = *k;
    tensor_end(r);

    // Afterwards, from the rows alone.
    r = tensor_open(2, plain);
    tensor_begin(r);
    tensor_quiet(r, 20);
    tensor_next(r);
    r->row.step.seconds = 400;
    tensor_judge(r);
    k = tensor_incident(r, "hang", KEEL_CRITICAL);
    assert_non_null(k);
    assert_string_equal(k->message, live.message);
    assert_int_equal(k->first_step, live.first_step);
    tensor_end(r);
}

static void a_resume_on_other_ranks_is_a_note(void **unused) {
    (void)unused;
    for (int same = 0; same < 2; same++) {
        tensor_run *r = tensor_open(2, plain);
        tensor_begin(r);
        for (int i = 0; i < 40; i++) {
            tensor_next(r);
            r->row.step.first_batch = r->row.step.last_batch = r->step;
            tensor_judge(r);
        }
        if (!same) r->info.world_size = 4;
        assert_int_equal(keel_analysis_start(r->analysis, &r->info), KEEL_OK);
        tensor_next(r);
        r->row.step.flags = KEEL_STEP_RESUMED;
        r->row.step.first_batch = r->row.step.last_batch = 7;
        tensor_judge(r);
        const keel_incident *k = tensor_incident(r, "resume_discontinuity", KEEL_INFO);
        assert_non_null(k);
        assert_int_equal(k->severity, same ? KEEL_WARNING : KEEL_INFO);
        assert_int_equal(strstr(k->message, "on 4 ranks instead of 2") != NULL, !same);
        tensor_end(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(healthy_tensors_are_quiet),
        cmocka_unit_test(a_weight_that_jumps_and_stays_is_a_warning),
        cmocka_unit_test(one_outlier_at_one_site_is_a_note),
        cmocka_unit_test(many_sites_at_once_are_a_warning_at_the_first),
        cmocka_unit_test(a_new_learning_rate_is_no_jump_of_the_updates),
        cmocka_unit_test(a_note_does_not_date_what_comes_later),
        cmocka_unit_test(early_layers_that_rise_slowly_are_told),
        cmocka_unit_test(one_layer_or_a_small_rise_is_no_warning),
        cmocka_unit_test(a_layer_that_dies_is_told_at_its_second_record),
        cmocka_unit_test(a_branch_that_begins_at_zero_and_experts_without_tokens_are_no_dead_units),
        cmocka_unit_test(what_never_lives_is_told_later),
        cmocka_unit_test(float32_made_of_bfloat16_is_told),
        cmocka_unit_test(one_value_in_a_million_changes_it),
        cmocka_unit_test(constant_tensors_and_gradients_of_a_short_run_are_no_fakes),
        cmocka_unit_test(settings_that_are_too_weak_are_told_once),
        cmocka_unit_test(usual_mixed_precision_is_no_trouble),
        cmocka_unit_test(updates_as_large_as_the_weights_are_told),
        cmocka_unit_test(the_first_steps_of_a_small_model_are_not),
        cmocka_unit_test(an_epsilon_above_the_second_moment_is_told),
        cmocka_unit_test(gradients_that_fade_with_depth_are_told),
        cmocka_unit_test(the_odd_rank_is_named),
        cmocka_unit_test(a_rank_that_was_odd_from_the_start_is_found),
        cmocka_unit_test(one_odd_site_is_no_odd_rank),
        cmocka_unit_test(a_local_loss_that_stands_out_names_its_rank),
        cmocka_unit_test(a_bit_flip_in_one_weight_of_one_rank_is_told_at_once),
        cmocka_unit_test(of_two_copies_the_sum_of_the_update_tells_the_odd_one),
        cmocka_unit_test(of_two_copies_the_one_that_stood_still_is_out_of_step),
        cmocka_unit_test(a_replica_out_of_step_has_all_its_weights_different),
        cmocka_unit_test(gradients_that_are_flushed_are_told_in_half_only),
        cmocka_unit_test(half_of_all_flushed_is_critical_at_once),
        cmocka_unit_test(a_site_three_times_its_history_is_told),
        cmocka_unit_test(a_scale_that_is_too_large_and_stays_is_critical),
        cmocka_unit_test(a_search_for_the_scale_is_no_trouble),
        cmocka_unit_test(activations_beyond_half_are_told),
        cmocka_unit_test(a_second_moment_that_lags_is_told),
        cmocka_unit_test(logits_that_grow_without_bound_are_told),
        cmocka_unit_test(a_router_that_settles_on_a_few_experts_is_told),
        cmocka_unit_test(dropped_tokens_are_told),
        cmocka_unit_test(bad_initial_values_are_told_at_the_first_step),
        cmocka_unit_test(a_leak_is_told_with_its_rank),
        cmocka_unit_test(the_rank_that_others_wait_for_is_named),
        cmocka_unit_test(a_step_that_does_not_end_is_told_while_it_lasts),
        cmocka_unit_test(a_resume_on_other_ranks_is_a_note),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
