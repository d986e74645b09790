#include "collectors/merge_stage.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "collectors/helper_thread.h"

enum {
    NAP_NS = 200000,       // a thread that spins or blocks in MPI takes a core from training
    LONG_NAP_NS = 1000000, // once an operation takes long
    SHORT_NAPS = 50,
    TESTS_PER_LOOK = 16, // a large frame goes in many pieces, and a test moves a few
};

typedef enum phase { IDLE, ANNOUNCING, AWAITING_STEP, REDUCING, COLLECTING, JUDGING, ASKING, CLOSED, ABANDONED } phase;

struct keel_merge_stage {
    const keel_merge *merge; // NULL: one process
    const keel_whole_table *table;
    keel_copies *copies;
    const keel_rank_series_table *ranks;
    keel_frame_pool *pool;
    keel_recorder *recorder;
    double timeout;
    bool leads, threaded;

    pthread_t thread;
    sem_t wake;
    _Atomic uint64_t ended; // steps submitted; stored after the step's slot is in its ring
    atomic_bool closing, alone, abandoned;

    // Of whoever drives: the merge thread, else the training thread.
    phase phase;
    keel_merge_order order;
    keel_slot *slot;            // being reduced; NULL: the pool's empty frame is
    bool widens;                // its frame gets those of other tables beside its own
    keel_merge_order judgement; // of the copies of the step that was reduced
    uint32_t differing;         // rank 0: the site that is asked for
    keel_copy *answers;         // rank 0: one a rank
    keel_step identity;         // of the slot's step, as this rank knows it
    uint64_t over;              // every step end up to this one is merged, skipped or given up
    uint64_t missing;
    double elapsed, last_look; // of the present operation, seconds
    uint32_t looks;

    pthread_mutex_t mutex;
    pthread_cond_t moved;
    uint64_t settled; // = over, for the training thread; under the mutex
};

static void settle(keel_merge_stage *stage, uint64_t sequence) {
    stage->over = sequence;
    pthread_mutex_lock(&stage->mutex);
    stage->settled = sequence;
    pthread_cond_signal(&stage->moved);
    pthread_mutex_unlock(&stage->mutex);
}

static void hand_on(keel_merge_stage *stage, keel_slot *slot, bool record) {
    slot->record = record;
    keel_recorder_put(stage->recorder, slot);
}

// Gives back the frames of steps up to SEQUENCE, unrecorded.
static void discard_through(keel_merge_stage *stage, uint64_t sequence) {
    for (keel_slot *slot; (slot = keel_ring_peek(&stage->pool->ended)) && slot->sequence <= sequence;)
        hand_on(stage, keel_ring_take(&stage->pool->ended), false);
}

static void finish_step(keel_merge_stage *stage) {
    if (stage->slot) hand_on(stage, stage->slot, stage->leads);
    stage->slot = NULL;
    stage->phase = IDLE;
    settle(stage, stage->order.sequence);
}

static void abandon(keel_merge_stage *stage, const char *why) {
    const bool merged = stage->phase == JUDGING || stage->phase == ASKING;
    const bool between = merged || (stage->phase == ANNOUNCING && !stage->leads);
    keel_log(KEEL_LOG_ERROR,
             "the merge over ranks is abandoned %s step %" PRIu64
             ": %s; from here on %s; the process must end by _exit",
             between ? "after" : "at", stage->order.step, why,
             stage->leads ? "only what rank 0 itself observes is recorded, marked as incomplete"
                          : "nothing of this rank is recorded");
    if (merged) finish_step(stage); // whoever waits for it finds the message said
    stage->phase = ABANDONED;       // a frame in flight is left where it is: the library may still write to it
    atomic_store(&stage->abandoned, true);
}

static void begin(keel_merge_stage *stage, phase next, keel_status status) {
    if (status) {
        abandon(stage, keel_error());
        return;
    }
    stage->phase = next;
    stage->elapsed = 0;
    stage->looks = 0;
    stage->last_look = keel_seconds_now();
}

