// The probe with a backend that keeps the frames: sites, schedules, micro-batches, blocks, scalars, replicas.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe/fp_guard.h"
#include "probe/keel.h"

// ---- a backend ----

enum { MOST_SITES = 4 };

typedef struct fake {
    keel_site_plan plans[MOST_SITES];
    keel_frame *frame;
    uint32_t micro_sites;
    bool out_of_frames;
    int begins, ends, polls, waits_begun, waits_ended;
    bool last_had_frame;
    keel_step last_step;
    keel_status start_status;
    bool sign;
} fake;

static keel_status fake_start(void *context, keel_probe *probe, keel_site_plan *plans) {
    fake *f = context;
    if (f->start_status) return keel_fail(f->start_status, "start refused");
    const uint32_t sites = keel_probe_site_count(probe);
    for (uint32_t i = 0; i < sites && i < MOST_SITES; i++) plans[i] = f->plans[i];
    for (uint32_t i = 0; i < MOST_SITES; i++) f->micro_sites += f->plans[i].fields && f->plans[i].per_micro;
    const uint32_t scalars = keel_probe_scalar_count(probe), micros = keel_probe_micro_count(probe);
    const size_t bytes = keel_frame_bytes(scalars, sites, micros, f->micro_sites);
    f->frame = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!f->frame) return keel_fail(KEEL_ERR_MEMORY, "no frame");
    keel_frame_init(f->frame, scalars, sites, micros, f->micro_sites);
    return KEEL_OK;
}

static keel_frame *fake_frame_begin(void *context, uint64_t step) {
    fake *f = context;
    (void)step;
    f->begins++;
    if (f->out_of_frames) return NULL;
    keel_frame_clear(f->frame);
    return f->frame;
}

static void fake_frame_end(void *context, keel_frame *frame, const keel_step *step) {
    fake *f = context;
    f->ends++;
    f->last_had_frame = frame != NULL;
    f->last_step = *step;
}

static void fake_poll(void *context) {
    ((fake *)context)->polls++;
}

static void fake_wait(void *context, bool begins) {
    fake *f = context;
    *(begins ? &f->waits_begun : &f->waits_ended) += 1;
}

static keel_health fake_health(void *context) {
    (void)context;
    return (keel_health){.judged_step = 5, .open_warnings = 2};
}

static keel_status fake_save(void *context, void **bytes, size_t *size) {
    (void)context;
    *bytes = malloc(3);
    if (!*bytes) return keel_fail(KEEL_ERR_MEMORY, "no state");
    memcpy(*bytes, "abc", 3);
    *size = 3;
    return KEEL_OK;
}

static keel_status fake_load(void *context, uint64_t step, const void *bytes, size_t size) {
    (void)context;
    if (step == 8 && size == 3 && memcmp(bytes, "abc", 3) == 0) return KEEL_OK;
    return keel_fail(KEEL_ERR_FORMAT, "no such state");
}

static keel_status fake_drain(void *context) {
    (void)context;
    return keel_fail(KEEL_ERR_COMM, "drain refused");
}

static keel_backend backend_of(fake *f) {
    return (keel_backend){
        .context = f,
        .sign = &f->sign,
        .start = fake_start,
        .frame_begin = fake_frame_begin,
        .frame_end = fake_frame_end,
        .poll = fake_poll,
        .wait = fake_wait,
        .health = fake_health,
        .drain = fake_drain,
        .save = fake_save,
        .load = fake_load,
    };
}

// ---- helpers ----

static keel_site_info info_of(const char *name, keel_quantity quantity) {
    keel_site_info info = {.quantity = quantity, .dtype = KEEL_F32, .layer = -1, .replica_count = 1};
    snprintf(info.name, sizeof info.name, "%s", name);
    return info;
}

static keel_site *add(keel_probe *probe, const char *name) {
    const keel_site_info info = info_of(name, KEEL_WEIGHT);
    keel_site *site = NULL;
    assert_int_equal(keel_site_add(probe, &info, &site), KEEL_OK);
    assert_non_null(site);
    return site;
}

