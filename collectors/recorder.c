#include "collectors/recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectors/helper_thread.h"

#define IDLE_SECONDS 0.25

struct keel_recorder {
    keel_frame_pool *pool;
    const keel_run_info *info;
    keel_sink_list *sinks;
    keel_row_buffer *row; // NULL: only clear
    void (*idle)(void *context);
    void *idle_context;

    pthread_t thread;
    sem_t wake;
    atomic_bool stop;
    _Atomic uint64_t drains_wanted;
    pthread_mutex_t mutex;
    pthread_cond_t drained;
    uint64_t drains_done; // under the mutex, as are the next
    keel_status drain_status;
    char drain_error[KEEL_SINK_ERROR_BYTES];

    // The closer's, before stop is set.
    uint64_t ended;
    keel_step last_step;

    // The thread's own; the closer's after it has ended.
    uint64_t last_sequence, rows;
    bool whole_said;
    keel_status close_status;
    char close_error[256];
};

static void forget_checksum(keel_stats *stats) {
    stats->fields &= ~(uint32_t)KEEL_FIELDS_CHECKSUM;
}

// Where a rank could not give its values, the copies that are left do not sum to 0 although all agree.
static void forget_residuals(const keel_recorder *recorder, keel_frame *frame) {
    const keel_run_info *info = recorder->info;
    for (uint32_t s = 0; s < info->site_count; s++)
        if (info->sites[s].replica_count > 1) forget_checksum(&keel_frame_stats(frame)[s]);
    for (uint32_t k = 0; k < info->micro_site_count; k++)
        if (info->sites[info->micro_sites[k]].replica_count > 1)
            for (uint32_t m = 0; m < frame->micro_count; m++) forget_checksum(keel_frame_micro(frame, m, k));
}

// A tensor that one rank holds, seen on several, counts several times: the program has declared it wrongly.
static void check_whole(keel_recorder *recorder, keel_frame *frame) {
    const keel_run_info *info = recorder->info;
    for (uint32_t s = 0; s < info->site_count && !recorder->whole_said; s++) {
        const uint32_t parts = keel_frame_stats(frame)[s].rank_parts;
        if (info->sites[s].layout != KEEL_LAYOUT_WHOLE || parts < 2) continue;
        recorder->whole_said = true;
        keel_log(KEEL_LOG_WARNING,
                 "site %s (%s) is registered as held by one rank, but %u ranks observed it: its counts are added",
                 info->sites[s].name, keel_quantity_name(info->sites[s].quantity), parts);
    }
}

static void record(keel_recorder *recorder, const keel_slot *slot) {
    const uint64_t dropped = slot->sequence - recorder->last_sequence - 1;
    recorder->last_sequence = slot->sequence;
    recorder->rows++;
    if (slot->frame->step.flags & KEEL_STEP_DROPPED) forget_residuals(recorder, slot->frame);
    if (!recorder->whole_said) check_whole(recorder, slot->frame);
    keel_row_buffer_fill(recorder->row, slot->frame, slot->values, dropped);
    keel_sink_list_row(recorder->sinks, keel_row_buffer_row(recorder->row));
}

// Steps lost after the last row have no next row to be counted in: they get one without values.
static void record_lost(keel_recorder *recorder) {
    if (!recorder->row || recorder->ended <= recorder->last_sequence) return;
    keel_row_buffer_clear(recorder->row);
    keel_row *row = keel_row_buffer_row(recorder->row);
    row->step = recorder->last_step;
    row->step.flags |= KEEL_STEP_DROPPED;
    row->dropped_frames = recorder->ended - recorder->last_sequence - 1;
    keel_sink_list_row(recorder->sinks, row);
}

