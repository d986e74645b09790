// Ranks with tables of their own, as the stages of a pipeline have: what comes of them on rank 0 is the whole run's,
// for every way in which the ranks may be shared out over up to four stages, with shards, replicas, tied sites, records
// per micro-batch and scalars that only some have.
#include <math.h>
#include <stdlib.h>

#include "collectors/helper_thread.h"
#include "collectors/mpi/merge_mpi.h"
#include "tests/mpi/mpi_check.h"

enum { LAYERS = 2, MICROS = 3, ELEMENTS = 240 };

static keel_merge merge;
static uint32_t stages;  // of this trial
static bool interleaved; // neighbours on different stages

static uint32_t stage_of(uint32_t rank) {
    return interleaved ? rank % stages : rank * stages / (uint32_t)check_size;
}

static uint32_t ranks_of(uint32_t stage) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < (uint32_t)check_size; r++) count += stage_of(r) == stage;
    return count;
}

// This rank's number among those of its stage.
static uint32_t index_in_stage(void) {
    uint32_t index = 0;
    for (uint32_t r = 0; r < (uint32_t)check_rank; r++) index += stage_of(r) == stage_of((uint32_t)check_rank);
    return index;
}

static void make_values(float *values, const char *name) {
    uint64_t state = 7;
    for (const char *c = name; *c; c++) state = state * 31 + (unsigned char)*c;
    for (int i = 0; i < ELEMENTS; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        values[i] = (float)((double)(state >> 33) * 0x1p-31 - 0.5);
    }
}

typedef struct table_rig {
    keel_probe *probe;
    keel_site_plan plans[32];
    keel_rank_table own;
    keel_whole_table whole;
    keel_frame *frame, *merged;
} table_rig;

static void add_site(table_rig *r, keel_site_info info, bool per_micro) {
    keel_site *site;
    info.ndim = 1;
    info.shape[0] = info.numel = ELEMENTS;
    CHECK(keel_site_add(r->probe, &info, &site) == KEEL_OK);
    const uint32_t id = keel_site_get_info(site)->id;
    r->plans[id] =
        (keel_site_plan){.fields = KEEL_FIELDS_ALL, .schedule = {.start = 1, .every = 1}, .per_micro = per_micro};
}

// The first and the last stage hold the embedding, each as many copies as it has ranks; layers are cut over the ranks
// of their stage, every stage sees samples, per micro-batch.
static void register_stage(table_rig *r, uint32_t stage) {
    const uint32_t ranks = ranks_of(stage), index = index_in_stage();
    const uint32_t embedding_ranks = stages == 1 ? ranks : ranks_of(0) + ranks_of(stages - 1);
    if (stage == 0 || stage == stages - 1)
        add_site(r,
                 (keel_site_info){.name = "embedding.weight",
                                  .layout = KEEL_LAYOUT_REPLICA,
                                  .phase = KEEL_PHASE_OPTIMIZER,
                                  .order = stage,
                                  .stage = (int32_t)stage,
                                  .replica_index = stage == 0 ? index : ranks_of(0) + index,
                                  .replica_count = embedding_ranks},
                 false);
    for (uint32_t l = stage * LAYERS; l < (stage + 1) * LAYERS; l++) {
        keel_site_info info = {.layout = KEEL_LAYOUT_SHARD,
                               .phase = KEEL_PHASE_OPTIMIZER,
                               .order = 10 + l,
                               .layer = (int32_t)l,
                               .stage = (int32_t)stage};
        snprintf(info.name, sizeof info.name, "layers.%u.weight", l);
        add_site(r, info, false);
        info.quantity = KEEL_ACTIVATION;
        info.layout = KEEL_LAYOUT_SAMPLE;
        info.phase = KEEL_PHASE_FORWARD;
        snprintf(info.name, sizeof info.name, "layers.%u.out", l);
        add_site(r, info, true);
    }
    uint32_t id;
    char name[KEEL_SCALAR_NAME_BYTES];
    snprintf(name, sizeof name, "stage_%u", stage);
    CHECK(keel_scalar_add(r->probe, name, KEEL_SCALAR_MAX, &id) == KEEL_OK);
    CHECK(keel_scalar_add(r->probe, "ranks", KEEL_SCALAR_SUM, &id) == KEEL_OK);
}

static keel_frame *new_frame(const keel_rank_table *table) {
    const uint32_t micro_sites = keel_rank_table_micro_sites(table);
    const size_t bytes = keel_frame_bytes(table->scalar_count, table->site_count, MICROS, micro_sites);
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    CHECK(memory);
    keel_frame *frame = keel_frame_init(memory, table->scalar_count, table->site_count, MICROS, micro_sites);
    for (uint32_t i = 0; i < table->scalar_count; i++)
        keel_frame_scalars(frame)[i].merge = (uint32_t)table->scalars[i].merge;
    return frame;
}

