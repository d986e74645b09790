// Healthy series of many kinds, of any length and scale: what the rules must keep still on.
#ifndef KEEL_TESTS_NOISE_RUNS_H
#define KEEL_TESTS_NOISE_RUNS_H

#include "tests/unit/analyzers/synthetic_run.h"

#include <stdio.h>

typedef struct noise {
    uint64_t seed;
    double walk;
} noise;

typedef double noise_kind(noise *n, uint64_t step);

static inline double white(noise *n, uint64_t step) {
    (void)step;
    return random_normal(&n->seed);
}
static inline double level_white(noise *n, uint64_t step) {
    (void)step;
    return 1 + 0.01 * random_normal(&n->seed);
}
static inline double log_normal_10(noise *n, uint64_t step) {
    (void)step;
    return exp(0.1 * random_normal(&n->seed));
}
static inline double log_normal_30(noise *n, uint64_t step) {
    (void)step;
    return exp(0.3 * random_normal(&n->seed));
}
static inline double student(noise *n, uint64_t step) {
    (void)step;
    return 1 + 0.01 * random_student5(&n->seed);
}
static inline double constant(noise *n, uint64_t step) {
    (void)n;
    (void)step;
    return 1;
}
static inline double zero(noise *n, uint64_t step) {
    (void)n;
    (void)step;
    return 0;
}
static inline double student_zero(noise *n, uint64_t step) {
    return student(n, step) - 1;
}
static inline double descent(noise *n, uint64_t step) {
    (void)n;
    return 1 + 10 / (1 + (double)step / 5000);
}
static inline double noisy_descent(noise *n, uint64_t step) {
    return descent(n, step) * (1 + 0.01 * random_normal(&n->seed));
}

static inline double walk_of(noise *n, double step, double bound) {
    if (n->walk == 0) n->walk = 1;
    n->walk += step * random_normal(&n->seed);
    if (n->walk > 1 + bound) n->walk = 2 * (1 + bound) - n->walk;
    if (n->walk < 1 - bound) n->walk = 2 * (1 - bound) - n->walk;
    return n->walk;
}
static inline double walk_slow(noise *n, uint64_t step) {
    (void)step;
    return walk_of(n, 0.0005, 0.1);
}
static inline double walk_wide(noise *n, uint64_t step) {
    (void)step;
    return walk_of(n, 0.001, 0.5);
}
static inline double walk_noisy(noise *n, uint64_t step) {
    (void)step;
    return walk_of(n, 0.003, 0.2) * (1 + 0.01 * random_normal(&n->seed));
}

#define SINE(name, amplitude, period, phase)                                                                           \
    static inline double name(noise *n, uint64_t step) {                                                               \
        (void)n;                                                                                                       \
        return 1 + (amplitude)*sin(6.283185307179586 * ((double)step / (period) + (phase)));                           \
    }
SINE(sine_short, 0.3, 50, 0)
SINE(sine_middle, 0.3, 777, 0)
SINE(sine_long, 0.5, 10007, 0.25)
SINE(sine_longer, 0.1, 50000, 0.75)
SINE(sine_deep, 0.9, 3000, 0.25)
SINE(sine_slow, 0.5, 100000, 0.25)
#undef SINE
static inline double sine_noisy(noise *n, uint64_t step) {
    return sine_middle(n, step) + 0.02 * random_normal(&n->seed);
}

static inline double sine_zero(noise *n, uint64_t step) {
    return sine_slow(n, step) - 1;
}
static inline double walk_zero(noise *n, uint64_t step) {
    return walk_slow(n, step) - 1;
}

static const struct {
    const char *name;
    noise_kind *next;
} noise_kinds[] = {
    {"white", white},
    {"level_white", level_white},
    {"log_normal_10", log_normal_10},
    {"log_normal_30", log_normal_30},
    {"student", student},
    {"constant", constant},
    {"zero", zero},
    {"student_zero", student_zero},
    {"sine_slow", sine_slow},
    {"sine_zero", sine_zero},
    {"walk_zero", walk_zero},
    {"descent", descent},
    {"noisy_descent", noisy_descent},
    {"walk_slow", walk_slow},
    {"walk_wide", walk_wide},
    {"walk_noisy", walk_noisy},
    {"sine_short", sine_short},
    {"sine_middle", sine_middle},
    {"sine_long", sine_long},
    {"sine_longer", sine_longer},
    {"sine_deep", sine_deep},
    {"sine_noisy", sine_noisy},
};

// Judges STEPS of each kind as loss and as gradient norm at SCALE: at most 1 warning per 100,000 steps (8 in a shorter
// run), no critical.
static inline void keep_still(uint64_t steps, double scale, uint64_t seed) {
    size_t bad = 0;
    for (size_t k = 0; k < sizeof noise_kinds / sizeof *noise_kinds; k++) {
        synthetic_run *run = malloc(sizeof *run);
        run_init(run);
        keel_analysis *analysis = analysis_of(run);
        noise loss = {.seed = seed + k}, norm = {.seed = seed + 1000 + k};
        for (uint64_t step = 1; step <= steps; step++) {
            run_step(run, step);
            run_set(run, LOSS, scale * noise_kinds[k].next(&loss, step));
            run_set(run, GRAD_NORM, scale * noise_kinds[k].next(&norm, step));
            run_set(run, LR, 1e-3);
            judge(analysis, run);
        }
        size_t warnings = count_at_least(analysis, KEEL_WARNING), criticals = count_at_least(analysis, KEEL_CRITICAL);
        size_t allowed = steps < 500000 ? 8 : steps / 100000; // a wave must be learnt
        if (warnings > allowed || criticals > 0) {
            print_message("%s x %g, seed %llu: %zu warnings, %zu criticals\n", noise_kinds[k].name, scale,
                          (unsigned long long)seed, warnings, criticals);
            bad++;
        }
        keel_analysis_close(analysis);
        free(run);
    }
    assert_int_equal(bad, 0);
}

#endif