static keel_probe *open_with(fake *f, uint32_t rank) {
    keel_probe *probe = NULL;
    assert_int_equal(keel_probe_open(rank, &probe), KEEL_OK);
    const keel_backend backend = backend_of(f);
    keel_probe_set_backend(probe, &backend);
    return probe;
}

static void close_all(keel_probe *probe, fake *f) {
    keel_probe_close(probe);
    free(f->frame);
}

static const keel_schedule always = {.start = 1, .every = 1};

// ---- registration ----

static void test_registration(void **state) {
    (void)state;
    keel_probe *probe = NULL;
    assert_int_equal(keel_probe_open(0, &probe), KEEL_OK);
    keel_site *first = add(probe, "a");
    keel_site_info info = info_of("a", KEEL_EXP_AVG); // the same name of another quantity
    info.id = 77;
    keel_site *second, *none = NULL;
    assert_int_equal(keel_site_add(probe, &info, &second), KEEL_OK);
    assert_int_equal(keel_site_get_info(second)->id, 1);
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    assert_null(none);
    assert_non_null(strstr(keel_error(), "a (exp_avg)"));

    info = info_of("", KEEL_WEIGHT);
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    info = info_of("b", KEEL_QUANTITY_COUNT);
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    info = info_of("b", KEEL_WEIGHT);
    memset(info.name, 'x', sizeof info.name);
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    info = info_of("b", KEEL_WEIGHT);
    info.layout = KEEL_LAYOUT_REPLICA;
    info.replica_index = 1; // of 1
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    info.layout = KEEL_LAYOUT_SHARD;
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    info.layout = KEEL_LAYOUT_WHOLE;
    info.replica_count = 2;
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    assert_non_null(strstr(keel_error(), "site b: held by one rank, and yet 2 copies"));
    assert_int_equal(keel_probe_site_count(probe), 2);

    // Ten thousand, quickly; the first keeps its address.
    for (int i = 0; i < 10000; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%d.weight", i);
        add(probe, name);
    }
    assert_string_equal(keel_site_get_info(first)->name, "a");
    assert_string_equal(keel_probe_site_info(probe, 9001)->name, "layers.8999.weight");
    assert_int_equal(keel_probe_site_info(probe, 9001)->id, 9001);

    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    info = info_of("late", KEEL_WEIGHT);
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    assert_int_equal(keel_probe_start(probe), KEEL_ERR_USAGE);
    keel_probe_close(probe);
    keel_probe_close(NULL);
}

static void test_sizes(void **state) {
    (void)state;
    keel_probe *probe = NULL;
    assert_int_equal(keel_probe_open(0, &probe), KEEL_OK);
    keel_site *site, *none = NULL;
    keel_site_info info = info_of("w", KEEL_WEIGHT);
    info.ndim = 3;
    info.shape[0] = 4, info.shape[1] = 5, info.shape[2] = 6, info.shape[3] = 99;
    assert_int_equal(keel_site_add(probe, &info, &site), KEEL_OK);
    assert_int_equal(keel_site_get_info(site)->numel, 120);
    info.quantity = KEEL_UPDATE;
    info.numel = 60;
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    assert_string_equal(keel_error(), "site w: numel is 60, and its shape has 120 elements");
    info.numel = 120;
    info.layout = KEEL_LAYOUT_SHARD; // a part of it; the shape is that of the whole
    assert_int_equal(keel_site_add(probe, &info, &site), KEEL_OK);
    assert_int_equal(keel_site_get_info(site)->numel, 120);
    info = info_of("huge", KEEL_WEIGHT);
    info.ndim = 2;
    info.shape[0] = info.shape[1] = UINT64_C(1) << 32;
    assert_int_equal(keel_site_add(probe, &info, &none), KEEL_ERR_USAGE);
    info = info_of("unknown shape", KEEL_WEIGHT);
    info.numel = 7;
    assert_int_equal(keel_site_add(probe, &info, &site), KEEL_OK);
    assert_int_equal(keel_site_get_info(site)->numel, 7);
    assert_null(none);
    keel_probe_close(probe);
}