static const keel_stats_params everything = {.fields = KEEL_FIELDS_ALL, .scale = 1};

static void observe(keel_stats *stats, const keel_site_info *info, const float *values, size_t n) {
    keel_stats_observe(stats, &everything, KEEL_F32, values, n);
    keel_stats_seal_rank(stats, (uint32_t)check_rank, info->replica_index, info->replica_count);
}

// ODD: the rank whose copy of the embedding has one bit changed.
static void fill(table_rig *r, int odd) {
    keel_frame *frame = r->frame;
    keel_frame_clear(frame);
    const uint32_t stage = stage_of((uint32_t)check_rank), ranks = ranks_of(stage), index = index_in_stage();
    CHECK(ranks > 0);
    uint32_t micro = 0;
    for (uint32_t s = 0; s < r->own.site_count; s++) {
        float values[ELEMENTS];
        const keel_site_info *info = &r->own.sites[s];
        make_values(values, info->name);
        keel_stats *stats = &keel_frame_stats(frame)[s];
        if (info->layout == KEEL_LAYOUT_REPLICA) {
            if (check_rank == odd) values[100] = nextafterf(values[100], 2);
            observe(stats, info, values, ELEMENTS);
        } else if (info->layout == KEEL_LAYOUT_SHARD) {
            const size_t begin = ELEMENTS * index / ranks, end = ELEMENTS * (index + 1) / ranks;
            observe(stats, info, values + begin, end - begin);
        } else {
            for (uint32_t m = 0; m < MICROS; m++) {
                const float value = (float)(1000 * info->layer + 100 * (int)m + check_rank + 1);
                observe(keel_frame_micro(frame, m, micro), info, &value, 1);
                keel_stats_merge(stats, keel_frame_micro(frame, m, micro));
            }
            micro++;
        }
    }
    keel_frame_scalars(frame)[0] = (keel_scalar_value){check_rank, (uint32_t)check_rank, KEEL_SCALAR_MAX};
    keel_frame_scalars(frame)[1] = (keel_scalar_value){1, (uint32_t)check_rank, KEEL_SCALAR_SUM};
    frame->step =
        (keel_step){.step = 5, .seconds = check_rank, .flags = check_rank == check_size - 1 ? KEEL_STEP_FAULT : 0};
}

static void drive(void) {
    for (bool done = false; !done;) {
        CHECK(merge.test(merge.context, &done) == KEEL_OK);
        if (!done) keel_nap(50000);
    }
}

static const keel_site_info *find(const table_rig *r, const char *name, uint32_t *id) {
    for (*id = 0; *id < r->whole.table.site_count; ++*id)
        if (strcmp(r->whole.table.sites[*id].name, name) == 0) return &r->whole.table.sites[*id];
    CHECK(*id < r->whole.table.site_count); // the site is there
    return NULL;
}

static const keel_stats *record_of(const table_rig *r, const keel_frame *frame, const char *name) {
    uint32_t id;
    find(r, name, &id);
    return &keel_frame_stats((keel_frame *)frame)[id];
}

static void check_whole_tensor(const table_rig *r, const keel_frame *frame, const char *name, uint32_t parts) {
    float values[ELEMENTS];
    make_values(values, name);
    keel_stats whole;
    keel_stats_clear(&whole);
    keel_stats_observe(&whole, &everything, KEEL_F32, values, ELEMENTS);
    const keel_stats *merged = record_of(r, frame, name);
    CHECK(merged->n == whole.n && merged->zeros == whole.zeros && merged->min == whole.min && merged->max == whole.max);
    CHECK(merged->checksum == whole.checksum && merged->not_bf16 == whole.not_bf16);
    CHECK(fabs(merged->sum_sq - whole.sum_sq) <= 1e-6 * whole.sum_sq);
    CHECK(merged->rank_parts == parts && merged->replica_residual == 0);
}

