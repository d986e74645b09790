// Rules on tensors: each fires on what it looks for, and keeps still on what resembles it.
#include "tests/unit/analyzers/tensor_run.h"

static void healthy_tensors_are_quiet(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(2);
    tensor_quiet(r, 3000);
    tensor_expect_quiet(r);
    tensor_end(r);
}

// ---- tensor_jump ----

static void a_weight_that_jumps_and_stays_is_a_warning(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(1);
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

// A norm that neither the weight before nor its update explains, in a step whose update was applied or skipped. With
// one that an update explains, or copies on other ranks, it is not told so.
static void a_weight_that_no_update_has_changed_so_is_told_as_its_own(void **unused) {
    (void)unused;
    enum { APPLIED, SKIPPED, EXPLAINED, COPIES, WAYS };
    for (int way = 0; way < WAYS; way++) {
        tensor_run *r = tensor_open(2, tensor_plain);
        const int site = tensor_find(r, "layers.2.mlp.down.weight", KEEL_WEIGHT);
        const int update = tensor_find(r, "layers.2.mlp.down.weight", KEEL_UPDATE);
        r->sites[site].replica_count = way == COPIES ? 2 : 1;
        tensor_begin(r);
        tensor_quiet(r, 20);
        tensor_next(r);
        tensor_set_norm(r, site, 1e9);
        tensor_set_ranks(r, site, 20, 20, 1e9);
        if (way == EXPLAINED) tensor_set_norm(r, update, 1e9);
        if (way == SKIPPED) r->row.step.flags = KEEL_STEP_SKIPPED;
        tensor_judge(r);
        const keel_incident *k = tensor_incident(r, "tensor_jump", KEEL_WARNING);
        assert_int_equal(k != NULL, way == APPLIED || way == SKIPPED);
        if (k) assert_string_equal(k->series, "weight");
        if (k) assert_string_equal(k->site, "layers.2.mlp.down.weight:weight");
        if (k) assert_string_equal(k->cause, "bit flip in a weight");
        if (k) assert_int_equal(k->rank, 1);
        tensor_end(r);
    }
}

static int32_t rank_of_a_jump(uint32_t ranks, uint32_t copies, double low, double high) {
    tensor_run *r = tensor_open(ranks, tensor_plain);
    int site = tensor_find(r, "layers.2.mlp.down.weight", KEEL_WEIGHT);
    r->sites[site].replica_count = copies;
    tensor_begin(r);
    for (int i = 0; i < 103; i++) {
        const bool jumps = i >= 100;
        tensor_next(r);
        r->f64[KEEL_OP_norm_low][site] = low;
        r->f64[KEEL_OP_norm_high][site] = jumps ? high : low * 1.01;
        r->f64[KEEL_OP_log_norm_mean][site] = log(low * 1.005);
        r->u64[KEEL_OP_rank_low][site] = 0;
        r->u64[KEEL_OP_rank_high][site] = low == high ? 0 : 1;
        if (jumps) r->f64[KEEL_OP_max][site] = 1e4;
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "tensor_jump", KEEL_WARNING);
    assert_non_null(k);
    const int32_t rank = k->rank;
    tensor_end(r);
    return rank;
}

static void the_rank_whose_part_jumps_is_named(void **unused) {
    (void)unused;
    assert_int_equal(rank_of_a_jump(2, 1, 2, 50), 1); // one part of two
    assert_int_equal(rank_of_a_jump(2, 1, 2, 2), 0);  // one rank holds all of it
    assert_int_equal(rank_of_a_jump(2, 2, 2, 2), -1); // copies jump together
    assert_int_equal(rank_of_a_jump(1, 1, 2, 2), -1); // there is but one
}

static void one_outlier_at_one_site_is_a_note(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(1);
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
    tensor_run *r = tensor_begun(1);
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
    tensor_run *r = tensor_begun(1);
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
    tensor_run *r = tensor_begun(1);
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

// FALL: of the loss meanwhile, as a share.
static void layers_that_rise_slowly(tensor_run *r, int layers, double factor, double fall) {
    tensor_begin(r);
    tensor_quiet(r, 300);
    for (int i = 0; i < 300; i++) {
        tensor_next(r);
        r->scalars[T_LOSS] *= 1 - fall * i / 300.0;
        for (uint32_t s = 0; s < r->info.site_count; s++)
            if (r->sites[s].quantity == KEEL_GRAD_REDUCED && r->sites[s].layer < layers)
                tensor_set_norm(r, (int)s, r->f64[KEEL_OP_norm][s] * pow(factor, i / 300.0));
        tensor_judge(r);
    }
}

static void early_layers_that_rise_slowly_are_told(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, tensor_plain);
    layers_that_rise_slowly(r, 2, 12, 0.01);
    const keel_incident *k = tensor_incident(r, "tensor_trend", KEEL_WARNING);
    assert_non_null(k);
    assert_true(k->first_step > 350 && k->first_step < 560);
    assert_string_equal(k->site, "layers.0.mlp.down.weight:grad_reduced");
    tensor_end(r);
}

static void layers_that_rise_while_the_model_learns_are_a_note(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, tensor_plain);
    layers_that_rise_slowly(r, 4, 12, 0.3);
    tensor_expect_quiet(r);
    assert_non_null(tensor_incident(r, "tensor_trend", KEEL_INFO));
    tensor_end(r);
}