static void test_scalars(void **state) {
    (void)state;
    fake f = {0};
    keel_probe *probe = open_with(&f, 6);
    uint32_t loss, worst, again;
    assert_int_equal(keel_scalar_add(probe, "loss", KEEL_SCALAR_FIRST, &loss), KEEL_OK);
    assert_int_equal(keel_scalar_add(probe, "loss_max", KEEL_SCALAR_MAX, &worst), KEEL_OK);
    assert_int_equal(keel_scalar_add(probe, "loss", KEEL_SCALAR_FIRST, &again), KEEL_OK);
    assert_int_equal(again, loss);
    assert_int_equal(keel_scalar_add(probe, "loss", KEEL_SCALAR_SUM, &again), KEEL_ERR_USAGE);
    assert_int_equal(keel_scalar_add(probe, "", KEEL_SCALAR_SUM, &again), KEEL_ERR_USAGE);
    assert_int_equal(keel_scalar_add(probe, "a name of thirty-two characters.", KEEL_SCALAR_SUM, &again),
                     KEEL_ERR_USAGE);
    assert_int_equal(keel_scalar_add(probe, "a name of thirty-one character.", KEEL_SCALAR_SUM, &again), KEEL_OK);
    assert_int_equal(keel_probe_scalar_count(probe), 3);
    assert_string_equal(keel_probe_scalar_name(probe, worst), "loss_max");
    assert_int_equal(keel_probe_scalar_merge(probe, worst), KEEL_SCALAR_MAX);

    keel_scalar_set(probe, loss, 1); // before the start and outside a step: nothing
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    keel_scalar_set(probe, loss, 1);
    keel_step_begin(probe, 1);
    keel_scalar_set(probe, worst, 2.5);
    const keel_step step = {.step = 1, .update = 1, .seconds = 0.5};
    keel_step_end(probe, &step);
    assert_int_equal(f.frame->step.update, 1);
    assert_int_equal(f.last_step.step, 1);
    assert_int_equal(keel_frame_scalars(f.frame)[loss].owner, KEEL_RANK_NONE);
    assert_int_equal(keel_frame_scalars(f.frame)[worst].owner, 6);
    assert_int_equal(keel_frame_scalars(f.frame)[worst].merge, KEEL_SCALAR_MAX);
    assert_true(keel_frame_scalars(f.frame)[worst].value == 2.5);
    close_all(probe, &f);
}

// ---- the step ----

static void test_schedule(void **state) {
    (void)state;
    fake f = {.plans = {{.fields = KEEL_FIELDS_ALL, .schedule = {.start = 3, .every = 2, .count = 2}, .eps = 1e-8},
                        {.fields = KEEL_FIELDS_BASE, .schedule = always, .eps = 1},
                        {.fields = 0, .schedule = always},
                        {.fields = KEEL_FIELDS_BASE, .schedule = {.start = 1, .every = 0}}}};
    keel_probe *probe = open_with(&f, 0);
    keel_site *site[4] = {add(probe, "a"), add(probe, "b"), add(probe, "off"), add(probe, "flags")};
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    const float x[] = {0.5f, 2, INFINITY};
    for (uint64_t t = 1; t <= 9; t++) {
        for (int i = 0; i < 4; i++) keel_observe(site[i], x, 3); // between steps: nothing is recorded
        keel_step_begin(probe, t);
        const bool due = t == 3 || t == 5;
        assert_int_equal(site[0]->active, due ? KEEL_FIELDS_ALL : KEEL_FIELDS_FLAGS);
        assert_int_equal(site[1]->active, KEEL_FIELDS_BASE);
        assert_int_equal(site[2]->active, 0);
        assert_int_equal(site[3]->active, KEEL_FIELDS_FLAGS);
        for (int i = 0; i < 4; i++) keel_observe(site[i], x, 3);
        keel_observe(site[1], x, 1); // another part of it
        const keel_step step = {.step = t};
        keel_step_end(probe, &step);
        const keel_stats *s = keel_frame_stats(f.frame);
        assert_int_equal(s[0].fields & KEEL_FIELDS_BASE, due ? KEEL_FIELDS_BASE : 0);
        assert_int_equal(s[0].pos_infs, 1);
        assert_int_equal(s[0].rank_nonfinite, 0);
        assert_int_equal(s[0].micro_nonfinite, 0);
        assert_int_equal(s[1].n, 4);
        assert_int_equal(s[1].near_zeros, 2);
        assert_true(s[1].norm_low == sqrt(4.5));
        assert_int_equal(s[2].fields, 0);
        assert_int_equal(s[2].n, 0);
        assert_int_equal(s[2].rank_parts, 0);
        assert_int_equal(s[3].pos_infs, 1);
        assert_int_equal(s[3].fields, KEEL_FIELDS_FLAGS);
    }
    assert_int_equal(f.begins, 9);
    assert_int_equal(f.ends, 9);
    close_all(probe, &f);
}