static void check_samples(const table_rig *r, keel_frame *frame, uint32_t stage, uint32_t layer) {
    uint32_t id, low = KEEL_RANK_NONE, high = 0, micro = 0;
    char name[32];
    snprintf(name, sizeof name, "layers.%u.out", layer);
    CHECK(find(r, name, &id)->stage == (int32_t)stage);
    for (uint32_t s = 0; s < id; s++) micro += keel_plan_is_per_micro(&r->whole.table.plans[s]);
    for (uint32_t rank = 0; rank < (uint32_t)check_size; rank++) {
        if (stage_of(rank) != stage) continue;
        if (low == KEEL_RANK_NONE) low = rank;
        high = rank;
    }
    CHECK(keel_frame_stats(frame)[id].rank_low == low && keel_frame_stats(frame)[id].rank_high == high);
    CHECK(keel_frame_stats(frame)[id].n == MICROS * ranks_of(stage));
    for (uint32_t m = 0; m < MICROS; m++) {
        const keel_stats *stats = keel_frame_micro(frame, m, micro);
        CHECK(stats->n == ranks_of(stage));
        CHECK(stats->min == 1000 * layer + 100 * m + low + 1 && stats->max == 1000 * layer + 100 * m + high + 1);
    }
}

static void check_order(const table_rig *r) {
    for (uint32_t s = 0; s < r->whole.table.site_count; s++) {
        CHECK(r->whole.table.sites[s].id == s);
        if (s > 0 && stages > 1) CHECK(keel_site_compare(&r->whole.table.sites[s - 1], &r->whole.table.sites[s]) <= 0);
    }
}

static void check_merged(const table_rig *r, keel_frame *frame, int odd) {
    const uint32_t embedding_ranks = stages == 1 ? ranks_of(0) : ranks_of(0) + ranks_of(stages - 1);
    uint32_t id;
    CHECK(find(r, "embedding.weight", &id)->stage == 0);
    if (odd < 0)
        check_whole_tensor(r, frame, "embedding.weight", embedding_ranks);
    else
        CHECK((record_of(r, frame, "embedding.weight")->replica_residual != 0) == (embedding_ranks > 1));
    for (uint32_t stage = 0; stage < stages; stage++)
        for (uint32_t l = stage * LAYERS; l < (stage + 1) * LAYERS; l++) {
            char name[32];
            snprintf(name, sizeof name, "layers.%u.weight", l);
            check_whole_tensor(r, frame, name, ranks_of(stage));
            check_samples(r, frame, stage, l);
        }
    for (uint32_t i = 0; i < r->whole.table.scalar_count; i++) {
        const keel_scalar_value *value = &keel_frame_scalars(frame)[i];
        unsigned stage;
        if (sscanf(r->whole.table.scalars[i].name, "stage_%u", &stage) == 1)
            CHECK(stage_of(value->owner) == stage && value->value == value->owner);
        else
            CHECK(value->value == check_size);
    }
    CHECK(frame->step.seconds == check_size - 1 && frame->step.flags == KEEL_STEP_FAULT);
}

static void run_stages(void) {
    const uint32_t stage = stage_of((uint32_t)check_rank);
    table_rig r = {0};
    CHECK(keel_probe_open((uint32_t)check_rank, &r.probe) == KEEL_OK);
    keel_probe_set_micro_count(r.probe, MICROS);
    register_stage(&r, stage);
    CHECK(keel_rank_table_open(r.probe, r.plans, &r.own) == KEEL_OK);
    if (merge.agree(merge.context, &r.own, &r.whole)) fprintf(stderr, "%s\n", keel_error()), abort();
    r.frame = new_frame(&r.own);
    if (check_rank == 0) {
        CHECK(r.whole.group_count == stages);
        CHECK(r.whole.table.site_count == 1 + 2 * LAYERS * stages && r.whole.table.scalar_count == stages + 1);
        check_order(&r);
        if (stages > 1) r.merged = new_frame(&r.whole.table);
    }
    for (int odd = -1; odd < check_size; odd++) {
        const uint32_t of = odd < 0 ? 0 : stage_of((uint32_t)odd);
        if (of != 0 && of != stages - 1) continue; // it holds no embedding
        fill(&r, odd);
        if (r.merged) keel_frame_clear(r.merged);
        CHECK(merge.reduce(merge.context, r.frame, r.merged) == KEEL_OK);
        drive();
        if (check_rank == 0) check_merged(&r, r.merged ? r.merged : r.frame, odd);
    }
    free(r.frame);
    free(r.merged);
    keel_whole_table_close(&r.whole);
    keel_rank_table_close(&r.own);
    keel_probe_close(r.probe);
}

int main(void) {
    int provided;
    check_begin(&provided);
    CHECK(keel_merge_mpi_open(MPI_COMM_WORLD, provided == MPI_THREAD_MULTIPLE, &merge) == KEEL_OK);
    for (stages = 1; stages <= 4 && stages <= (uint32_t)check_size; stages++)
        for (int way = 0; way < 2; way++) {
            interleaved = way;
            run_stages();
        }
    check_say("stages with tables of their own merge to the whole run");
    merge.close(merge.context, false);
    MPI_Finalize();
    return 0;
}
