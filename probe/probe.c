#include "probe/keel.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "probe/fp_guard.h"
#include "probe/site_table.h"

typedef struct scalar {
    char name[KEEL_SCALAR_NAME_BYTES];
    keel_scalar_merge merge;
} scalar;

// What the sites of one schedule take in the present step.
typedef enum take { TAKE_NOTHING, TAKE_FLAGS, TAKE_FIELDS } take;

// The enabled sites with one schedule: due together, so that a step asks once and touches them only when the answer
// changes.
typedef struct schedule_group {
    keel_schedule schedule;
    take now;
    uint32_t first; // in probe.enabled
    uint32_t count;
} schedule_group;

struct keel_probe {
    uint32_t rank;
    bool tried; // to start
    bool started;
    bool has_backend;
    bool paused;
    keel_backend backend;
    keel_frame *frame;   // of the present step; NULL between steps and where nothing is recorded
    uint64_t frames;     // begun so far
    bool *sign, no_sign; // see keel_backend
    keel_stats *records;
    keel_scalar_value *scalar_values;
    uint32_t micro; // present micro-batch
    uint32_t micro_count;
    uint32_t micro_site_count;

    keel_site_table sites;
    scalar *scalars;
    uint32_t scalar_count;
    schedule_group *groups;
    uint32_t group_count;
    keel_site_entry **enabled; // grouped by schedule
    uint32_t enabled_count;
};

static const keel_site_entry *entry_of(const keel_site *site) {
    return (const keel_site_entry *)site;
}

// ---- set-up ----

keel_status keel_probe_open(uint32_t rank, keel_probe **probe) {
    keel_probe *opened = calloc(1, sizeof *opened);
    if (!opened) return keel_fail(KEEL_ERR_MEMORY, "probe: no memory");
    opened->rank = rank;
    opened->micro_count = 1;
    opened->sign = &opened->no_sign;
    *probe = opened;
    return KEEL_OK;
}

void keel_probe_close(keel_probe *probe) {
    if (!probe) return;
    keel_site_table_free(&probe->sites);
    free(probe->scalars);
    free(probe->groups);
    free(probe->enabled);
    free(probe);
}

keel_status keel_site_add(keel_probe *probe, const keel_site_info *info, keel_site **site) {
    if (probe->started) return keel_fail(KEEL_ERR_USAGE, "site %.127s: added after the probe was started", info->name);
    keel_site_entry *entry;
    const keel_status status = keel_site_table_add(&probe->sites, info, &entry);
    if (status) return status;
    entry->probe = probe;
    entry->dtype = info->dtype;
    entry->micro_index = -1;
    entry->params.scale = 1;
    *site = &entry->head;
    return KEEL_OK;
}

const keel_site_info *keel_site_get_info(const keel_site *site) {
    return &entry_of(site)->info;
}

keel_status keel_scalar_add(keel_probe *probe, const char *name, keel_scalar_merge merge, uint32_t *id) {
    const size_t length = strlen(name);
    if (length == 0 || length >= KEEL_SCALAR_NAME_BYTES)
        return keel_fail(KEEL_ERR_USAGE, "scalar \"%s\": a name has 1 to %d characters", name,
                         KEEL_SCALAR_NAME_BYTES - 1);
    for (uint32_t i = 0; i < probe->scalar_count; i++) {
        if (strcmp(probe->scalars[i].name, name) != 0) continue;
        if (probe->scalars[i].merge != merge)
            return keel_fail(KEEL_ERR_USAGE, "scalar %s: registered before with another merge", name);
        *id = i;
        return KEEL_OK;
    }
    if (probe->started) return keel_fail(KEEL_ERR_USAGE, "scalar %s: added after the probe was started", name);
    scalar *scalars = realloc(probe->scalars, (probe->scalar_count + 1) * sizeof *scalars);
    if (!scalars) return keel_fail(KEEL_ERR_MEMORY, "scalar %s: no memory", name);
    probe->scalars = scalars;
    scalar *added = &scalars[probe->scalar_count];
    *added = (scalar){.merge = merge};
    memcpy(added->name, name, length);
    *id = probe->scalar_count++;
    return KEEL_OK;
}

void keel_probe_set_micro_count(keel_probe *probe, uint32_t count) {
    probe->micro_count = count > 0 ? count : 1;
}