static void one_layer_or_a_small_rise_is_no_warning(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, tensor_plain);
    layers_that_rise_slowly(r, 1, 12, 0);
    tensor_expect_quiet(r);
    assert_non_null(tensor_incident(r, "tensor_trend", KEEL_INFO));
    tensor_end(r);
    r = tensor_open(1, tensor_plain);
    layers_that_rise_slowly(r, 4, 2, 0);
    assert_null(tensor_incident(r, "tensor_trend", KEEL_INFO));
    tensor_end(r);
}

// ---- dead_unit ----

static void a_layer_that_dies_is_told_at_its_second_record(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(1);
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
    tensor_run *r = tensor_open(1, tensor_plain);
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
    tensor_run *r = tensor_begun(1);
    for (int i = 0; i < 70; i++) {
        tensor_next(r);
        tensor_set_norm(r, tensor_find(r, "layers.1.mlp.down", KEEL_ACTIVATION), 0);
        tensor_judge(r);
        assert_int_equal(tensor_incident(r, "dead_unit", KEEL_WARNING) != NULL, i >= 63);
    }
    tensor_end(r);
}

// ---- update_ratio ----

static void scale_updates(tensor_run *r, double factor) {
    for (uint32_t s = 0; s < r->info.site_count; s++)
        if (r->sites[s].quantity == KEEL_UPDATE) tensor_set_norm(r, (int)s, r->f64[KEEL_OP_norm][s] * factor);
}

