#include "tools/import/import_assembly.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/import/import_epochs.h"

enum {
    WAITING =
        4, // records that must go on from an earlier step before it counts as a restart, if other ranks may print too
    SURE = 2,             // the same if they cannot, or after a gap
    GAP_LINES = 8,        // lines that are no records: a job starts with a banner, ranks print side by side
    RECENT = 8,           // how far ranks run apart, in records
    STRAY_FACTOR = 100,   // a step that jumps ahead this much further than the log then goes on is torn
    OVERFLOWS_KEPT = 4096 // events that wait for a record
};

// Scalars whose constant "no such thing" value some trainers print for want of a real one.
static bool is_placeholder(keel_import_field field, double value) {
    switch (field) {
    case KEEL_IMPORT_GRAD_NORM:
        return value == 0 || isnan(value);
    case KEEL_IMPORT_LOSS_SCALE:
        return value == 1 || value == 0;
    case KEEL_IMPORT_AUX_LOSS:
    case KEEL_IMPORT_Z_LOSS:
        return value == 0;
    default:
        return false;
    }
}

struct keel_import_assembly {
    uint64_t records, dropped;
    bool count_only;

    bool sole;                  // the log has one writer
    uint64_t line, record_line; // present line, that of the latest record

    keel_import_spool spool;
    keel_import_segment *runs;
    size_t count, capacity;

    // The run being read.
    keel_import_segment run;
    uint64_t real;           // scalars with a value that is no placeholder
    uint64_t nan_norms;      // grad norms that are NaN
    keel_import_record open; // the training record of the latest step, which more of the same step may join
    uint64_t before;         // step of the row before the open one
    keel_import_record side; // evaluation or learning rate alone, waiting for its step's training record
    double norm;             // the latest one printed
    bool in_run, has_open, has_before, has_side, has_norm;
    bool sick; // a loss that is not finite or exactly 0: then a grad norm of NaN is no placeholder

    bool waiting_sure; // they came after a gap or from the only writer
    size_t waiting_count;
    keel_import_record waiting[WAITING]; // steps that came again, ascending

    size_t recent_count; // ever
    struct {
        uint64_t step;
        double loss;
    } recent[RECENT];

    double *overflow_scales; // [OVERFLOWS_KEPT]
    size_t overflow_count;
    double overflow_scale;
    uint64_t overflow_ranks, overflow_line;

    keel_import_epochs epochs;
    uint64_t base; // added to printed steps that begin anew in every epoch
};

keel_status keel_import_assembly_open(bool count_only, keel_import_assembly **assembly) {
    keel_import_assembly *made = calloc(1, sizeof *made);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "no memory for the runs of a log");
    made->count_only = count_only;
    made->overflow_scale = (double)NAN;
    keel_import_epochs_clear(&made->epochs);
    keel_import_spool_init(&made->spool);
    *assembly = made;
    return KEEL_OK;
}

void keel_import_assembly_close(keel_import_assembly *assembly) {
    if (!assembly) return;
    keel_import_spool_free(&assembly->spool);
    free(assembly->overflow_scales);
    free(assembly->runs);
    free(assembly);
}

void keel_import_assembly_at(keel_import_assembly *assembly, uint64_t line, bool sole) {
    assembly->line = line;
    assembly->sole = sole;
}

uint64_t keel_import_assembly_records(const keel_import_assembly *assembly) {
    return assembly->records;
}
uint64_t keel_import_assembly_dropped(const keel_import_assembly *assembly) {
    return assembly->dropped;
}
size_t keel_import_assembly_count(const keel_import_assembly *assembly) {
    return assembly->count;
}
const keel_import_segment *keel_import_assembly_get(const keel_import_assembly *assembly, size_t index) {
    return &assembly->runs[index];
}
const keel_import_spool *keel_import_assembly_spool(const keel_import_assembly *assembly) {
    return &assembly->spool;
}

static bool has(const keel_import_record *record, keel_import_field field) {
    return (record->set & KEEL_IMPORT_BIT(field)) != 0;
}

static bool is_side(const keel_import_record *record) {
    return !(record->set & ~(KEEL_IMPORT_EVALUATION | KEEL_IMPORT_BIT(KEEL_IMPORT_LR))) && !record->flags;
}

// What INTO lacks of FROM.
static void merge(keel_import_record *into, const keel_import_record *from) {
    uint64_t fresh = from->set & ~into->set;
    for (uint64_t left = fresh; left; left &= left - 1) {
        int field = __builtin_ctzll(left);
        into->values[field] = from->values[field];
    }
    into->set |= fresh;
    into->flags |= from->flags;
}