void keel_probe_set_backend(keel_probe *probe, const keel_backend *backend) {
    probe->backend = *backend;
    probe->has_backend = true;
    probe->sign = backend->sign ? backend->sign : &probe->no_sign;
}

static bool same_schedule(const keel_schedule *a, const keel_schedule *b) {
    return a->start == b->start && a->every == b->every && a->count == b->count;
}

// Gives each enabled site its plan and the index of its schedule, and counts the sites of each schedule.
static keel_status apply_plans(keel_probe *probe, const keel_site_plan *plans) {
    for (uint32_t id = 0; id < probe->sites.count; id++) {
        const keel_site_plan *plan = &plans[id];
        if (!plan->fields) continue;
        uint32_t g = 0;
        while (g < probe->group_count && !same_schedule(&probe->groups[g].schedule, &plan->schedule)) g++;
        if (g == probe->group_count) {
            schedule_group *groups = realloc(probe->groups, (g + 1) * sizeof *groups);
            if (!groups) return keel_fail(KEEL_ERR_MEMORY, "probe: no memory for %" PRIu32 " schedules", g + 1);
            groups[g] = (schedule_group){.schedule = plan->schedule};
            probe->groups = groups;
            probe->group_count++;
        }
        probe->groups[g].count++;
        keel_site_entry *entry = keel_site_table_at(&probe->sites, id);
        entry->params.fields = plan->fields;
        entry->params.eps = plan->eps;
        entry->schedule = g;
        if (plan->per_micro) entry->micro_index = (int32_t)probe->micro_site_count++;
        probe->enabled_count++;
    }
    return KEEL_OK;
}

static keel_status group_enabled(keel_probe *probe) {
    if (!probe->enabled_count) return KEEL_OK;
    probe->enabled = malloc(probe->enabled_count * sizeof(keel_site_entry *));
    if (!probe->enabled)
        return keel_fail(KEEL_ERR_MEMORY, "probe: no memory for %" PRIu32 " sites", probe->enabled_count);
    uint32_t first = 0;
    for (uint32_t g = 0; g < probe->group_count; g++) {
        probe->groups[g].first = first;
        first += probe->groups[g].count;
        probe->groups[g].count = 0;
    }
    for (uint32_t id = 0; id < probe->sites.count; id++) {
        keel_site_entry *entry = keel_site_table_at(&probe->sites, id);
        if (!entry->params.fields) continue;
        schedule_group *group = &probe->groups[entry->schedule];
        probe->enabled[group->first + group->count++] = entry;
    }
    return KEEL_OK;
}

keel_status keel_probe_start(keel_probe *probe) {
    if (probe->tried) return keel_fail(KEEL_ERR_USAGE, "probe: started twice");
    probe->tried = true;
    if (!probe->has_backend) {
        probe->started = true;
        return KEEL_OK;
    }
    // One more than there are: calloc of nothing may be NULL.
    keel_site_plan *plans = calloc((size_t)probe->sites.count + 1, sizeof *plans);
    if (!plans) return keel_fail(KEEL_ERR_MEMORY, "probe: no memory for %" PRIu32 " plans", probe->sites.count);
    keel_status status = probe->backend.start(probe->backend.context, probe, plans);
    if (!status) status = apply_plans(probe, plans);
    if (!status) status = group_enabled(probe);
    free(plans);
    if (!status) probe->started = true;
    return status;
}

// ---- the step ----

// A backend that has not started, or could not, is asked nothing.
static bool watched(const keel_probe *probe) {
    return probe->started && probe->has_backend;
}

static void set_group(const keel_probe *probe, schedule_group *group, take wanted) {
    if (group->now == wanted) return;
    group->now = wanted;
    for (uint32_t i = group->first; i < group->first + group->count; i++) {
        keel_site_entry *entry = probe->enabled[i];
        switch (wanted) {
        case TAKE_NOTHING:
            entry->head.active = 0;
            break;
        case TAKE_FLAGS:
            entry->head.active = KEEL_FIELDS_FLAGS;
            break;
        case TAKE_FIELDS:
            entry->head.active = entry->params.fields;
            break;
        }
    }
}