// Starts the next announcement, or ends; false if there is no reason for either.
static bool announce(keel_merge_stage *stage) {
    // In this order: what was submitted before closing, and the slot of a step that has ended, are seen below.
    const bool closing = atomic_load(&stage->closing);
    const uint64_t ended = atomic_load(&stage->ended);
    if (closing && atomic_load(&stage->alone)) {
        stage->phase = CLOSED;
        return true;
    }
    if (stage->leads) {
        const keel_slot *slot = keel_ring_peek(&stage->pool->ended);
        if (slot)
            stage->order = (keel_merge_order){KEEL_MERGE_STEP, slot->sequence, slot->frame->step.step};
        else if (ended > stage->over)
            stage->order = (keel_merge_order){.action = KEEL_MERGE_SKIP, .sequence = ended};
        else if (closing)
            stage->order = (keel_merge_order){.action = KEEL_MERGE_CLOSE, .sequence = ended};
        else
            return false;
    } else {
        discard_through(stage, stage->over);
        if (ended <= stage->over && !closing) return false;
    }
    begin(stage, ANNOUNCING, stage->merge->announce(stage->merge->context, &stage->order));
    return true;
}

static void say_missing(keel_merge_stage *stage, const char *why) {
    if (stage->missing++) return;
    keel_log(KEEL_LOG_WARNING,
             "step %" PRIu64
             ": this rank's values are missing from the merge (%s); the step is marked, and so are others like it",
             stage->order.step, why);
}

// Starts the reduction of the step that was announced; false while this rank has not come to its end.
static bool reduce(keel_merge_stage *stage) {
    const uint64_t sequence = stage->order.sequence;
    const bool closing = atomic_load(&stage->closing);
    const bool ended = atomic_load(&stage->ended) >= sequence;
    discard_through(stage, sequence - 1); // of a rank that is behind
    keel_slot *slot = keel_ring_peek(&stage->pool->ended);
    if (slot && slot->sequence == sequence) {
        keel_ring_take(&stage->pool->ended);
        if (slot->frame->step.step != stage->order.step) {
            say_missing(stage, "it counts its steps otherwise than rank 0");
            hand_on(stage, slot, false);
            slot = NULL;
        }
    } else if (ended || closing) {
        say_missing(stage, ended ? "no frame was free" : "it stopped before that step ended");
        slot = NULL;
    } else {
        return false;
    }
    stage->slot = slot;
    keel_frame *frame = slot ? slot->frame : stage->pool->empty;
    if (!slot) {
        keel_frame_clear(frame); // the lowest rank of a group finds the group's values in it
        frame->step = (keel_step){.step = stage->order.step, .flags = KEEL_STEP_DROPPED};
    }
    stage->identity = frame->step;
    if (stage->table->compares) keel_copies_note(stage->copies, slot ? frame : NULL);
    keel_frame *whole = stage->leads ? keel_frame_pool_whole(stage->pool) : NULL;
    stage->widens = whole;
    begin(stage, REDUCING, stage->merge->reduce(stage->merge->context, frame, whole));
    return true;
}

static void finish_announcement(keel_merge_stage *stage) {
    switch ((keel_merge_action)stage->order.action) {
    case KEEL_MERGE_STEP:
        stage->phase = AWAITING_STEP;
        discard_through(stage, stage->order.sequence - 1);
        settle(stage, stage->order.sequence - 1);
        break;
    case KEEL_MERGE_SKIP:
        discard_through(stage, stage->order.sequence);
        stage->phase = IDLE;
        settle(stage, stage->order.sequence);
        break;
    case KEEL_MERGE_CLOSE:
        discard_through(stage, UINT64_MAX);
        stage->phase = CLOSED;
        settle(stage, UINT64_MAX);
        break;
    case KEEL_MERGE_AGREED:
    case KEEL_MERGE_ASK:
        abandon(stage, "rank 0 spoke of replicas where a step was due");
        break;
    }
}

// Whether the copies agree: rank 0's word, which the others get. A step that a rank could not give is not judged.
static void judge(keel_merge_stage *stage) {
    keel_merge_order *judgement = &stage->judgement;
    *judgement = (keel_merge_order){.action = KEEL_MERGE_AGREED, .step = stage->order.step};
    if (stage->leads && !(stage->slot->frame->step.flags & KEEL_STEP_DROPPED) &&
        keel_copies_choose(&stage->table->table, stage->slot->frame, &stage->differing)) {
        judgement->action = KEEL_MERGE_ASK;
        judgement->sequence = keel_site_hash(&stage->table->table.sites[stage->differing]);
    }
    stage->phase = JUDGING; // the frame is merged, whatever comes
    begin(stage, JUDGING, stage->merge->announce(stage->merge->context, judgement));
}

