#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "collectors/collector.h"
#include "collectors/quantity/quantity.h"

#define OP(name) (UINT64_C(1) << KEEL_OP_##name)

static void test_every_quantity_is_described(void **state) {
    (void)state;
    static const char *const families[] = {"weight", "gradient", "activation", "optimizer", "collective"};
    for (int q = 0; q < KEEL_QUANTITY_COUNT; q++) {
        const keel_quantity_info *info = keel_quantity_get((keel_quantity)q);
        size_t known = 0;
        for (size_t f = 0; f < sizeof families / sizeof *families; f++) known += !strcmp(info->family, families[f]);
        assert_int_equal(known, 1);
        assert_non_null(info->doc);
        assert_true(info->layouts & 1u << KEEL_LAYOUT_WHOLE);
        assert_true(info->phases);
    }
}

static keel_status check(keel_quantity quantity, keel_layout layout, keel_phase phase) {
    keel_site_info site = {.name = "layers.0.mlp", .quantity = quantity, .layout = layout, .phase = phase};
    return keel_quantity_check(&site);
}

static void test_layout_and_phase_must_fit(void **state) {
    (void)state;
    assert_int_equal(check(KEEL_WEIGHT, KEEL_LAYOUT_REPLICA, KEEL_PHASE_OPTIMIZER), KEEL_OK);
    assert_int_equal(check(KEEL_GRAD_UNREDUCED, KEEL_LAYOUT_PARTIAL, KEEL_PHASE_BACKWARD), KEEL_OK);
    assert_int_equal(check(KEEL_ACTIVATION, KEEL_LAYOUT_SAMPLE, KEEL_PHASE_FORWARD), KEEL_OK);
    assert_int_equal(check(KEEL_COLLECTIVE_OUT, KEEL_LAYOUT_REPLICA, KEEL_PHASE_REDUCTION), KEEL_OK);
    assert_int_equal(check(KEEL_WEIGHT, KEEL_LAYOUT_PARTIAL, KEEL_PHASE_OPTIMIZER), KEEL_ERR_USAGE);
    assert_string_equal(keel_error(), "site layers.0.mlp: quantity weight cannot have layout partial");
    assert_int_equal(check(KEEL_GRAD_UNREDUCED, KEEL_LAYOUT_REPLICA, KEEL_PHASE_BACKWARD), KEEL_ERR_USAGE);
    assert_int_equal(check(KEEL_ACTIVATION, KEEL_LAYOUT_SAMPLE, KEEL_PHASE_BACKWARD), KEEL_ERR_USAGE);
    assert_string_equal(keel_error(), "site layers.0.mlp: quantity activation does not arise in phase backward");
}

static void test_sets_of_ops(void **state) {
    (void)state;
    assert_int_equal(keel_ops_named("norm", KEEL_WEIGHT), OP(norm));
    assert_int_equal(keel_ops_named("precision", KEEL_WEIGHT), OP(not_bf16) | OP(not_fp16) | OP(not_tf32));
    assert_true(keel_ops_named("rank", KEEL_WEIGHT) & OP(replica_residual));
    assert_true(keel_ops_named("rank", KEEL_WEIGHT) & OP(log_norm_std));
    assert_false(keel_ops_named("rank", KEEL_WEIGHT) & OP(norm));
    assert_int_equal(keel_ops_named("nrom", KEEL_WEIGHT), 0);
    // fp16 matters for what is rounded to it; who asks for underflow by name gets it everywhere.
    assert_true(keel_ops_named("all", KEEL_ACTIVATION_GRAD) & OP(underflow));
    assert_false(keel_ops_named("all", KEEL_EXP_AVG_SQ) & OP(underflow));
    assert_true(keel_ops_named("all", KEEL_EXP_AVG_SQ) & OP(not_tf32));
    assert_int_equal(keel_ops_named("underflow", KEEL_EXP_AVG_SQ), OP(underflow));
    assert_int_equal(keel_ops_flags(), OP(nans) | OP(infs) | OP(rank_nonfinite) | OP(micro_nonfinite));
    size_t count;
    const char *const *known = keel_ops_known(&count);
    assert_int_equal(count, KEEL_OP_COUNT + 3);
    for (size_t i = 0; i < count; i++) assert_true(keel_ops_named(known[i], KEEL_WEIGHT));
}