static void test_no_frame(void **state) {
    (void)state;
    fake f = {.plans = {{.fields = KEEL_FIELDS_BASE, .schedule = always}}};
    keel_probe *probe = open_with(&f, 0);
    keel_site *site = add(probe, "a");
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    const float x[] = {1};
    keel_block block;
    for (uint64_t t = 1; t <= 4; t++) {
        f.out_of_frames = t % 2 == 0;
        keel_step_begin(probe, t);
        assert_int_equal(site->active, f.out_of_frames ? 0 : KEEL_FIELDS_BASE);
        keel_observe(site, x, 1);
        keel_block_begin(&block, site);
        keel_block_add(&block, x, 1);
        keel_block_end(&block);
        const keel_step step = {.step = t};
        keel_step_end(probe, &step);
        assert_int_equal(f.last_had_frame, !f.out_of_frames);
        if (!f.out_of_frames) assert_int_equal(keel_frame_stats(f.frame)[0].n, 2);
    }
    close_all(probe, &f);
}

static void test_paused(void **state) {
    (void)state;
    fake f = {.plans = {{.fields = KEEL_FIELDS_BASE, .schedule = always}}};
    keel_probe *probe = open_with(&f, 0);
    keel_site *site = add(probe, "a");
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    const float x[] = {1};
    for (uint64_t t = 1; t <= 6; t++) {
        keel_probe_set_paused(probe, t % 3 == 0);
        keel_step_begin(probe, t);
        assert_int_equal(site->active, t % 3 == 0 ? 0 : KEEL_FIELDS_BASE);
        keel_observe(site, x, 1);
        const keel_step step = {.step = t};
        keel_step_end(probe, &step);
    }
    assert_int_equal(f.begins, 4);
    assert_int_equal(f.ends, 4);
    close_all(probe, &f);
}

static void test_without_backend(void **state) {
    (void)state;
    keel_probe *probe = NULL;
    assert_int_equal(keel_probe_open(0, &probe), KEEL_OK);
    keel_site *site = add(probe, "a");
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    const float x[] = {1};
    keel_step_begin(probe, 1);
    assert_int_equal(site->active, 0);
    keel_observe(site, x, 1);
    keel_observe_active(site, x, 1);
    keel_poll(probe);
    keel_wait_begin(probe);
    keel_wait_end(probe);
    keel_scalar_set(probe, 0, 1);
    const keel_step step = {.step = 1};
    keel_step_end(probe, &step);
    assert_int_equal(keel_probe_health(probe).judged_step, 0);
    assert_int_equal(keel_probe_drain(probe), KEEL_OK);
    void *bytes = &bytes;
    size_t size = 1;
    assert_int_equal(keel_probe_save(probe, &bytes, &size), KEEL_OK);
    assert_true(bytes == NULL && size == 0);
    assert_int_equal(keel_probe_load(probe, 1, NULL, 0), KEEL_OK);
    keel_probe_close(probe);
}

static void assert_nothing_is_asked(keel_probe *probe, const fake *f) {
    keel_poll(probe);
    keel_wait_begin(probe);
    keel_wait_end(probe);
    keel_step_begin(probe, 1);
    keel_step_end(probe, &(keel_step){.step = 1});
    assert_int_equal(keel_probe_health(probe).judged_step, 0);
    assert_int_equal(keel_probe_drain(probe), KEEL_OK);
    void *bytes = &bytes;
    size_t size = 1;
    assert_int_equal(keel_probe_save(probe, &bytes, &size), KEEL_OK);
    assert_true(bytes == NULL && size == 0);
    assert_int_equal(f->polls + f->waits_begun + f->waits_ended + f->begins + f->ends, 0);
}