void keel_step_begin(keel_probe *probe, uint64_t step) {
    if (!watched(probe)) return;
    probe->micro = 0;
    probe->frame = probe->paused ? NULL : probe->backend.frame_begin(probe->backend.context, step);
    if (probe->frame) {
        probe->frames++;
        probe->records = keel_frame_stats(probe->frame);
        probe->scalar_values = keel_frame_scalars(probe->frame);
    }
    for (uint32_t g = 0; g < probe->group_count; g++) {
        schedule_group *group = &probe->groups[g];
        if (!probe->frame)
            set_group(probe, group, TAKE_NOTHING);
        else
            set_group(probe, group, keel_schedule_due(&group->schedule, step) ? TAKE_FIELDS : TAKE_FLAGS);
    }
}

static keel_stats *micro_record(const keel_site_entry *entry) {
    const keel_probe *probe = entry->probe;
    if (entry->micro_index < 0 || probe->micro >= probe->frame->micro_count) return NULL;
    return keel_frame_micro(probe->frame, probe->micro, (uint32_t)entry->micro_index);
}

static void note_micro(keel_stats *record, uint32_t micro) {
    if (micro < record->micro_nonfinite) record->micro_nonfinite = micro;
}

// PART, observed in the present micro-batch, joins the site's records.
static void add_part(const keel_site_entry *entry, keel_stats *part) {
    const unsigned control = keel_fp_enter(KEEL_FP_DEFAULT);
    if (keel_stats_nonfinite(part)) note_micro(part, entry->probe->micro);
    keel_stats *micro = micro_record(entry);
    if (micro) keel_stats_merge(micro, part);
    keel_stats_merge(&entry->probe->records[entry->id], part);
    keel_fp_leave(control, KEEL_FP_DEFAULT);
}

// Written only where the backend has taken it, so that threads which observe at once do not contend for its line.
static void give_sign(const keel_probe *probe) {
    if (!__atomic_load_n(probe->sign, __ATOMIC_RELAXED)) __atomic_store_n(probe->sign, true, __ATOMIC_RELAXED);
}

void keel_micro_begin(keel_probe *probe, uint32_t micro) {
    probe->micro = micro;
    give_sign(probe);
}

static keel_stats_params params_now(const keel_site_entry *entry) {
    keel_stats_params params = entry->params;
    params.fields = entry->head.active;
    return params;
}

void keel_observe_active(keel_site *site, const void *data, size_t n) {
    const keel_site_entry *entry = entry_of(site);
    const keel_probe *probe = entry->probe;
    if (!probe->frame) return; // between two steps
    give_sign(probe);
    const keel_stats_params params = params_now(entry);
    if (micro_record(entry)) {
        keel_stats part;
        keel_stats_clear(&part);
        keel_stats_observe(&part, &params, entry->dtype, data, n);
        add_part(entry, &part);
        return;
    }
    keel_stats *record = &probe->records[entry->id];
    const uint64_t before = record->nans + record->pos_infs + record->neg_infs;
    keel_stats_observe(record, &params, entry->dtype, data, n);
    if (record->nans + record->pos_infs + record->neg_infs > before) note_micro(record, probe->micro);
}

void keel_block_begin(keel_block *block, keel_site *site) {
    const keel_probe *probe = entry_of(site)->probe;
    block->site = NULL;
    if (!site->active || !probe->frame) return;
    block->site = site;
    block->frame = probe->frames;
    const keel_stats_params params = params_now(entry_of(site));
    keel_stats_clear(&block->stats);
    keel_stats_stream_begin(&block->stream, &params, entry_of(site)->dtype);
}

void keel_block_add_active(keel_block *block, const void *data, size_t n) {
    keel_stats_stream_add(&block->stream, &block->stats, data, n);
}

void keel_block_end_both(keel_block *block, keel_site *other) {
    if (!block->site) return;
    const keel_site_entry *entry = entry_of(block->site);
    const keel_probe *probe = entry->probe;
    block->site = NULL;
    if (!probe->frame || block->frame != probe->frames) return; // its step is over
    give_sign(probe);
    keel_stats_stream_end(&block->stream, &block->stats);
    add_part(entry, &block->stats);
    if (other) add_part(entry_of(other), &block->stats);
}

void keel_block_end(keel_block *block) {
    keel_block_end_both(block, NULL);
}

bool keel_site_asks_alike(const keel_site *a, const keel_site *b) {
    const keel_site_entry *x = entry_of((keel_site *)a), *y = entry_of((keel_site *)b);
    return a->active == b->active && x->params.eps == y->params.eps && x->params.scale == y->params.scale &&
           x->dtype == y->dtype;
}

