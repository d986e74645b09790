// A run in the making, a step at a time, for the tests of rules.
#ifndef KEEL_TESTS_RULE_SCENE_H
#define KEEL_TESTS_RULE_SCENE_H

#include "tests/unit/analyzers/synthetic_run.h"

typedef struct scene {
    synthetic_run run;
    keel_analysis *analysis;
    uint64_t seed;
    uint64_t step; // the last one
} scene;

static inline scene *begin(void) {
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    run_init(&s->run);
    s->analysis = analysis_of(&s->run);
    s->seed = 4711;
    return s;
}

static inline void end(scene *s) {
    keel_analysis_close(s->analysis);
    free(s);
}

// One healthy step, to be changed and then judged.
static inline void next(scene *s, double loss, double norm) {
    run_step(&s->run, ++s->step);
    run_set(&s->run, LOSS, loss * (1 + 0.005 * random_normal(&s->seed)));
    run_set(&s->run, GRAD_NORM, norm * exp(0.08 * random_normal(&s->seed)));
    run_set(&s->run, LR, 1e-3);
}

static inline void quiet(scene *s, uint64_t steps, double loss, double norm) {
    for (uint64_t i = 0; i < steps; i++) {
        next(s, loss, norm);
        judge(s->analysis, &s->run);
    }
}

static inline void step_with(scene *s, double loss, double norm) {
    run_step(&s->run, ++s->step);
    run_set(&s->run, LOSS, loss);
    run_set(&s->run, GRAD_NORM, norm);
    run_set(&s->run, LR, 1e-3);
    judge(s->analysis, &s->run);
}

static inline const keel_incident *only(scene *s, keel_severity at_least) {
    assert_int_equal(count_at_least(s->analysis, at_least), 1);
    return find_incident(s->analysis, at_least, "", 0, UINT64_MAX);
}

#endif