static void test_a_backend_that_has_not_started_is_asked_nothing(void **state) {
    (void)state;
    fake f = {.start_status = KEEL_ERR_CONFIG};
    keel_probe *probe = open_with(&f, 0);
    assert_nothing_is_asked(probe, &f);
    assert_int_equal(keel_probe_load(probe, 8, "abc", 3), KEEL_ERR_USAGE);
    assert_int_equal(keel_probe_start(probe), KEEL_ERR_CONFIG);
    assert_nothing_is_asked(probe, &f); // the program goes on without a monitor
    assert_int_equal(keel_probe_load(probe, 8, "abc", 3), KEEL_OK);
    assert_int_equal(keel_probe_start(probe), KEEL_ERR_USAGE);
    close_all(probe, &f);
}

static void test_signs_of_life(void **state) {
    (void)state;
    fake f = {.plans = {{.fields = KEEL_FIELDS_BASE, .schedule = always}, {.fields = 0}}};
    keel_probe *probe = open_with(&f, 0);
    keel_site *site = add(probe, "a"), *off = add(probe, "off");
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    const float x[] = {1};
    keel_block block;
    keel_observe(site, x, 1); // between two steps
    keel_step_begin(probe, 1);
    keel_observe(off, x, 1);
    assert_false(f.sign);
    keel_observe(site, x, 1);
    assert_true(f.sign);
    f.sign = false;
    keel_block_begin(&block, site);
    keel_block_add(&block, x, 1);
    keel_block_end(&block);
    assert_true(f.sign);
    f.sign = false;
    keel_micro_begin(probe, 1);
    assert_true(f.sign);
    close_all(probe, &f);
}

// Traps that the program has set would end it, other modes change what is counted: also where a step ends.
static void test_the_programs_floating_point_modes_do_not_matter(void **state) {
    (void)state;
    fake f = {.plans = {{.fields = KEEL_FIELDS_ALL, .schedule = always, .eps = 1e-40},
                        {.fields = KEEL_FIELDS_BASE, .schedule = always, .eps = 1e-8}}};
    keel_probe *probe = open_with(&f, 0);
    keel_site *small = add(probe, "small");
    keel_site_info info = info_of("great", KEEL_WEIGHT);
    info.dtype = KEEL_F64;
    keel_site *great;
    assert_int_equal(keel_site_add(probe, &info, &great), KEEL_OK);
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    const float x[] = {1e-41f, 1e-39f, 1e-42f, 1, 0, 2, 3, 4};
    const double y[] = {DBL_MAX, DBL_MAX};
    keel_step_begin(probe, 1);
    const unsigned daz = 0x40, before = _mm_getcsr();
    feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW);
    _mm_setcsr(_mm_getcsr() | daz | _MM_FLUSH_ZERO_ON | _MM_ROUND_UP);
    const unsigned set = _mm_getcsr();
    keel_observe(small, x, 8);
    keel_block block;
    keel_block_begin(&block, great);
    for (int i = 0; i < 2; i++) keel_block_add(&block, &y[i], 1);
    keel_block_end(&block);
    keel_step_end(probe, &(keel_step){.step = 1}); // the norm of GREAT is not finite
    assert_int_equal(_mm_getcsr(), set);
    fesetenv(FE_DFL_ENV);
    _mm_setcsr(before);
    const keel_stats *s = keel_frame_stats(f.frame);
    assert_int_equal(s[0].near_zeros, 3);
    assert_int_equal(s[0].subnormals, 3);
    assert_true(s[0].abs_min == (double)1e-42f);
    assert_true(isinf(s[1].norm_high));
    close_all(probe, &f);
}

