#include "train/optim/optimizer.h"

#include <stdlib.h>
#include <string.h>

#include "train/optim/optimizer_state.h"

enum { BLOCK = KEEL_OPTIM_BLOCK };

static const keel_quantity quantities[KEEL_STEP_TAPS] = {
    [KEEL_STEP_EXP_AVG] = KEEL_EXP_AVG,
    [KEEL_STEP_EXP_AVG_SQ] = KEEL_EXP_AVG_SQ,
    [KEEL_STEP_DIRECTION] = KEEL_ADAM_DIRECTION,
    [KEEL_STEP_UPDATE] = KEEL_UPDATE,
    [KEEL_STEP_WEIGHT] = KEEL_WEIGHT,
};

// One number of a parameter, the same on every rank of the stages that hold it.
static keel_status add_rms_tap(keel_optimizer *o, keel_taps *taps, const keel_param *param, keel_site_info info,
                               keel_tap **tap) {
    const keel_comm *stage = &o->zero->mesh->stage;
    info.quantity = KEEL_ADAM_RMS;
    info.layout = KEEL_LAYOUT_REPLICA;
    info.ndim = 1;
    info.shape[0] = info.numel = 1;
    info.replica_index = param->holder * (uint32_t)stage->size + (uint32_t)stage->rank;
    info.replica_count = param->holders * (uint32_t)stage->size;
    return keel_taps_add(taps, &info, tap);
}

static keel_status add_taps(keel_optimizer *o, const keel_model *model, keel_taps *taps) {
    const uint32_t whole = keel_model_whole_param_count(model);
    for (size_t i = 0; i < o->param_count; i++) {
        keel_site_info info = {.dtype = KEEL_F32};
        keel_zero_describe(o->zero, &o->params[i], &info);
        info.quantity = KEEL_GRAD_REDUCED;
        info.phase = KEEL_PHASE_REDUCTION;
        info.order = KEEL_ORDER_GRAD_REDUCED + whole - 1 - o->params[i].number;
        keel_status status = keel_taps_add(taps, &info, &o->taps[i].grad);
        if (status == KEEL_OK) o->taps[i].grad->numel = o->params[i].numel;
        info.phase = KEEL_PHASE_OPTIMIZER;
        for (uint32_t q = 0; q < KEEL_STEP_TAPS && status == KEEL_OK; q++) {
            info.quantity = quantities[q];
            info.order = o->params[i].number * KEEL_STEP_TAPS + q;
            status = keel_taps_add(taps, &info, &o->taps[i].step[q]);
            if (status == KEEL_OK) o->taps[i].step[q]->numel = o->params[i].numel;
        }
        if (status == KEEL_OK) status = add_rms_tap(o, taps, &o->params[i], info, &o->taps[i].rms);
        if (status != KEEL_OK) return status;
    }
    return KEEL_OK;
}

static keel_collective_place behind(keel_phase phase) {
    return (keel_collective_place){.phase = phase, .order = KEEL_ORDER_BEHIND_PARAMS, .layer = -1};
}

static keel_status add_gathers(keel_optimizer *o, keel_collectives *collectives) {
    const keel_zero *zero = o->zero;
    keel_status status = KEEL_OK;
    for (size_t b = 0; zero->shared && status == KEEL_OK && b < zero->count; b++) {
        const keel_zero_bucket *bucket = &zero->buckets[b];
        char name[64];
        if (bucket->comm->size == 1) continue;
        snprintf(name, sizeof name, "all_gather.weights.%zu", b);
        status = keel_collectives_add(collectives,
                                      &(keel_collective_plan){.name = name,
                                                              .kind = KEEL_ALL_GATHER,
                                                              .when = KEEL_EVERY_STEP,
                                                              .dtype = KEEL_F32,
                                                              .count = bucket->count,
                                                              .share = bucket->share,
                                                              .comm = bucket->comm,
                                                              .place = behind(KEEL_PHASE_OPTIMIZER)},
                                      &o->gathers[b]);
    }
    return status;
}

