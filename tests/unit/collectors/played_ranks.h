// The other ranks of a monitor, played by a table of functions.
#ifndef KEEL_TESTS_PLAYED_RANKS_H
#define KEEL_TESTS_PLAYED_RANKS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "collectors/helper_thread.h"
#include "tests/unit/collectors/captured_log.h"
#include "tests/unit/collectors/monitor_rig.h"

enum { ORDERS_MAX = 256 };

typedef struct played {
    keel_merge table;
    atomic_bool stuck;          // no operation ends any more
    atomic_bool stuck_reducing; // no reduction does
    atomic_bool stuck_gathering;
    atomic_uint tests_each; // how many looks an operation takes
    keel_status fails;      // what the next reduction answers
    keel_frame *other;      // of rank 1, for rank 0: joins every reduction
    bool agreed, compares;
    keel_copy copies[2], asked; // of both ranks; rank 1's is made up
    keel_copy **gathered;
    atomic_uint gathers;
    // Of rank 0: what it announced. Of others: what they are told, as far as GIVEN.
    keel_merge_order orders[ORDERS_MAX];
    atomic_uint given;
    atomic_uint taken; // by others
    keel_merge_order *waiting;
    uint32_t looks;
    bool busy;
    keel_step reduced[ORDERS_MAX];  // headers as this rank gave them
    uint64_t reduced_n[ORDERS_MAX]; // values of RIG_WEIGHT in them
    atomic_uint reductions, announcements;
    bool closed, closed_abandoned;
} played;

static inline keel_status play_agree(void *context, const keel_rank_table *table, keel_whole_table *whole) {
    played *p = context;
    p->agreed = table != NULL;
    if (!table) return KEEL_ERR_COMM;
    const keel_status status = p->table.rank == 0 ? keel_whole_table_open(table, &(uint32_t){0}, 1, whole) : KEEL_OK;
    whole->compares = p->compares;
    return status;
}

static inline keel_status play_confirm(void *context, bool ready) {
    (void)context;
    return ready ? KEEL_OK : KEEL_ERR_COMM;
}

static inline void begin_operation(played *p) {
    assert_false(p->busy); // one at a time
    p->busy = true;
    p->looks = 0;
}

static inline keel_status play_announce(void *context, keel_merge_order *order) {
    played *p = context;
    begin_operation(p);
    p->announcements++;
    p->waiting = order;
    if (p->table.rank == 0) {
        assert_true(p->given < ORDERS_MAX);
        p->orders[p->given] = *order;
        p->given++;
    }
    return KEEL_OK;
}

static inline keel_status play_reduce(void *context, keel_frame *frame, keel_frame *whole) {
    played *p = context;
    begin_operation(p);
    assert_null(whole);
    p->reduced[p->reductions] = frame->step;
    p->reduced_n[p->reductions] = keel_frame_stats(frame)[RIG_WEIGHT].n;
    p->reductions++;
    if (p->fails) return keel_fail(p->fails, "the network is gone");
    if (p->table.rank == 0 && p->other) {
        p->other->step.step = 999; // rank 0 must find its own again
        keel_frame_merge(frame, p->other);
        frame->step.step = 999;
    }
    return KEEL_OK;
}

static inline keel_status play_gather(void *context, const keel_copy *mine, keel_copy **all) {
    played *p = context;
    begin_operation(p);
    p->gathers++;
    p->asked = *mine;
    p->copies[0] = *mine;
    p->copies[1] = (keel_copy){.print = ~mine->print, .rank = 1, .replica_index = 1, .held = true};
    p->gathered = all;
    return KEEL_OK;
}

static inline keel_status play_test(void *context, bool *done) {
    played *p = context;
    *done = !p->stuck && !(p->stuck_reducing && !p->waiting) && !(p->stuck_gathering && p->gathered) &&
            ++p->looks > p->tests_each;
    if (*done && p->waiting && p->table.rank != 0) {
        *done = p->taken < p->given;
        if (*done) *p->waiting = p->orders[p->taken++];
    }
    if (!*done) return KEEL_OK;
    if (p->gathered) *p->gathered = p->copies;
    p->gathered = NULL;
    p->waiting = NULL;
    p->busy = false;
    return KEEL_OK;
}

static inline void play_close(void *context, bool abandoned) {
    played *p = context;
    p->closed = true;
    p->closed_abandoned = abandoned;
}

static inline void play(played *p, uint32_t rank, bool threaded) {
    *p = (played){.tests_each = 1};
    p->table = (keel_merge){.context = p,
                            .rank = rank,
                            .size = 2,
                            .threaded = threaded,
                            .agree = play_agree,
                            .confirm = play_confirm,
                            .announce = play_announce,
                            .reduce = play_reduce,
                            .gather = play_gather,
                            .test = play_test,
                            .close = play_close};
}

static inline void tell(played *p, keel_merge_action action, uint64_t sequence) {
    p->orders[p->given] = (keel_merge_order){action, sequence, sequence};
    p->given++;
}

static const char usual[] = "{queue_depth: 2, select: [{ops: [max, zeros, replica_residual]}]}";
enum { FRAMES = 2 + 3 };

// A rank with the usual monitor, started.
static inline void begin(played *p, rig *r, uint32_t rank, bool threaded) {
    play(p, rank, threaded);
    rig_open(r, &p->table, usual);
    rig_start(r);
}

// Step NUMBER, until it is merged, or given up.
static inline void step_and_drain(rig *r, uint64_t number) {
    rig_step(r, number);
    assert_int_equal(keel_probe_drain(r->probe), KEEL_OK);
}

// Lets a rank that is not driven by a thread get on.
static inline void poll_often(rig *r) {
    for (int i = 0; i < 200; i++) keel_poll(r->probe);
}

static inline void wait_for(atomic_uint *counter, uint32_t value) {
    for (int i = 0; i < 5000 && *counter < value; i++) keel_nap(1000000);
    assert_true(*counter >= value);
}

// What rank 1 would send: a frame shaped as rank 0's.
static inline keel_frame *frame_of_rank_1(double value, bool replica_differs) {
    rig r;
    played p;
    play(&p, 1, false);
    rig_open(&r, &p.table, usual);
    const uint32_t scalars = keel_probe_scalar_count(r.probe);
    keel_frame *frame = keel_frame_init(malloc(keel_frame_bytes(scalars, RIG_SITES, 1, 0)), scalars, RIG_SITES, 1, 0);
    for (uint32_t i = 0; i < scalars; i++)
        keel_frame_scalars(frame)[i].merge = (uint32_t)keel_probe_scalar_merge(r.probe, i);
    const keel_stats_params params = {.fields = KEEL_FIELDS_ALL, .scale = 1};
    for (uint32_t s = 0; s < RIG_SITES; s++) {
        const float values[2] = {(float)value + (s == RIG_REPLICA && replica_differs ? 1 : 0), 0};
        keel_stats *stats = &keel_frame_stats(frame)[s];
        keel_stats_observe(stats, &params, KEEL_F32, values, s == RIG_OUT ? 2 : 1);
        const keel_site_info *info = keel_site_get_info(r.sites[s]);
        keel_stats_seal_rank(stats, 1, info->replica_index, info->replica_count);
    }
    keel_frame_scalars(frame)[r.loss] = (keel_scalar_value){.value = 77, .owner = 1, .merge = KEEL_SCALAR_MAX};
    tell(&p, KEEL_MERGE_CLOSE, 0);
    assert_int_equal(rig_close(&r), KEEL_OK);
    return frame;
}

#endif