static void test_a_block_that_outlives_its_step_is_dropped(void **state) {
    (void)state;
    fake f = {.plans = {{.fields = KEEL_FIELDS_BASE, .schedule = always, .per_micro = true}}};
    keel_probe *probe = open_with(&f, 0);
    keel_site *site = add(probe, "a");
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    const float x[] = {1};
    keel_block blocks[2];
    keel_step_begin(probe, 1);
    for (int i = 0; i < 2; i++) {
        keel_block_begin(&blocks[i], site);
        keel_block_add(&blocks[i], x, 1);
    }
    keel_step_end(probe, &(keel_step){.step = 1});
    keel_block_end(&blocks[0]);
    keel_step_begin(probe, 2);
    keel_block_end(&blocks[1]);
    keel_observe(site, x, 1);
    keel_step_end(probe, &(keel_step){.step = 2});
    assert_int_equal(keel_frame_stats(f.frame)[0].n, 1);
    close_all(probe, &f);
}

static void test_micro_records(void **state) {
    (void)state;
    fake f = {.plans = {{.fields = KEEL_FIELDS_BASE, .schedule = always},
                        {.fields = KEEL_FIELDS_ALL, .schedule = always, .per_micro = true},
                        {.fields = 0, .per_micro = true},
                        {.fields = KEEL_FIELDS_BASE, .schedule = always, .per_micro = true}}};
    keel_probe *probe = open_with(&f, 1);
    keel_site *plain = add(probe, "plain"), *micro = add(probe, "micro");
    add(probe, "off");
    keel_site *blocks = add(probe, "blocks");
    keel_probe_set_micro_count(probe, 3);
    assert_int_equal(keel_probe_start(probe), KEEL_OK);

    keel_step_begin(probe, 1);
    for (uint32_t m = 0; m < 4; m++) { // one more than the frame holds: counted in the step alone
        keel_micro_begin(probe, m);
        const float x[] = {(float)m + 1, m >= 1 ? NAN : 1};
        keel_observe(plain, x, 2);
        keel_observe(micro, x, 1);
        keel_observe(micro, x, 2);
        keel_block block;
        keel_block_begin(&block, blocks);
        keel_block_add(&block, x, 1);
        keel_block_add(&block, x, 2);
        keel_block_end(&block);
    }
    const keel_step step = {.step = 1};
    keel_step_end(probe, &step);
    const keel_stats *s = keel_frame_stats(f.frame);
    assert_int_equal(s[0].n, 8);
    assert_int_equal(s[0].micro_nonfinite, 1);
    for (uint32_t id = 1; id <= 3; id += 2) {
        assert_int_equal(s[id].n, 12);
        assert_int_equal(s[id].nans, 3);
        assert_int_equal(s[id].micro_nonfinite, 1);
        assert_true(s[id].max == 4);
        for (uint32_t m = 0; m < 3; m++) {
            const keel_stats *part = keel_frame_micro(f.frame, m, id / 2);
            assert_int_equal(part->n, 3);
            assert_true(part->max == (double)m + 1);
            assert_int_equal(part->micro_nonfinite, m >= 1 ? m : KEEL_RANK_NONE);
            assert_int_equal(part->rank_nonfinite, m >= 1 ? 1 : KEEL_RANK_NONE); // sealed
        }
    }
    close_all(probe, &f);
}

// The same tensor at once, in parts, and in blocks of two threads.
static void test_blocks(void **state) {
    (void)state;
    enum { N = 5000 };
    fake f = {.plans = {{.fields = KEEL_FIELDS_ALL, .schedule = always, .eps = 1e-8},
                        {.fields = KEEL_FIELDS_ALL, .schedule = always, .eps = 1e-8}}};
    keel_probe *probe = open_with(&f, 0);
    keel_site *whole = add(probe, "whole"), *parts = add(probe, "parts");
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    keel_site_set_scale(whole, 1024);
    keel_site_set_scale(parts, 1024);
    float x[N];
    const int middle = N / 2;
    for (int i = 0; i < N; i++) x[i] = 1e-12f * (float)(i * 7919 % N - middle);
    keel_step_begin(probe, 1);
    keel_observe(whole, x, N);
    keel_block block[2];
    for (int t = 0; t < 2; t++) {
        keel_block_begin(&block[t], parts);
        for (int i = t * N / 2; i < (t + 1) * N / 2; i += 125) keel_block_add(&block[t], x + i, 125);
    }
    for (int t = 0; t < 2; t++) keel_block_end(&block[t]);
    const keel_step step = {.step = 1};
    keel_step_end(probe, &step);
    const keel_stats *a = &keel_frame_stats(f.frame)[0], *b = &keel_frame_stats(f.frame)[1];
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->checksum, b->checksum);
    assert_int_equal(a->near_zeros, b->near_zeros);
    assert_int_equal(a->fp16_flush, b->fp16_flush);
    assert_int_equal(a->fp16_flush, 58); // |k| * 1e-12 * 1024 <= 2^-25, not 0
    assert_true(a->max == b->max && a->min == b->min);
    assert_true(fabs(a->sum_sq - b->sum_sq) <= 1e-6 * a->sum_sq);
    close_all(probe, &f);
}

