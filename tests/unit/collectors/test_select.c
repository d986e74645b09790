#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "collectors/quantity/quantity.h"
#include "collectors/select.h"
#include "tests/unit/collectors/captured_log.h"

#define OP(name) (UINT64_C(1) << KEEL_OP_##name)

// The sites of the tests, by id.
enum { EMBEDDING, QKV, QKV_GRAD, QKV_REDUCED, MLP_OUT, MLP_MOMENT, SITES };

static const keel_site_info sites[SITES] = {
    [EMBEDDING] = {.name = "embedding.weight",
                   .quantity = KEEL_WEIGHT,
                   .layout = KEEL_LAYOUT_REPLICA,
                   .phase = KEEL_PHASE_OPTIMIZER,
                   .replica_count = 2},
    [QKV] = {.name = "layers.0.attention.qkv.weight", .quantity = KEEL_WEIGHT, .phase = KEEL_PHASE_OPTIMIZER},
    [QKV_GRAD] = {.name = "layers.0.attention.qkv.weight",
                  .quantity = KEEL_GRAD_UNREDUCED,
                  .layout = KEEL_LAYOUT_PARTIAL,
                  .phase = KEEL_PHASE_BACKWARD},
    [QKV_REDUCED] = {.name = "layers.0.attention.qkv.weight",
                     .quantity = KEEL_GRAD_REDUCED,
                     .phase = KEEL_PHASE_REDUCTION},
    [MLP_OUT] = {.name = "layers.11.mlp.out",
                 .quantity = KEEL_ACTIVATION,
                 .layout = KEEL_LAYOUT_SAMPLE,
                 .phase = KEEL_PHASE_FORWARD},
    [MLP_MOMENT] = {.name = "layers.11.mlp.weight", .quantity = KEEL_EXP_AVG_SQ, .phase = KEEL_PHASE_OPTIMIZER},
};

static struct {
    keel_site_plan plans[SITES];
    uint64_t masks[SITES];
    uint32_t rank_entries[SITES];
} chosen;

static keel_status select_by(const char *select) {
    char text[1024];
    snprintf(text, sizeof text, "monitor:\n  select:\n%s", select);
    keel_yaml *doc;
    keel_monitor_config *config;
    assert_int_equal(keel_yaml_parse("m.yaml", text, strlen(text), &doc), KEEL_OK);
    if (keel_monitor_config_read(doc, &config)) fail_msg("%s", keel_error());
    keel_probe *probe;
    assert_int_equal(keel_probe_open(0, &probe), KEEL_OK);
    for (int s = 0; s < SITES; s++) {
        keel_site *site;
        assert_int_equal(keel_site_add(probe, &sites[s], &site), KEEL_OK);
    }
    capture_log();
    keel_status status = keel_select(config, probe, chosen.plans, chosen.masks, chosen.rank_entries);
    if (!status) status = keel_select_warn(config, sites, SITES);
    keel_probe_close(probe);
    keel_monitor_config_free(config);
    return status;
}

static void assert_flags_alone(int site) {
    assert_int_equal(chosen.plans[site].fields, KEEL_FIELDS_FLAGS);
    assert_int_equal(chosen.masks[site], keel_ops_flags());
}

static void test_flags_are_kept_where_nothing_matches(void **state) {
    (void)state;
    assert_int_equal(select_by("  - {quantities: [grad_reduced], ops: [norm, max], every: 5, start: 3, count: 7}\n"),
                     KEEL_OK);
    for (int s = 0; s < SITES; s++)
        if (s != QKV_REDUCED) assert_flags_alone(s);
    const keel_site_plan *plan = &chosen.plans[QKV_REDUCED];
    assert_int_equal(plan->fields, KEEL_FIELDS_FLAGS | KEEL_FIELDS_BASE);
    assert_int_equal(chosen.masks[QKV_REDUCED], OP(norm) | OP(max) | keel_ops_flags());
    assert_int_equal(plan->schedule.every, 5);
    assert_int_equal(plan->schedule.start, 3);
    assert_int_equal(plan->schedule.count, 7);
    assert_int_equal(captured.count, 0);
}

static void test_expression_is_searched_in_names(void **state) {
    (void)state;
    assert_int_equal(select_by("  - {sites: 'layers\\.\\d+\\.mlp', ops: [rms]}\n"), KEEL_OK);
    assert_flags_alone(EMBEDDING);
    assert_flags_alone(QKV);
    assert_int_equal(chosen.masks[MLP_OUT], OP(rms) | keel_ops_flags());
    assert_int_equal(chosen.masks[MLP_MOMENT], OP(rms) | keel_ops_flags());
}

static void test_last_match_decides(void **state) {
    (void)state;
    assert_int_equal(select_by("  - {ops: [norm]}\n"
                               "  - {quantities: [weight], ops: [max], eps: 0.5}\n"
                               "  - {quantities: [weight], sites: qkv, enabled: false}\n"),
                     KEEL_OK);
    assert_int_equal(chosen.masks[MLP_OUT], OP(norm) | keel_ops_flags());
    assert_int_equal(chosen.masks[EMBEDDING], OP(max) | keel_ops_flags());
    assert_true(chosen.plans[EMBEDDING].eps == 0.5);
    assert_int_equal(chosen.plans[QKV].fields, 0);
    assert_int_equal(chosen.masks[QKV], 0);
    assert_int_not_equal(chosen.plans[QKV_GRAD].fields, 0);
}

