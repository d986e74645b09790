// Rules on precision: what formats lose, and what settings ask of them.
#include "tests/unit/analyzers/tensor_run.h"

// ---- fake_float32 ----

static void float32_made_of_bfloat16_is_told(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(1);
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

static void as_many_records_are_waited_for_as_are_asked_for(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, tensor_plain);
    tensor_begin_with(r, "{fake_float32: {records: 300}}");
    int site = tensor_find(r, "layers.3.mlp.down.weight", KEEL_WEIGHT);
    for (int i = 0; i < 305; i++) {
        tensor_next(r);
        r->u64[KEEL_OP_not_bf16][site] = 0;
        tensor_judge(r);
    }
    assert_int_equal(tensor_incident(r, "fake_float32", KEEL_WARNING)->first_step, 300);
    tensor_end(r);
}

static void one_value_in_a_million_changes_it(void **unused) {
    (void)unused;
    tensor_run *r = tensor_begun(1);
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

// The settings say that ranks sum them in a short format; the tensors that it is so, and the cause is the same.
static void gradients_summed_in_a_short_format_are_told_by_their_values(void **unused) {
    (void)unused;
    static const char summed[] = "model_config: {vocab_size: 256}\nparallel_config: {grad_reduce_dtype: bfloat16}\n";
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        tensor_run *r = tensor_open(ranks, summed);
        tensor_begin(r);
        for (int i = 0; i < 4; i++) {
            tensor_next(r);
            for (uint32_t s = 0; s < r->info.site_count; s++)
                if (r->sites[s].quantity == KEEL_GRAD_REDUCED) r->u64[KEEL_OP_not_bf16][s] = 0;
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "fake_float32", KEEL_WARNING);
        assert_int_equal(k != NULL, ranks == 2);
        if (k) assert_string_equal(k->site, "layers.0.mlp.down.weight:grad_reduced");
        if (k) assert_string_equal(k->cause, "gradients reduced in low precision");
        if (k) assert_true(tensor_evidence_has(r, k, "summed in bfloat16"));
        tensor_end(r);
    }
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

// ---- fp16 ----

// Each site by its own dtype where the settings say nothing, and only by records that look at it.
static void of_mixed_sites_those_in_half_are_judged(void **unused) {
    (void)unused;
    tensor_run *r = tensor_open(1, "");
    for (uint32_t s = 0; s < r->info.site_count; s++)
        if (r->sites[s].layer > 0) r->sites[s].dtype = KEEL_F16;
    tensor_begin(r);
    for (int i = 0; i < 60; i++) {
        tensor_next(r);
        for (uint32_t s = 0; s < r->info.site_count; s++) {
            r->f64[KEEL_OP_underflow][s] = 0.2;
            if (i >= 40) r->f64[KEEL_OP_underflow][s] = r->f64[KEEL_OP_zeros][s] = r->f64[KEEL_OP_norm][s] = NAN;
        }
        tensor_judge(r);
    }
    const keel_incident *k = tensor_incident(r, "fp16_underflow", KEEL_WARNING);
    assert_non_null(k);
    assert_string_equal(k->site, "layers.1.mlp.down:activation_grad");
    assert_int_equal(k->open, 1);
    assert_int_equal(k->last_step, 40);
    assert_false(tensor_evidence_has(r, k, "layers.0"));
    tensor_end(r);
}

static const char half[] = "model_config: {vocab_size: 256, compute_dtype: float16}\n"
                           "runner_wrapper: {scale_sense: {type: FixedLossScaleUpdateCell}}\n";

static void gradients_that_are_flushed_are_told_in_half_only(void **unused) {
    (void)unused;
    for (int in_half = 0; in_half < 2; in_half++) {
        tensor_run *r = tensor_open(1, in_half ? half : tensor_plain);
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

// 2^15 times a gradient of 1.5 is 49,152: less than one bit below 65,504. Dynamic scales go there by themselves.
static void scaled_gradients_near_the_end_of_half_are_told(void **unused) {
    (void)unused;
    static const char dynamic[] = "model_config: {vocab_size: 256, compute_dtype: float16}\n"
                                  "runner_wrapper: {scale_sense: {type: DynamicLossScaleUpdateCell}}\n";
    for (int way = 0; way < 3; way++) {
        tensor_run *r = tensor_open(1, way == 1 ? dynamic : half);
        r->names[T_EXTRA] = "loss_scale";
        tensor_begin(r);
        const int site = tensor_find(r, "layers.1.mlp.down", KEEL_ACTIVATION_GRAD);
        for (int i = 0; i < 20; i++) {
            tensor_next(r);
            r->scalars[T_EXTRA] = 0x1p15;
            r->set[T_EXTRA] = true;
            r->f64[KEEL_OP_max][site] = way == 2 ? 0.9 : 1.5;
            tensor_judge(r);
        }
        const keel_incident *k = tensor_incident(r, "fp16_overflow", KEEL_INFO);
        assert_int_equal(k != NULL, way < 2);
        if (k) assert_int_equal(k->severity, way == 0 ? KEEL_WARNING : KEEL_INFO);
        if (k) assert_string_equal(k->site, "layers.1.mlp.down:activation_grad");
        if (k) assert_string_equal(k->cause, way == 0 ? "loss scale too large" : "unknown");
        tensor_end(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float32_made_of_bfloat16_is_told),
        cmocka_unit_test(as_many_records_are_waited_for_as_are_asked_for),
        cmocka_unit_test(one_value_in_a_million_changes_it),
        cmocka_unit_test(constant_tensors_and_gradients_of_a_short_run_are_no_fakes),
        cmocka_unit_test(gradients_summed_in_a_short_format_are_told_by_their_values),
        cmocka_unit_test(settings_that_are_too_weak_are_told_once),
        cmocka_unit_test(usual_mixed_precision_is_no_trouble),
        cmocka_unit_test(of_mixed_sites_those_in_half_are_judged),
        cmocka_unit_test(gradients_that_are_flushed_are_told_in_half_only),
        cmocka_unit_test(half_of_all_flushed_is_critical_at_once),
        cmocka_unit_test(a_site_three_times_its_history_is_told),
        cmocka_unit_test(a_scale_that_is_too_large_and_stays_is_critical),
        cmocka_unit_test(a_search_for_the_scale_is_no_trouble),
        cmocka_unit_test(activations_beyond_half_are_told),
        cmocka_unit_test(scaled_gradients_near_the_end_of_half_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