static keel_status add_sum(keel_collectives *collectives, const char *name, keel_collective_place place, size_t count,
                           const keel_comm *comm, keel_collective **sum) {
    if (comm->size == 1) return KEEL_OK;
    return keel_collectives_add(collectives,
                                &(keel_collective_plan){.name = name,
                                                        .kind = KEEL_ALL_REDUCE,
                                                        .when = KEEL_EVERY_STEP,
                                                        .dtype = KEEL_F64,
                                                        .count = count,
                                                        .comm = comm,
                                                        .op = MPI_SUM,
                                                        .place = place},
                                sum);
}

static keel_status add_collectives(keel_optimizer *o, keel_collectives *collectives) {
    const keel_mesh *mesh = o->zero->mesh;
    if (!o->zero->cut) return KEEL_OK;
    keel_status status = add_sum(collectives, "all_reduce.grad_norm", behind(KEEL_PHASE_REDUCTION), 2 + o->groups.count,
                                 &mesh->world, &o->norm);
    if (!status) status = add_gathers(o, collectives);
    if (!status)
        status = add_sum(collectives, "all_reduce.adam_rms", behind(KEEL_PHASE_OPTIMIZER), o->param_count, &mesh->stage,
                         &o->rms);
    return status;
}

// ---- blocks, passes, shares ----

static size_t blocks_of(const keel_zero_span *span) {
    return (span->count + BLOCK - 1) / BLOCK;
}

static void cut_blocks(keel_optimizer *o) {
    size_t k = 0;
    for (size_t i = 0; i < o->zero->span_count; i++) {
        const keel_zero_span *span = &o->zero->spans[i];
        for (size_t at = 0; at < span->count; at += BLOCK, k++) {
            const size_t rest = span->count - at;
            o->blocks[k] = (keel_optim_block){.param = (uint32_t)span->param,
                                              .n = (uint32_t)(rest < BLOCK ? rest : BLOCK),
                                              .offset = span->offset + at,
                                              .at = span->at + at};
        }
    }
}

// Blocks [BEGIN, END), in shares of equal numbers of elements.
static void share_out(const keel_optimizer *o, size_t begin, size_t end, keel_optim_pass *pass) {
    const size_t first = begin < end ? o->blocks[begin].at : 0;
    const size_t numel = begin < end ? o->blocks[end - 1].at + o->blocks[end - 1].n - first : 0;
    size_t b = begin;
    for (size_t t = 0; t < (size_t)o->threads; t++) {
        while (b < end && o->blocks[b].at < first + numel / (size_t)o->threads * t) b++;
        pass->first_block[t] = b;
    }
    pass->first_block[o->threads] = end;
}

static size_t window_of(const keel_optimizer *o, size_t block) {
    if (o->block_count && block >= o->block_count) block = o->block_count - 1;
    return o->offload ? keel_offload_window_of(o->offload, o->blocks[block].at) : 0;
}

static void add_pass(keel_optimizer *o, size_t begin, size_t end, size_t bucket, bool completes) {
    keel_optim_pass *pass = &o->passes[o->pass_count++];
    *pass = (keel_optim_pass){.first_block = o->shares + o->pass_count * ((size_t)o->threads + 1),
                              .bucket = bucket,
                              .completes = completes,
                              .window = window_of(o, begin)};
    share_out(o, begin, end, pass);
}

// The update goes bucket by bucket where weights are to be gathered, so that one bucket's are on their way while the
// next is updated, and window by window where states are offloaded.
static void plan_passes(keel_optimizer *o) {
    const keel_zero *zero = o->zero;
    o->all.first_block = o->shares;
    share_out(o, 0, o->block_count, &o->all);
    for (size_t b = 0, begin = 0; b < (zero->shared ? zero->count : 1); b++) {
        size_t end = zero->shared ? begin : o->block_count;
        for (size_t s = 0; zero->shared && s < zero->buckets[b].span_count; s++)
            end += blocks_of(&zero->spans[zero->buckets[b].first_span + s]);
        for (size_t k = begin + 1; k < end; k++) {
            if (window_of(o, k) == window_of(o, begin)) continue;
            add_pass(o, begin, k, b, false);
            begin = k;
        }
        add_pass(o, begin, end, b, zero->shared);
        begin = end;
    }
}