// Two ranks with copies of a tensor.
static void test_replicas(void **state) {
    (void)state;
    for (int differ = 0; differ < 2; differ++) {
        fake f[2] = {{.plans = {{.fields = KEEL_FIELDS_BASE | KEEL_FIELDS_CHECKSUM, .schedule = always}}},
                     {.plans = {{.fields = KEEL_FIELDS_BASE | KEEL_FIELDS_CHECKSUM, .schedule = always}}}};
        keel_probe *probe[2];
        for (uint32_t r = 0; r < 2; r++) {
            probe[r] = open_with(&f[r], r);
            keel_site_info info = info_of("w", KEEL_WEIGHT);
            info.layout = KEEL_LAYOUT_REPLICA;
            info.replica_index = r;
            info.replica_count = 2;
            keel_site *site;
            assert_int_equal(keel_site_add(probe[r], &info, &site), KEEL_OK);
            assert_int_equal(keel_probe_start(probe[r]), KEEL_OK);
            const float x[] = {1, 2, r == 1 && differ ? 3.0000002f : 3};
            keel_step_begin(probe[r], 1);
            keel_observe(site, x, 3);
            const keel_step step = {.step = 1};
            keel_step_end(probe[r], &step);
        }
        keel_frame_merge(f[0].frame, f[1].frame);
        const keel_stats *s = keel_frame_stats(f[0].frame);
        assert_int_equal(s->n, 3);
        assert_true(s->sum == 6);
        assert_int_equal(s->rank_parts, 2);
        if (differ)
            assert_int_not_equal(s->replica_residual, 0);
        else
            assert_int_equal(s->replica_residual, 0);
        close_all(probe[0], &f[0]);
        close_all(probe[1], &f[1]);
    }
}

static void test_pass_through(void **state) {
    (void)state;
    fake f = {0};
    keel_probe *probe = open_with(&f, 0);
    assert_int_equal(keel_probe_start(probe), KEEL_OK);
    keel_poll(probe);
    assert_int_equal(f.polls, 1);
    keel_wait_begin(probe);
    assert_int_equal(f.waits_begun, 1);
    assert_int_equal(f.waits_ended, 0);
    keel_wait_end(probe);
    assert_int_equal(f.waits_ended, 1);
    assert_int_equal(keel_probe_health(probe).open_warnings, 2);
    assert_int_equal(keel_probe_drain(probe), KEEL_ERR_COMM);
    void *bytes;
    size_t size;
    assert_int_equal(keel_probe_save(probe, &bytes, &size), KEEL_OK);
    assert_int_equal(keel_probe_load(probe, 8, bytes, size), KEEL_OK);
    assert_int_equal(keel_probe_load(probe, 9, bytes, size), KEEL_ERR_FORMAT);
    free(bytes);
    close_all(probe, &f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registration),
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_no_frame),
        cmocka_unit_test(test_without_backend),
        cmocka_unit_test(test_paused),
        cmocka_unit_test(test_micro_records),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_pass_through),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_signs_of_life),
        cmocka_unit_test(test_a_backend_that_has_not_started_is_asked_nothing),
        cmocka_unit_test(test_the_programs_floating_point_modes_do_not_matter),
        cmocka_unit_test(test_a_block_that_outlives_its_step_is_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