static void finish_values(keel_merge_stage *stage) {
    if (stage->table->compares)
        judge(stage);
    else
        finish_step(stage);
}

static void finish_reduction(keel_merge_stage *stage) {
    if (stage->slot && stage->widens) keel_frame_pool_take_whole(stage->pool, stage->slot);
    if (stage->slot && stage->leads) { // which rank's header the merge has kept is open
        keel_step *step = &stage->slot->frame->step;
        const uint32_t flags = step->flags;
        const double seconds = step->seconds;
        *step = stage->identity;
        step->flags = flags;
        step->seconds = seconds;
    }
    const keel_rank_series_table *ranks = stage->ranks;
    if (ranks->part_count > 0)
        begin(stage, COLLECTING,
              stage->merge->collect(stage->merge->context, stage->slot ? stage->slot->values : stage->pool->no_values,
                                    ranks->parts, ranks->part_count));
    else
        finish_values(stage);
}

static void finish_judgement(keel_merge_stage *stage) {
    if (stage->judgement.action != KEEL_MERGE_ASK) {
        finish_step(stage);
        return;
    }
    const keel_copy mine = keel_copies_answer(stage->copies, stage->judgement.sequence, stage->merge->rank);
    begin(stage, ASKING, stage->merge->gather(stage->merge->context, &mine, &stage->answers));
}

static void finish_answers(keel_merge_stage *stage) {
    if (stage->leads) {
        keel_stats *stats = &keel_frame_stats(stage->slot->frame)[stage->differing];
        uint32_t rank, peer;
        if (keel_copies_vote(stage->answers, stage->merge->size,
                             stage->table->table.sites[stage->differing].replica_count, &rank, &peer)) {
            stats->replica_rank = rank;
            stats->replica_peer = peer;
        }
    }
    finish_step(stage);
}

static void finish_operation(keel_merge_stage *stage) {
    switch (stage->phase) {
    case ANNOUNCING:
        finish_announcement(stage);
        break;
    case REDUCING:
        finish_reduction(stage);
        break;
    case COLLECTING:
        finish_values(stage);
        break;
    case JUDGING:
        finish_judgement(stage);
        break;
    case ASKING:
        finish_answers(stage);
        break;
    case IDLE:
    case AWAITING_STEP:
    case CLOSED:
    case ABANDONED:
        break; // nothing is in flight
    }
}

// Looks after the operation in flight; true while it goes on.
static bool in_flight(keel_merge_stage *stage) {
    bool done = false;
    keel_status status = KEEL_OK;
    for (int i = 0; i < TESTS_PER_LOOK && !done && !status; i++)
        status = stage->merge->test(stage->merge->context, &done);
    if (status) {
        abandon(stage, keel_error());
        return false;
    }
    if (done) {
        finish_operation(stage);
        return false;
    }
    // A process that was stopped for long finds much time gone at its first look, and must look again before it gives
    // up.
    const double now = keel_seconds_now(), most = stage->timeout / 10, passed = now - stage->last_look;
    stage->elapsed += passed < most ? passed : most;
    stage->last_look = now;
    stage->looks++;
    if (stage->elapsed < stage->timeout) return true;
    char why[96];
    snprintf(why, sizeof why, "not all ranks took part within %g s", stage->timeout);
    abandon(stage, why);
    return false;
}

// Rank 0's frame as one of the whole run, in which other ranks' values are missing.
static void widen(keel_merge_stage *stage, keel_slot *slot) {
    keel_frame *whole = keel_frame_pool_whole(stage->pool);
    if (!whole) return;
    keel_frame_merge_at(whole, slot->frame, &stage->table->maps[0]);
    whole->step = slot->frame->step;
    keel_frame_pool_take_whole(stage->pool, slot);
}

// After a merge was abandoned: rank 0 goes on alone.
static void pass_on(keel_merge_stage *stage) {
    const uint64_t ended = atomic_load(&stage->ended);
    for (keel_slot *slot; (slot = keel_ring_take(&stage->pool->ended));) {
        if (stage->leads) {
            widen(stage, slot);
            keel_rank_series_forget_others(stage->ranks, slot->values);
        }
        slot->frame->step.flags |= KEEL_STEP_DROPPED;
        hand_on(stage, slot, stage->leads);
    }
    settle(stage, ended);
}