static keel_status emit(keel_import_assembly *assembly, const keel_import_record *record) {
    struct {
        keel_import_row row;
        double values[KEEL_IMPORT_SCALARS];
    } packed = {.row = {.step = record->step, .set = record->set, .flags = record->flags}};
    size_t n = 0;
    for (uint64_t left = record->set; left; left &= left - 1) {
        keel_import_field field = (keel_import_field)__builtin_ctzll(left);
        double value = record->values[field];
        packed.values[n++] = value;
        if (!is_placeholder(field, value)) assembly->real |= KEEL_IMPORT_BIT(field);
        if (field == KEEL_IMPORT_GRAD_NORM && isnan(value)) assembly->nan_norms++;
        if (field == KEEL_IMPORT_LOSS && !(isfinite(value) && value != 0)) assembly->sick = true;
    }
    if (!assembly->in_run) {
        assembly->run =
            (keel_import_segment){.offset = keel_import_spool_size(&assembly->spool), .first_step = record->step};
        assembly->in_run = true;
    }
    assembly->run.rows++;
    assembly->run.scalars |= record->set;
    if (record->step > assembly->run.last_step) assembly->run.last_step = record->step;
    if (record->step < assembly->run.first_step) assembly->run.first_step = record->step;
    assembly->has_before = true;
    assembly->before = record->step;
    return keel_import_spool_write(&assembly->spool, &packed, sizeof packed.row + n * sizeof(double));
}

// The training record of the aside's own step did not come: it belongs to what was trained before it.
static void settle_side(keel_import_assembly *assembly, keel_import_record *next) {
    if (!assembly->has_side) return;
    assembly->has_side = false;
    bool evaluated = (assembly->side.set & KEEL_IMPORT_EVALUATION) != 0;
    bool same_step = next && assembly->side.has_step && assembly->side.step == next->step;
    if (same_step || (next && !assembly->has_open)) {
        merge(next, &assembly->side);
    } else if (assembly->has_open) {
        merge(&assembly->open, &assembly->side);
        if (evaluated) assembly->open.flags |= KEEL_STEP_EVALUATION;
    } else {
        assembly->open = assembly->side;
        assembly->has_open = true;
    }
}

static keel_status close_run(keel_import_assembly *assembly) {
    settle_side(assembly, NULL);
    if (assembly->has_open) {
        keel_status status = emit(assembly, &assembly->open);
        if (status) return status;
    }
    if (assembly->in_run) {
        if (assembly->count == assembly->capacity) {
            size_t capacity = assembly->capacity ? 2 * assembly->capacity : 4;
            keel_import_segment *grown = realloc(assembly->runs, capacity * sizeof *grown);
            if (!grown) return keel_fail(KEEL_ERR_MEMORY, "no memory for the runs of a log");
            assembly->runs = grown;
            assembly->capacity = capacity;
        }
        // A loss of 0 or NaN beside norms of NaN is the well-known fp16 collapse, not a trainer that computes no norm.
        if (assembly->sick && assembly->nan_norms) assembly->real |= KEEL_IMPORT_BIT(KEEL_IMPORT_GRAD_NORM);
        assembly->run.scalars &= assembly->real;
        assembly->runs[assembly->count++] = assembly->run;
    }
    assembly->in_run = assembly->has_open = assembly->has_before = assembly->has_side = assembly->has_norm =
        assembly->sick = false;
    assembly->real = assembly->nan_norms = 0;
    assembly->recent_count = 0;
    keel_import_epochs_clear(&assembly->epochs);
    assembly->base = 0;
    return KEEL_OK;
}

// Typical distance of records of the present run, at least 1.
static uint64_t spacing(const keel_import_assembly *assembly) {
    if (!assembly->has_open) return 1;
    if (!assembly->in_run) return assembly->open.step > 1 ? assembly->open.step : 1;
    uint64_t last = assembly->open.step > assembly->run.last_step ? assembly->open.step : assembly->run.last_step;
    uint64_t range = last - assembly->run.first_step;
    return range / assembly->run.rows + (range % assembly->run.rows != 0) + (range == 0);
}

static uint64_t first_step(const keel_import_assembly *assembly) {
    return assembly->in_run ? assembly->run.first_step : assembly->open.step;
}

// Where a training begins: at its first step, or at the first one that it logs.
static bool is_start(const keel_import_assembly *assembly, uint64_t step) {
    return step <= 1 || step <= spacing(assembly) || 2 * step < first_step(assembly);
}