static void plan_memory(keel_optimizer *o) {
    static const char *const names[] = {"exp_avg", "exp_avg_sq"};
    for (size_t s = 0; s < KEEL_OFFLOAD_STATES; s++)
        o->states[s] = (keel_optimizer_state){names[s], o->offload ? keel_offload_state(o->offload, s)
                                                                   : keel_arena_take(&o->arena, o->zero->own_numel)};
    for (int t = 0; t < o->threads; t++) {
        o->updates[t] = keel_arena_take(&o->arena, BLOCK);
        o->directions[t] = keel_arena_take(&o->arena, BLOCK);
        // Who observes a block reads ahead of it: not into what another thread writes.
        (void)keel_arena_take(&o->arena, BLOCK);
    }
}

static keel_status allocate(keel_optimizer *o) {
    const size_t threads = (size_t)o->threads, groups = o->config.group_count + 1;
    const size_t passes = (o->zero->shared ? o->zero->count : 1) + (o->offload ? keel_offload_windows(o->offload) : 0);
    for (size_t i = 0; i < o->zero->span_count; i++) o->block_count += blocks_of(&o->zero->spans[i]);
    o->counts = calloc(2 * o->param_count, sizeof *o->counts);
    o->taps = calloc(o->param_count, sizeof *o->taps);
    o->blocks = calloc(o->block_count + 1, sizeof *o->blocks);
    o->block_sums = calloc(o->block_count + 1, sizeof *o->block_sums);
    o->shares = calloc((passes + 1) * (threads + 1), sizeof *o->shares);
    o->passes = calloc(passes, sizeof *o->passes);
    o->updates = calloc(threads, sizeof(float *));
    o->directions = calloc(threads, sizeof(float *));
    o->watches = aligned_alloc(_Alignof(keel_watch), threads * sizeof *o->watches);
    o->group_sums = calloc(groups, sizeof *o->group_sums);
    o->group_clip = calloc(groups, sizeof *o->group_clip);
    o->gathers = calloc(o->zero->count, sizeof(keel_collective *));
    o->norm_sums = calloc(groups + 2, sizeof *o->norm_sums);
    o->counts_in_stage = o->counts ? o->counts + o->param_count : NULL;
    o->rms_sums = calloc(o->param_count, sizeof *o->rms_sums);
    if (o->watches) memset(o->watches, 0, threads * sizeof *o->watches);
    if (o->counts && o->taps && o->blocks && o->block_sums && o->shares && o->passes && o->updates && o->directions &&
        o->watches && o->group_sums && o->group_clip && o->gathers && o->norm_sums && o->rms_sums)
        return KEEL_OK;
    return keel_fail(KEEL_ERR_MEMORY, "no memory for the optimizer");
}

keel_status keel_optimizer_open(const keel_optimizer_plan *given, keel_optimizer **optimizer) {
    size_t param_count;
    const keel_param *params = keel_model_params(given->model, &param_count);
    if (!param_count) return keel_fail(KEEL_ERR_USAGE, "an optimizer of a model without parameters");
    keel_optimizer *o = calloc(1, sizeof *o);
    if (!o) return keel_fail(KEEL_ERR_MEMORY, "no memory for the optimizer");
    o->config = *given->config;
    o->params = params;
    o->param_count = param_count;
    o->weights = keel_model_weights(given->model);
    o->zero = given->zero;
    o->threads = keel_taps_threads(given->taps);
    keel_status status = KEEL_OK;
    if (o->config.offload.folder) status = keel_offload_open(&o->config.offload, o->zero->own_numel, &o->offload);
    if (status == KEEL_OK) status = allocate(o);
    if (status == KEEL_OK)
        status = keel_groups_open(given->config, o->params, o->param_count, o->zero->mesh->pp > 1, &o->groups);
    if (status == KEEL_OK) status = add_taps(o, given->model, given->taps);
    if (status == KEEL_OK) status = add_collectives(o, given->collectives);
    if (status == KEEL_OK) {
        // Beside the weights, the first piece of the model, and the gradients, the first of another arena.
        o->arena.pieces = o->arena.first = 1;
        plan_memory(o);
        status = keel_arena_allocate(&o->arena);
    }
    if (status != KEEL_OK) {
        keel_optimizer_close(o);
        return status;
    }
    plan_memory(o);
    for (size_t i = 0; i < param_count; i++) {
        o->counts[i] = !o->zero->cut || keel_zero_counts(o->zero, &params[i]);
        o->counts_in_stage[i] = !o->zero->cut || keel_zero_counts_in_stage(o->zero, &params[i]);
    }
    cut_blocks(o);
    plan_passes(o);
    *optimizer = o;
    return KEEL_OK;
}