void keel_probe_set_paused(keel_probe *probe, bool paused) {
    probe->paused = paused;
}

void keel_site_set_scale(keel_site *site, double scale) {
    ((keel_site_entry *)site)->params.scale = scale;
}

void keel_scalar_set(keel_probe *probe, uint32_t id, double value) {
    if (!probe->frame || id >= probe->scalar_count) return;
    probe->scalar_values[id] =
        (keel_scalar_value){.value = value, .owner = probe->rank, .merge = (uint32_t)probe->scalars[id].merge};
}

static void seal(const keel_probe *probe, keel_stats *record, const keel_site_info *info) {
    keel_stats_seal_rank(record, probe->rank, info->replica_index, info->replica_count);
}

static void end_step(keel_probe *probe, const keel_step *step) {
    keel_frame *frame = probe->frame;
    if (frame) {
        frame->step = *step;
        if (probe->backend.frame_observed) probe->backend.frame_observed(probe->backend.context, frame);
        for (uint32_t i = 0; i < probe->enabled_count; i++) {
            const keel_site_entry *entry = probe->enabled[i];
            seal(probe, &probe->records[entry->id], &entry->info);
            for (uint32_t m = 0; entry->micro_index >= 0 && m < frame->micro_count; m++)
                seal(probe, keel_frame_micro(frame, m, (uint32_t)entry->micro_index), &entry->info);
        }
    }
    probe->frame = NULL;
    probe->backend.frame_end(probe->backend.context, frame, step);
}

void keel_step_end(keel_probe *probe, const keel_step *step) {
    if (!watched(probe) || probe->paused) return;
    const unsigned control = keel_fp_enter(KEEL_FP_DEFAULT);
    end_step(probe, step);
    keel_fp_leave(control, KEEL_FP_DEFAULT);
}

void keel_poll(keel_probe *probe) {
    if (!watched(probe) || !probe->backend.poll) return;
    const unsigned control = keel_fp_enter(KEEL_FP_DEFAULT); // it may merge what other ranks have sent
    probe->backend.poll(probe->backend.context);
    keel_fp_leave(control, KEEL_FP_DEFAULT);
}

void keel_wait_begin(keel_probe *probe) {
    if (watched(probe) && probe->backend.wait) probe->backend.wait(probe->backend.context, true);
}

void keel_wait_end(keel_probe *probe) {
    if (watched(probe) && probe->backend.wait) probe->backend.wait(probe->backend.context, false);
}

// ---- what the monitor thinks ----

keel_health keel_probe_health(keel_probe *probe) {
    if (!watched(probe) || !probe->backend.health) return (keel_health){0};
    return probe->backend.health(probe->backend.context);
}

keel_status keel_probe_drain(keel_probe *probe) {
    if (!watched(probe) || !probe->backend.drain) return KEEL_OK;
    return probe->backend.drain(probe->backend.context);
}

keel_status keel_probe_save(keel_probe *probe, void **bytes, size_t *size) {
    if (watched(probe) && probe->backend.save) return probe->backend.save(probe->backend.context, bytes, size);
    *bytes = NULL;
    *size = 0;
    return KEEL_OK;
}

keel_status keel_probe_load(keel_probe *probe, uint64_t step, const void *bytes, size_t size) {
    if (!probe->tried) return keel_fail(KEEL_ERR_USAGE, "probe: a state is loaded before the start");
    if (!watched(probe) || !probe->backend.load) return KEEL_OK;
    return probe->backend.load(probe->backend.context, step, bytes, size);
}

// ---- for the monitor ----

uint32_t keel_probe_rank(const keel_probe *probe) {
    return probe->rank;
}

uint32_t keel_probe_site_count(const keel_probe *probe) {
    return probe->sites.count;
}

const keel_site_info *keel_probe_site_info(const keel_probe *probe, uint32_t id) {
    return &keel_site_table_at(&probe->sites, id)->info;
}

uint32_t keel_probe_scalar_count(const keel_probe *probe) {
    return probe->scalar_count;
}

const char *keel_probe_scalar_name(const keel_probe *probe, uint32_t id) {
    return probe->scalars[id].name;
}

keel_scalar_merge keel_probe_scalar_merge(const keel_probe *probe, uint32_t id) {
    return probe->scalars[id].merge;
}

uint32_t keel_probe_micro_count(const keel_probe *probe) {
    return probe->micro_count;
}