static void test_ops_cost_only_their_groups(void **state) {
    (void)state;
    assert_int_equal(keel_ops_fields(0), KEEL_FIELDS_FLAGS);
    assert_int_equal(keel_ops_fields(keel_ops_flags()), KEEL_FIELDS_FLAGS);
    assert_int_equal(keel_ops_fields(OP(norm) | OP(max)), KEEL_FIELDS_FLAGS | KEEL_FIELDS_BASE);
    assert_int_equal(keel_ops_fields(OP(replica_residual)), KEEL_FIELDS_FLAGS | KEEL_FIELDS_CHECKSUM);
    assert_int_equal(keel_ops_fields(keel_ops_named("all", KEEL_WEIGHT)), KEEL_FIELDS_FLAGS | KEEL_FIELDS_ALL);
}

// A frame of one rank with the scalars of COLLECTOR, sampled once.
typedef struct sampled {
    keel_probe *probe;
    keel_frame *frame;
    void *state;
} sampled;

static sampled sample_once(const keel_collector *collector) {
    sampled s;
    assert_int_equal(keel_probe_open(3, &s.probe), KEEL_OK);
    assert_int_equal(collector->start(s.probe, &s.state), KEEL_OK);
    const uint32_t scalars = keel_probe_scalar_count(s.probe);
    s.frame = keel_frame_init(malloc(keel_frame_bytes(scalars, 0, 0, 0)), scalars, 0, 0, 0);
    collector->sample(s.state, s.frame, 3, &(keel_step){.step = 1, .seconds = 0.25});
    return s;
}

static void release(const keel_collector *collector, sampled *s) {
    collector->stop(s->state);
    free(s->frame);
    keel_probe_close(s->probe);
}

static const keel_scalar_value *scalar_named(const sampled *s, const char *name) {
    for (uint32_t i = 0; i < keel_probe_scalar_count(s->probe); i++)
        if (strcmp(keel_probe_scalar_name(s->probe, i), name) == 0) return &keel_frame_scalars(s->frame)[i];
    fail_msg("no scalar %s", name);
    return NULL;
}

static double rss_anon_of_status(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    double kilobytes = 0;
    while (fgets(line, sizeof line, file)) sscanf(line, "RssAnon: %lf kB", &kilobytes);
    fclose(file);
    return 1024 * kilobytes;
}

static void test_system_measures_memory(void **state) {
    (void)state;
    enum { BYTES = 32 << 20 };
    sampled before = sample_once(&keel_collector_system);
    const double small = scalar_named(&before, "rss_anon_bytes")->value;
    release(&keel_collector_system, &before);
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    sampled after = sample_once(&keel_collector_system);
    const keel_scalar_value *rss = scalar_named(&after, "rss_anon_bytes");
    assert_int_equal(rss->owner, 3);
    assert_true(rss->value - small > 0.9 * BYTES && rss->value - small < 1.5 * BYTES);
    assert_true(rss->value > 0.9 * rss_anon_of_status() && rss->value < 1.1 * rss_anon_of_status());
    assert_true(scalar_named(&after, "step_seconds")->value == 0.25);
    munmap(memory, BYTES);
    release(&keel_collector_system, &after);
}

static void test_program_has_the_first_word(void **state) {
    (void)state;
    sampled s = sample_once(&keel_collector_system);
    keel_frame_set_scalar(s.frame, 0, 3, 99);
    assert_true(keel_frame_scalars(s.frame)[0].value != 99);
    release(&keel_collector_system, &s);
}

static void test_template_collects(void **state) {
    (void)state;
    sampled s = sample_once(&keel_collector_template);
    const keel_scalar_value *seconds = scalar_named(&s, "cpu_seconds");
    assert_int_equal(seconds->owner, 3);
    assert_true(seconds->value >= 0 && seconds->value < 10);
    for (size_t i = 0; keel_collectors[i]; i++) assert_ptr_not_equal(keel_collectors[i], &keel_collector_template);
    release(&keel_collector_template, &s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_quantity_is_described),
        cmocka_unit_test(test_layout_and_phase_must_fit),
        cmocka_unit_test(test_sets_of_ops),
        cmocka_unit_test(test_ops_cost_only_their_groups),
        cmocka_unit_test(test_system_measures_memory),
        cmocka_unit_test(test_program_has_the_first_word),
        cmocka_unit_test(test_template_collects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