bool keel_optimizer_uses_group(const keel_optimizer *optimizer, size_t group) {
    return optimizer->groups.used[group];
}

void keel_optimizer_close(keel_optimizer *optimizer) {
    if (!optimizer) return;
    keel_groups_close(&optimizer->groups);
    keel_offload_close(optimizer->offload);
    keel_arena_free(&optimizer->arena);
    free(optimizer->counts);
    free(optimizer->taps);
    free(optimizer->blocks);
    free(optimizer->block_sums);
    free(optimizer->shares);
    free(optimizer->passes);
    free(optimizer->updates);
    free(optimizer->directions);
    free(optimizer->watches);
    free(optimizer->group_sums);
    free(optimizer->group_clip);
    free(optimizer->gathers);
    free(optimizer->norm_sums);
    free(optimizer->rms_sums);
    free(optimizer);
}

const keel_optimizer_state *keel_optimizer_states(keel_optimizer *optimizer, size_t *count) {
    *count = 2;
    return optimizer->states;
}

size_t keel_optimizer_bytes(const keel_optimizer *optimizer) {
    return optimizer->arena.size + (optimizer->offload ? keel_offload_memory(optimizer->offload) : 0);
}

size_t keel_optimizer_disk(const keel_optimizer *optimizer) {
    return optimizer->offload ? keel_offload_disk(optimizer->offload) : 0;
}

double keel_optimizer_waited(const keel_optimizer *optimizer) {
    return optimizer->offload ? keel_offload_waited(optimizer->offload) : 0;
}

size_t keel_optimizer_portion(const keel_optimizer *optimizer) {
    return optimizer->config.offload.folder ? keel_offload_portion(&optimizer->config.offload) : SIZE_MAX;
}

void keel_optimizer_rest(keel_optimizer *optimizer) {
    if (optimizer->offload) keel_offload_rest(optimizer->offload);
}

keel_status keel_optimizer_check(keel_optimizer *optimizer) {
    return optimizer->offload ? keel_offload_check(optimizer->offload) : KEEL_OK;
}

keel_tap *keel_optimizer_grad_tap(keel_optimizer *optimizer, size_t param) {
    return optimizer->taps[param].grad;
}

// Whether the optimizer passes TAP, of PARAM, with the elements that it owns alone.
static bool passes_own(const keel_optimizer *o, size_t param, const keel_tap *tap) {
    bool is = o->taps[param].grad == tap;
    for (uint32_t q = 0; q < KEEL_STEP_TAPS; q++) is |= o->taps[param].step[q] == tap;
    return is;
}

keel_status keel_optimizer_check_fault(const keel_optimizer *optimizer, const keel_fault_config *fault,
                                       const keel_tap *tap) {
    const keel_optimizer *o = optimizer;
    const keel_comm *world = &o->zero->mesh->world;
    size_t param = 0;
    if (!tap || !o->zero->shared || fault->kind != KEEL_FAULT_NAN || fault->rank != world->rank) return KEEL_OK;
    while (param < o->param_count && !passes_own(o, param, tap)) param++;
    if (param == o->param_count) return KEEL_OK;
    int owner = world->rank;
    const keel_status status = keel_zero_owner(o->zero, o->params[param].offset + (size_t)fault->index, &owner);
    if (status || owner == world->rank) return status;
    return keel_yaml_fail_key(fault->node, "rank",
                              "with parallel_config.enable_parallel_optimizer element %lld of %s %s is rank %d's, not "
                              "rank %d's",
                              (long long)fault->index, fault->site, fault->quantity, owner, world->rank);
}