// What is to be added to STEP, counted anew in every epoch.
static uint64_t epoch_base(keel_import_assembly *assembly, const keel_import_record *record) {
    keel_import_epochs *epochs = &assembly->epochs;
    if (!assembly->has_open || !isfinite(record->epoch) || !keel_import_epochs_known(epochs)) return assembly->base;
    int64_t index = keel_import_epochs_index(epochs, record->epoch);
    int64_t first = keel_import_epochs_index(epochs, epochs->first);
    if (index > epochs->index && record->step + assembly->base < assembly->open.step) {
        uint64_t next = assembly->open.step + spacing(assembly), origin = first_step(assembly);
        uint64_t base = next > origin ? next - origin : 0;
        return base + record->step > assembly->open.step ? base : assembly->open.step + 1 - record->step;
    }
    if (index < epochs->index && assembly->base) // back to an earlier epoch, whose first step is known but roughly
        return index <= first
                   ? 0
                   : (uint64_t)((double)assembly->base * (double)(index - first) / (double)(epochs->index - first));
    return assembly->base;
}

// Gives the record its step in the run, where the log does not print steps or counts them anew in every epoch.
static keel_status place(keel_import_assembly *assembly, keel_import_record *record) {
    if (record->has_step) {
        record->base = epoch_base(assembly, record);
        record->step += record->base;
        return KEEL_OK;
    }
    bool knows_epoch = isfinite(record->epoch) && keel_import_epochs_known(&assembly->epochs);
    if (is_side(record)) {
        if (assembly->has_open) record->step = assembly->open.step;
        return KEEL_OK;
    }
    if (assembly->has_open && knows_epoch && record->epoch < assembly->epochs.latest) {
        if (record->epoch <= assembly->epochs.first) {
            keel_status status = close_run(assembly);
            if (status) return status;
        } else {
            record->flags |= KEEL_STEP_RESUMED;
        }
    }
    record->step = assembly->has_open ? assembly->open.step + 1 : 1;
    record->has_step = true;
    return KEEL_OK;
}

// ---- evaluation and other asides ----

static keel_status add_side(keel_import_assembly *assembly, const keel_import_record *record) {
    if (assembly->has_open && record->step == assembly->open.step) {
        merge(&assembly->open, record);
        if (record->set & KEEL_IMPORT_EVALUATION) assembly->open.flags |= KEEL_STEP_EVALUATION;
        return KEEL_OK;
    }
    if (assembly->has_side && assembly->side.step == record->step) {
        merge(&assembly->side, record);
        return KEEL_OK;
    }
    for (size_t i = 0; i < assembly->waiting_count; i++)
        if (assembly->waiting[i].step == record->step) {
            merge(&assembly->waiting[i], record);
            return KEEL_OK;
        }
    if (assembly->has_side && !assembly->has_open && record->step > assembly->side.step) {
        // Nothing was trained in between: a log of evaluations alone, whose records are rows.
        keel_status status = emit(assembly, &assembly->side);
        if (status) return status;
        assembly->has_side = false;
    }
    settle_side(assembly, NULL);
    assembly->side = *record;
    assembly->has_side = true;
    return KEEL_OK;
}

// ---- training records ----

// How many steps RECORD stands for. The first one of a log may stand for all before it.
static uint64_t interval_of(const keel_import_assembly *assembly, const keel_import_record *record) {
    uint64_t previous = assembly->has_open ? assembly->open.step : assembly->has_before ? assembly->before : 0;
    return record->step > previous ? record->step - previous : 1;
}

static void take_overflows(keel_import_assembly *assembly, keel_import_record *record) {
    uint64_t interval = interval_of(assembly, record);
    if (assembly->overflow_count) {
        double printed = has(record, KEEL_IMPORT_SKIPPED) ? record->values[KEEL_IMPORT_SKIPPED] : 0;
        if ((double)assembly->overflow_count > printed)
            keel_import_record_set(record, KEEL_IMPORT_SKIPPED, (double)assembly->overflow_count);
        if (!has(record, KEEL_IMPORT_LOSS_SCALE))
            keel_import_record_set(record, KEEL_IMPORT_LOSS_SCALE, assembly->overflow_scale);
    }
    assembly->overflow_count = 0;
    assembly->overflow_scale = (double)NAN;
    assembly->overflow_ranks = 0;
    if (has(record, KEEL_IMPORT_SKIPPED) && record->values[KEEL_IMPORT_SKIPPED] >= (double)interval)
        record->flags |= KEEL_STEP_SKIPPED | KEEL_STEP_OVERFLOW;
    if (has(record, KEEL_IMPORT_GRAD_NORM)) {
        double norm = record->values[KEEL_IMPORT_GRAD_NORM];
        // A step that was skipped has no norm; some trainers print the one before it once more.
        if ((record->flags & KEEL_STEP_SKIPPED) && assembly->has_norm && norm == assembly->norm)
            record->set &= ~KEEL_IMPORT_BIT(KEEL_IMPORT_GRAD_NORM);
        assembly->has_norm = true;
        assembly->norm = norm;
    }
}