// Goes as far as can be without waiting. True if an operation is in flight; false if there is nothing to do until a
// step ends.
static bool advance(keel_merge_stage *stage) {
    for (;;) {
        switch (stage->phase) {
        case IDLE:
            if (!announce(stage)) return false;
            break;
        case AWAITING_STEP:
            if (!reduce(stage)) return false;
            break;
        case ANNOUNCING:
        case REDUCING:
        case COLLECTING:
        case JUDGING:
        case ASKING:
            if (in_flight(stage)) return true;
            break;
        case ABANDONED:
            pass_on(stage);
            return false;
        case CLOSED:
            return false;
        }
    }
}

static bool has_ended(const keel_merge_stage *stage) {
    return stage->phase == CLOSED || stage->phase == ABANDONED;
}

static void nap(const keel_merge_stage *stage) {
    keel_nap(stage->looks < SHORT_NAPS ? NAP_NS : LONG_NAP_NS);
}

static void *run(void *context) {
    keel_merge_stage *stage = context;
    for (;;) {
        const bool closing = atomic_load(&stage->closing);
        const bool busy = advance(stage);
        if (closing && has_ended(stage)) return NULL;
        if (busy)
            nap(stage);
        else
            keel_semaphore_wait(&stage->wake);
    }
}

static void free_stage(keel_merge_stage *stage) {
    sem_destroy(&stage->wake);
    pthread_mutex_destroy(&stage->mutex);
    pthread_cond_destroy(&stage->moved);
    free(stage);
}

keel_status keel_merge_stage_open(const keel_merge_stage_options *options, keel_merge_stage **out) {
    keel_merge_stage *stage = calloc(1, sizeof *stage);
    if (!stage) return keel_fail(KEEL_ERR_MEMORY, "no memory for the merge");
    stage->merge = options->merge;
    stage->table = options->whole;
    stage->copies = options->copies;
    stage->ranks = options->ranks;
    stage->pool = options->pool;
    stage->recorder = options->recorder;
    stage->timeout = options->timeout_seconds;
    stage->leads = !stage->merge || stage->merge->rank == 0;
    stage->threaded = stage->merge && stage->merge->threaded;
    sem_init(&stage->wake, 0, 0);
    pthread_mutex_init(&stage->mutex, NULL);
    pthread_cond_init(&stage->moved, NULL);
    const keel_status status = stage->threaded ? keel_thread_start(&stage->thread, "keel-merge", run, stage) : KEEL_OK;
    if (status) {
        free_stage(stage);
        return status;
    }
    *out = stage;
    return KEEL_OK;
}

void keel_merge_stage_submit(keel_merge_stage *stage, keel_slot *slot) {
    const uint64_t sequence = atomic_load(&stage->ended) + 1;
    if (slot) slot->sequence = sequence;
    if (slot && stage->merge) keel_ring_put(&stage->pool->ended, slot);
    atomic_store(&stage->ended, sequence);
    if (!stage->merge) {
        if (slot) hand_on(stage, slot, true);
    } else if (stage->threaded) {
        sem_post(&stage->wake);
    } else {
        advance(stage);
    }
}

void keel_merge_stage_poll(keel_merge_stage *stage) {
    if (stage->merge && !stage->threaded) advance(stage);
}

void keel_merge_stage_drain(keel_merge_stage *stage) {
    const uint64_t ended = atomic_load(&stage->ended);
    if (!stage->merge) return;
    if (!stage->threaded) {
        while (stage->over < ended)
            if (advance(stage)) nap(stage);
        return;
    }
    pthread_mutex_lock(&stage->mutex);
    while (stage->settled < ended) pthread_cond_wait(&stage->moved, &stage->mutex);
    pthread_mutex_unlock(&stage->mutex);
}

bool keel_merge_stage_abandoned(const keel_merge_stage *stage) {
    return atomic_load(&stage->abandoned);
}

void keel_merge_stage_close(keel_merge_stage *stage, bool together, keel_merge_totals *totals) {
    atomic_store(&stage->alone, !together);
    atomic_store(&stage->closing, true);
    if (stage->threaded) {
        sem_post(&stage->wake);
        pthread_join(stage->thread, NULL);
    } else if (stage->merge) {
        while (!has_ended(stage))
            if (advance(stage)) nap(stage);
        advance(stage);
    }
    *totals = (keel_merge_totals){
        .ended = atomic_load(&stage->ended), .missing = stage->missing, .abandoned = keel_merge_stage_abandoned(stage)};
    free_stage(stage);
}