static void test_groups_follow_what_is_asked(void **state) {
    (void)state;
    assert_int_equal(select_by("  - {ops: [all]}\n"), KEEL_OK);
    assert_int_equal(chosen.plans[QKV_GRAD].fields, KEEL_FIELDS_ALL - KEEL_FIELDS_CHECKSUM + KEEL_FIELDS_FLAGS);
    assert_int_equal(chosen.plans[EMBEDDING].fields, KEEL_FIELDS_ALL + KEEL_FIELDS_FLAGS);
    assert_int_equal(chosen.plans[MLP_MOMENT].fields, KEEL_FIELDS_BASE | KEEL_FIELDS_PRECISION | KEEL_FIELDS_FLAGS);
    assert_int_equal(captured.count, 0);

    assert_int_equal(select_by("  - {ops: [rank]}\n"), KEEL_OK);
    assert_int_equal(chosen.plans[QKV].fields, KEEL_FIELDS_BASE | KEEL_FIELDS_FLAGS);
    assert_int_equal(chosen.plans[EMBEDDING].fields, KEEL_FIELDS_BASE | KEEL_FIELDS_CHECKSUM | KEEL_FIELDS_FLAGS);
    assert_true(chosen.masks[EMBEDDING] & OP(replica_residual));
    assert_false(chosen.masks[QKV] & OP(replica_residual));

    assert_int_equal(select_by("  - {ops: []}\n"), KEEL_OK);
    for (int s = 0; s < SITES; s++) assert_flags_alone(s);
}

static void test_micro_batches_where_there_are_any(void **state) {
    (void)state;
    assert_int_equal(select_by("  - {ops: [norm], per_micro_batch: true}\n"), KEEL_OK);
    assert_true(chosen.plans[QKV_GRAD].per_micro && chosen.plans[MLP_OUT].per_micro);
    assert_false(chosen.plans[QKV].per_micro || chosen.plans[MLP_MOMENT].per_micro);
    assert_int_equal(captured.count, 0);
    assert_int_equal(select_by("  - {quantities: [weight], per_micro_batch: true}\n"), KEEL_OK);
    assert_int_equal(captured.count, 1);
    assert_string_equal(captured.lines[0], "m.yaml:3:45: monitor.select.0.per_micro_batch: none of the selected sites "
                                           "is observed per micro-batch");
}

static void test_what_selects_nothing_is_said(void **state) {
    (void)state;
    assert_int_equal(select_by("  - {ops: [norm]}\n  - {sites: atention, ops: [max]}\n"), KEEL_OK);
    assert_int_equal(captured.count, 1);
    assert_string_equal(captured.lines[0], "m.yaml:4:5: monitor.select.1: this selection matches no site");
    assert_int_equal(select_by("  - {quantities: [activation], ops: [norm, replica_residual]}\n"), KEEL_OK);
    assert_int_equal(captured.count, 1);
    assert_int_equal(captured_with("none of the selected sites is a replica"), 1);
}

static void assert_refused(const char *select, const char *message) {
    assert_int_equal(select_by(select), KEEL_ERR_CONFIG);
    assert_string_equal(keel_error(), message);
}

static void test_errors_have_their_place(void **state) {
    (void)state;
    assert_refused("  - {quantities: [weight, grad_reducd]}\n",
                   "m.yaml:3:27: monitor.select.0.quantities.1: unknown quantity 'grad_reducd'; nearest known: "
                   "grad_reduced");
    assert_refused("  - {quantities: weigth}\n",
                   "m.yaml:3:18: monitor.select.0.quantities: unknown quantity 'weigth'; nearest known: weight");
    assert_refused("  - ops: [norm, precison]\n",
                   "m.yaml:3:17: monitor.select.0.ops.1: unknown op 'precison'; nearest known: precision");
    assert_refused("  - sites: 'layers.(0'\n",
                   "m.yaml:3:12: monitor.select.0.sites: 'layers.(0' is no regular expression: missing closing "
                   "parenthesis at offset 9");
}

static void test_runaway_expression_is_an_error(void **state) {
    (void)state;
    assert_int_equal(select_by("  - sites: '(?:(?:[a-z.]+)*)*[0-9]{3}'\n"), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "m.yaml:3:12: monitor.select.0.sites"));
    assert_non_null(strstr(keel_error(), "limit"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flags_are_kept_where_nothing_matches),
        cmocka_unit_test(test_expression_is_searched_in_names),
        cmocka_unit_test(test_last_match_decides),
        cmocka_unit_test(test_groups_follow_what_is_asked),
        cmocka_unit_test(test_micro_batches_where_there_are_any),
        cmocka_unit_test(test_what_selects_nothing_is_said),
        cmocka_unit_test(test_errors_have_their_place),
        cmocka_unit_test(test_runaway_expression_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