static void remember(keel_import_assembly *assembly, const keel_import_record *record) {
    size_t at = assembly->recent_count++ % RECENT;
    assembly->recent[at].step = record->step;
    assembly->recent[at].loss = has(record, KEEL_IMPORT_LOSS) ? record->values[KEEL_IMPORT_LOSS] : (double)NAN;
}

// The next step of the run, as the log goes.
static keel_status accept(keel_import_assembly *assembly, keel_import_record record) {
    settle_side(assembly, &record);
    take_overflows(assembly, &record);
    if (keel_import_epochs_note(&assembly->epochs, record.epoch)) record.flags |= KEEL_STEP_EPOCH;
    assembly->base = record.base;
    if (assembly->has_open) {
        keel_status status = emit(assembly, &assembly->open);
        if (status) return status;
    }
    remember(assembly, &record);
    assembly->open = record;
    assembly->has_open = true;
    return KEEL_OK;
}

static bool is_other_rank(const keel_import_assembly *assembly, const keel_import_record *record) {
    return record->rank >= 0 && assembly->open.rank >= 0 && record->rank != assembly->open.rank;
}

static bool same_loss(const keel_import_record *record, double loss) {
    double own = has(record, KEEL_IMPORT_LOSS) ? record->values[KEEL_IMPORT_LOSS] : (double)NAN;
    return own == loss || (isnan(own) && isnan(loss));
}

// True if another rank printed this step a moment ago.
static bool is_repeated(const keel_import_assembly *assembly, const keel_import_record *record) {
    if (assembly->sole) return false;
    size_t kept = assembly->recent_count < RECENT ? assembly->recent_count : RECENT;
    for (size_t back = 1; back <= kept; back++) {
        size_t at = (assembly->recent_count - back) % RECENT;
        if (assembly->recent[at].step != record->step) continue;
        // A run that is begun once more with the same seed prints the same, but it begins further back.
        if (back > 2 && is_start(assembly, record->step)) return false;
        return is_other_rank(assembly, record) || same_loss(record, assembly->recent[at].loss);
    }
    return false;
}

// The waiting records go on from an earlier step: from a checkpoint, or from the start.
static keel_status restart(keel_import_assembly *assembly) {
    keel_import_record again[WAITING];
    size_t count = assembly->waiting_count;
    memcpy(again, assembly->waiting, count * sizeof *again);
    assembly->waiting_count = 0;
    if (is_start(assembly, again[0].step)) {
        keel_status status = close_run(assembly);
        if (status) return status;
    } else {
        again[0].flags |= KEEL_STEP_RESUMED;
        assembly->recent_count = 0;
        if (isfinite(again[0].epoch))
            assembly->epochs.index = keel_import_epochs_index(&assembly->epochs, again[0].epoch);
    }
    for (size_t i = 0; i < count; i++) {
        keel_status status = accept(assembly, again[i]);
        if (status) return status;
    }
    return KEEL_OK;
}

static keel_status wait_for_evidence(keel_import_assembly *assembly, const keel_import_record *record, bool sure) {
    if (assembly->waiting_count && record->step <= assembly->waiting[assembly->waiting_count - 1].step) {
        if (record->step == assembly->waiting[assembly->waiting_count - 1].step) {
            merge(&assembly->waiting[assembly->waiting_count - 1], record);
            return KEEL_OK;
        }
        assembly->dropped += assembly->waiting_count; // they led nowhere
        assembly->waiting_count = 0;
    }
    if (!assembly->waiting_count) assembly->waiting_sure = sure;
    keel_import_record *added = &assembly->waiting[assembly->waiting_count++];
    *added = *record;
    if (assembly->has_side && assembly->side.has_step && assembly->side.step == added->step) {
        merge(added, &assembly->side);
        assembly->has_side = false;
    }
    size_t needed = assembly->waiting_sure ? SURE : WAITING;
    return assembly->waiting_count >= needed ? restart(assembly) : KEEL_OK;
}