static void *run(void *context) {
    keel_recorder *recorder = context;
    bool stop = false;
    for (uint64_t drains = 0; !stop;) {
        if (!recorder->idle)
            keel_semaphore_wait(&recorder->wake);
        else
            while (!keel_semaphore_wait_for(&recorder->wake, IDLE_SECONDS)) recorder->idle(recorder->idle_context);
        // Read first: what was put before either was set is in the ring.
        stop = atomic_load(&recorder->stop);
        const uint64_t wanted = atomic_load(&recorder->drains_wanted);
        for (keel_slot *slot; (slot = keel_ring_take(&recorder->pool->recorded));) {
            if (slot->record && recorder->row) record(recorder, slot);
            keel_frame_pool_clear(recorder->pool, slot);
            keel_ring_put(&recorder->pool->free, slot);
        }
        if (drains == wanted) continue;
        char error[KEEL_SINK_ERROR_BYTES] = "";
        const keel_status flushed = keel_sink_list_flush(recorder->sinks, error);
        drains = wanted;
        pthread_mutex_lock(&recorder->mutex);
        recorder->drain_status = flushed;
        memcpy(recorder->drain_error, error, sizeof error);
        recorder->drains_done = drains;
        pthread_cond_signal(&recorder->drained);
        pthread_mutex_unlock(&recorder->mutex);
    }
    record_lost(recorder);
    recorder->close_status = keel_sink_list_close(recorder->sinks);
    if (recorder->close_status) // the text belongs to this thread
        snprintf(recorder->close_error, sizeof recorder->close_error, "%s", keel_error());
    return NULL;
}

static void free_recorder(keel_recorder *recorder) {
    sem_destroy(&recorder->wake);
    pthread_mutex_destroy(&recorder->mutex);
    pthread_cond_destroy(&recorder->drained);
    if (recorder->row) keel_row_buffer_close(recorder->row);
    free(recorder);
}

keel_status keel_recorder_open(const keel_recorder_options *options, keel_recorder **out) {
    keel_recorder *recorder = calloc(1, sizeof *recorder);
    if (!recorder) return keel_fail(KEEL_ERR_MEMORY, "no memory for the recorder");
    recorder->pool = options->pool;
    recorder->info = options->info;
    recorder->sinks = options->sinks;
    recorder->idle = options->idle;
    recorder->idle_context = options->idle_context;
    sem_init(&recorder->wake, 0, 0);
    pthread_mutex_init(&recorder->mutex, NULL);
    pthread_cond_init(&recorder->drained, NULL);
    keel_status status = recorder->info ? keel_row_buffer_open(recorder->info, &recorder->row) : KEEL_OK;
    if (!status) status = keel_thread_start(&recorder->thread, "keel-recorder", run, recorder);
    if (status) {
        free_recorder(recorder);
        return status;
    }
    *out = recorder;
    return KEEL_OK;
}

void keel_recorder_put(keel_recorder *recorder, keel_slot *slot) {
    keel_ring_put(&recorder->pool->recorded, slot);
    sem_post(&recorder->wake);
}

keel_status keel_recorder_drain(keel_recorder *recorder) {
    const uint64_t wanted = atomic_fetch_add(&recorder->drains_wanted, 1) + 1;
    sem_post(&recorder->wake);
    pthread_mutex_lock(&recorder->mutex);
    while (recorder->drains_done < wanted) pthread_cond_wait(&recorder->drained, &recorder->mutex);
    keel_status status = recorder->drain_status;
    if (status) status = keel_fail(status, "%s", recorder->drain_error);
    pthread_mutex_unlock(&recorder->mutex);
    return status;
}

keel_status keel_recorder_close(keel_recorder *recorder, uint64_t ended, const keel_step *last_step, uint64_t *rows) {
    recorder->ended = ended;
    recorder->last_step = *last_step;
    atomic_store(&recorder->stop, true);
    sem_post(&recorder->wake);
    pthread_join(recorder->thread, NULL);
    *rows = recorder->rows;
    const keel_status status =
        recorder->close_status ? keel_fail(recorder->close_status, "%s", recorder->close_error) : KEEL_OK;
    free_recorder(recorder);
    return status;
}