static void updates_as_large_as_the_weights_are_told(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(1);
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

static void set_of_quantity(tensor_run *r, keel_quantity quantity, double norm) {
    for (uint32_t s = 0; s < r->info.site_count; s++)
        if (r->sites[s].quantity == quantity) tensor_set_norm(r, (int)s, norm);
}

// The weights before an update are those of the row before it, where that is of the step before.
static void an_update_is_measured_by_the_weights_before_it(void **unused) {
    (void)unused;
    static const struct {
        int every;            // records hold weights and updates
        double after, update; // of an update at record 100
        double ratio;         // NaN: undefined
    } cases[] = {{1, 60, 8, 0.4}, {5, 25, 15, 0.75}, {5, 15, 25, 1.25}, {5, 20, 20, NAN}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tensor_run *r = tensor_open(1, "");
        tensor_begin_with(r, "{update_ratio: {records: 1}}");
        for (int n = 1; n <= 100; n++) {
            tensor_next(r);
            const bool last = n == 100;
            set_of_quantity(r, KEEL_WEIGHT, n % cases[i].every ? NAN : last ? cases[i].after : 20);
            set_of_quantity(r, KEEL_UPDATE, n % cases[i].every ? NAN : last ? cases[i].update : 0.3);
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "update_ratio", KEEL_WARNING);
        assert_int_equal(k != NULL, !isnan(cases[i].ratio));
        if (k) assert_true(fabs(k->value - cases[i].ratio) < 1e-6);
        tensor_end(r);
    }
}

static void the_first_steps_of_a_small_model_are_not(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(1);
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
        tensor_run *r = tensor_begun(1);
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
        tensor_run *r = tensor_open(1, tensor_plain);
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

// ---- stale_second_moment ----

static void a_second_moment_that_lags_is_told(void **unused) {
    (void)unused;
    static const struct {
        const char *site;
        double rms; // in two of the records
        int told;   // from the N-th; -1: never
    } cases[] = {
        {"embedding.weight", 2.6, 103},
        {"embedding.weight", 1.9, -1},
        {"layers.1.norm1.weight", 2.6, -1}, // as in healthy young runs
        {"layers.1.norm1.weight", 4.2, 100},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tensor_run *r = tensor_open(1, "model_config: {vocab_size: 256}\noptimizer: {betas: [0.9, 0.999]}\n");
        int site = tensor_site(r, cases[i].site, KEEL_ADAM_RMS, -1, 1);
        r->sites[site].numel = 1;
        tensor_begin(r);
        for (int n = 0; n < 110; n++) {
            tensor_next(r);
            r->f64[KEEL_OP_max][site] = n == 100 || n == 103 || n < 3 ? cases[i].rms : 0.9; // early ones do not count
            tensor_judge(r);
            assert_int_equal(tensor_incident(r, "stale_second_moment", KEEL_WARNING) != NULL,
                             cases[i].told >= 0 && n >= cases[i].told);
        }
        const keel_incident *k = tensor_incident(r, "stale_second_moment", KEEL_WARNING);
        if (k) assert_true(strncmp(k->site, cases[i].site, strlen(cases[i].site)) == 0);
        assert_true(cases[i].rms < 2.3 || tensor_incident(r, "stale_second_moment", KEEL_INFO) != NULL);
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
        tensor_run *r = tensor_open(1, tensor_plain);
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
        tensor_run *r = tensor_open(1, tensor_plain);
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
        tensor_run *r = tensor_open(1, tensor_plain);
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
        tensor_run *r = tensor_begun(1);
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

// Two layers say nothing of one another: all matrices do, and the setting.
static void bad_initial_values_of_a_shallow_model_are_told(void **unused) {
    (void)unused;
    static const struct {
        const char *yaml;
        double factor;
        bool bad;
    } cases[] = {{tensor_plain, 30, true},
                 {tensor_plain, 1 / 30.0, true},
                 {tensor_plain, 6, false},
                 {"model_config: {vocab_size: 256, initializer_range: 0.02}\n", 6, true},
                 {"model_config: {vocab_size: 256, initializer_range: 0.02}\n", 3, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tensor_run *r = tensor_open(1, cases[i].yaml);
        static const char *const others[] = {"attention.qkv.weight", "attention.out.weight", "mlp.up.weight"};
        r->info.site_count = 12; // of the first two layers
        for (int k = 0; k < 6; k++) {
            char name[64];
            snprintf(name, sizeof name, "layers.%d.%s", k % 2, others[k / 2]);
            tensor_site(r, name, KEEL_WEIGHT, k % 2, 20);
        }
        tensor_begin(r);
        tensor_next(r);
        r->scalars[T_LOSS] = 5.6;
        tensor_set_norm(r, tensor_find(r, "layers.1.mlp.down.weight", KEEL_WEIGHT), 20 * cases[i].factor);
        tensor_judge(r);
        const keel_incident *k = tensor_incident(r, "initialisation", KEEL_WARNING);
        assert_int_equal(k != NULL, cases[i].bad);
        if (k) assert_string_equal(k->site, "layers.1.mlp.down.weight:weight");
        tensor_end(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(healthy_tensors_are_quiet),
        cmocka_unit_test(a_weight_that_jumps_and_stays_is_a_warning),
        cmocka_unit_test(a_weight_that_no_update_has_changed_so_is_told_as_its_own),
        cmocka_unit_test(the_rank_whose_part_jumps_is_named),
        cmocka_unit_test(one_outlier_at_one_site_is_a_note),
        cmocka_unit_test(many_sites_at_once_are_a_warning_at_the_first),
        cmocka_unit_test(a_new_learning_rate_is_no_jump_of_the_updates),
        cmocka_unit_test(a_note_does_not_date_what_comes_later),
        cmocka_unit_test(early_layers_that_rise_slowly_are_told),
        cmocka_unit_test(layers_that_rise_while_the_model_learns_are_a_note),
        cmocka_unit_test(one_layer_or_a_small_rise_is_no_warning),
        cmocka_unit_test(a_layer_that_dies_is_told_at_its_second_record),
        cmocka_unit_test(a_branch_that_begins_at_zero_and_experts_without_tokens_are_no_dead_units),
        cmocka_unit_test(what_never_lives_is_told_later),
        cmocka_unit_test(updates_as_large_as_the_weights_are_told),
        cmocka_unit_test(an_update_is_measured_by_the_weights_before_it),
        cmocka_unit_test(the_first_steps_of_a_small_model_are_not),
        cmocka_unit_test(an_epsilon_above_the_second_moment_is_told),
        cmocka_unit_test(gradients_that_fade_with_depth_are_told),
        cmocka_unit_test(a_second_moment_that_lags_is_told),
        cmocka_unit_test(logits_that_grow_without_bound_are_told),
        cmocka_unit_test(a_router_that_settles_on_a_few_experts_is_told),
        cmocka_unit_test(dropped_tokens_are_told),
        cmocka_unit_test(bad_initial_values_are_told_at_the_first_step),
        cmocka_unit_test(bad_initial_values_of_a_shallow_model_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