static keel_status add_training(keel_import_assembly *assembly, const keel_import_record *record) {
    bool sure = assembly->sole || assembly->line - assembly->record_line > GAP_LINES;
    assembly->record_line = assembly->line;
    if (!assembly->has_open) return accept(assembly, *record);
    uint64_t step = record->step, latest = assembly->open.step;
    if (step > latest) {
        // Every rank prints its own loss: one is followed, as long as it goes on.
        if (!sure && is_other_rank(assembly, record) && step - latest <= RECENT * spacing(assembly)) return KEEL_OK;
        assembly->dropped += assembly->waiting_count;
        assembly->waiting_count = 0;
        return accept(assembly, *record);
    }
    bool repeated = is_repeated(assembly, record);
    if (step == latest && (repeated || !assembly->waiting_count)) {
        merge(&assembly->open, record);
        return KEEL_OK;
    }
    if (step < latest && assembly->has_before && step > assembly->before &&
        (latest - assembly->before) / STRAY_FACTOR > step - assembly->before) {
        assembly->dropped++;
        assembly->has_open = false;
        return accept(assembly, *record);
    }
    if (repeated && !assembly->waiting_count && !(sure && is_start(assembly, step))) return KEEL_OK;
    return wait_for_evidence(assembly, record, sure);
}

keel_status keel_import_assembly_add(keel_import_assembly *assembly, const keel_import_record *record) {
    if (!record->set && !record->flags) return KEEL_OK;
    if (record->set & ~KEEL_IMPORT_BIT(KEEL_IMPORT_LR)) assembly->records++;
    if (assembly->count_only) return KEEL_OK;
    keel_import_record placed = *record;
    keel_status status = place(assembly, &placed);
    if (status) return status;
    return is_side(&placed) ? add_side(assembly, &placed) : add_training(assembly, &placed);
}

// ---- overflows ----

// Overflows after the last record, or in a log that has no other records: steps of their own.
static keel_status emit_overflows(keel_import_assembly *assembly) {
    size_t count = assembly->overflow_count;
    assembly->overflow_count = 0;
    uint64_t step = assembly->has_open ? assembly->open.step : 0;
    for (size_t i = 0; i < count; i++) {
        keel_import_record record;
        keel_import_record_clear(&record);
        record.has_step = true;
        record.step = ++step;
        record.flags = KEEL_STEP_SKIPPED | KEEL_STEP_OVERFLOW;
        keel_import_record_set(&record, KEEL_IMPORT_LOSS_SCALE, assembly->overflow_scales[i]);
        keel_status status = accept(assembly, record);
        if (status) return status;
    }
    return KEEL_OK;
}

keel_status keel_import_assembly_overflow(keel_import_assembly *assembly, double scale, int32_t rank) {
    uint64_t bit = rank >= 0 && rank < 64 ? UINT64_C(1) << rank : 0;
    bool same = scale == assembly->overflow_scale || (isnan(scale) && isnan(assembly->overflow_scale));
    bool repeated = same && assembly->overflow_line &&
                    (bit ? !(assembly->overflow_ranks & bit) : assembly->line - assembly->overflow_line <= GAP_LINES);
    assembly->overflow_line = assembly->line;
    if (repeated && assembly->overflow_count) {
        assembly->overflow_ranks |= bit;
        return KEEL_OK;
    }
    assembly->overflow_ranks = bit;
    assembly->overflow_scale = scale;
    if (assembly->count_only) {
        assembly->overflow_count = 1;
        assembly->records++;
        return KEEL_OK;
    }
    if (!assembly->overflow_scales) {
        assembly->overflow_scales = malloc(OVERFLOWS_KEPT * sizeof *assembly->overflow_scales);
        if (!assembly->overflow_scales) return keel_fail(KEEL_ERR_MEMORY, "no memory for the overflows of a log");
    }
    if (assembly->overflow_count == OVERFLOWS_KEPT) {
        keel_status status = emit_overflows(assembly);
        if (status) return status;
    }
    assembly->overflow_scales[assembly->overflow_count++] = scale;
    return KEEL_OK;
}

keel_status keel_import_assembly_finish(keel_import_assembly *assembly) {
    keel_status status = KEEL_OK;
    if (assembly->waiting_count >= SURE || (assembly->waiting_count && assembly->waiting_sure)) {
        status = restart(assembly);
    } else {
        assembly->dropped += assembly->waiting_count;
        assembly->waiting_count = 0;
    }
    if (!status) status = emit_overflows(assembly);
    if (!status) status = close_run(assembly);
    return status;
}
