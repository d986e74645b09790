#include "train/parallel/zero.h"

#include <stdlib.h>

// ALIGN: elements of a cache line. The orders of all buckets' sites must stay below KEEL_ORDER_GRAD_REDUCED.
enum { ALIGN = 16, MAX_BUCKETS = 30000 };

static bool of_expert(const keel_param *param) {
    return param->cut == KEEL_CUT_EXPERT || param->cut == KEEL_CUT_EXPERT_TENSOR;
}

static const keel_comm *holders(const keel_mesh *mesh, const keel_param *param) {
    return of_expert(param) ? &mesh->expert_data_parallel : &mesh->data_parallel;
}

typedef struct run { // parameters, one after another, that the same ranks hold
    const keel_comm *comm;
    size_t begin, end; // in the flat buffers
} run;

// The run that begins with parameter *NEXT, which becomes the first one behind it.
static run run_from(const keel_mesh *mesh, const keel_param *params, size_t count, size_t *next) {
    size_t i = *next;
    run r = {.comm = holders(mesh, &params[i]), .begin = params[i].offset};
    // A table that two stages hold is cut alike on both, so that its ranks add it up in the same order.
    while (i < count && holders(mesh, &params[i]) == r.comm && params[i].holders == params[*next].holders) i++;
    r.end = params[i - 1].offset + params[i - 1].numel;
    *next = i;
    return r;
}

// Where there is nothing to reduce, one bucket is enough.
static size_t size_of(const run *r, size_t bucket_bytes) {
    const size_t size = bucket_bytes / sizeof(float);
    if (r->comm->size == 1) return r->end - r->begin;
    return size ? size : 1;
}

static void cut_run(const run *r, size_t size, keel_zero *zero) {
    for (size_t k = (r->end - r->begin + size - 1) / size; k-- > 0;) {
        const size_t end = r->end - k * size, begin = end - r->begin > size ? end - size : r->begin;
        const size_t ranks = (size_t)r->comm->size, count = end - begin;
        const size_t piece = ((count + ranks - 1) / ranks + ALIGN - 1) / ALIGN * ALIGN;
        zero->buckets[zero->count++] = (keel_zero_bucket){
            .comm = r->comm, .begin = begin, .count = count, .share = zero->shared && ranks > 1 ? piece : count};
    }
}

static void own(const keel_param *params, size_t param_count, keel_zero *zero) {
    size_t param = 0;
    for (size_t b = 0; b < zero->count; b++) {
        keel_zero_bucket *bucket = &zero->buckets[b];
        size_t from = zero->shared ? (size_t)bucket->comm->rank * bucket->share : 0;
        if (from > bucket->count) from = bucket->count;
        size_t to = bucket->count - from > bucket->share ? from + bucket->share : bucket->count;
        bucket->first_span = zero->span_count;
        for (size_t at = bucket->begin + from; at < bucket->begin + to;) {
            while (param + 1 < param_count && params[param + 1].offset <= at) param++;
            size_t end = params[param].offset + params[param].numel;
            if (end > bucket->begin + to) end = bucket->begin + to;
            zero->spans[zero->span_count++] =
                (keel_zero_span){.param = param, .offset = at, .at = zero->own_numel, .count = end - at};
            zero->own_numel += end - at;
            at = end;
        }
        bucket->span_count = zero->span_count - bucket->first_span;
    }
}

keel_status keel_zero_open(const keel_model *model, const keel_mesh *mesh, size_t bucket_bytes, bool share,
                           keel_zero *zero) {
    size_t param_count, buckets = 0;
    const keel_param *params = keel_model_params(model, &param_count);
    keel_zero made = {.shared = share && mesh->dp > 1, .mesh = mesh};
    made.cut = made.shared || mesh->tp > 1 || mesh->pp > 1 || mesh->ep > 1;
    for (size_t next = 0; next < param_count;) {
        const run r = run_from(mesh, params, param_count, &next);
        buckets += (r.end - r.begin + size_of(&r, bucket_bytes) - 1) / size_of(&r, bucket_bytes);
    }
    if (buckets > MAX_BUCKETS)
        return keel_yaml_fail_key(mesh->settings, "bucket_bytes", "%zu makes %zu buckets of %zu gradients, at most %d",
                                  bucket_bytes, buckets, keel_model_numel(model), MAX_BUCKETS);
    made.buckets = calloc(buckets + 1, sizeof *made.buckets);
    made.spans = calloc(buckets + param_count + 1, sizeof *made.spans);
    if (!made.buckets || !made.spans) {
        keel_zero_close(&made);
        return keel_fail(KEEL_ERR_MEMORY, "no memory for %zu gradient buckets", buckets);
    }
    for (size_t next = 0; next < param_count;) {
        const run r = run_from(mesh, params, param_count, &next);
        cut_run(&r, size_of(&r, bucket_bytes), &made);
    }
    own(params, param_count, &made);
    *zero = made;
    return KEEL_OK;
}

void keel_zero_close(keel_zero *zero) {
    free(zero->buckets);
    free(zero->spans);
    *zero = (keel_zero){0};
}

bool keel_zero_counts(const keel_zero *zero, const keel_param *param) {
    keel_site_info info;
    keel_zero_describe(zero, param, &info);
    return info.replica_index == 0;
}

bool keel_zero_counts_in_stage(const keel_zero *zero, const keel_param *param) {
    keel_site_info info;
    keel_zero_describe(zero, param, &info);
    return info.replica_index % (info.replica_count / param->holders) == 0;
}

void keel_zero_describe(const keel_zero *zero, const keel_param *param, keel_site_info *info) {
    if (!zero->shared) {
        keel_param_describe(param, zero->mesh, info);
        return;
    }
    keel_param_describe_partial(param, zero->mesh, info);
    info->layout = KEEL_LAYOUT_SHARD;
    info->replica_index += param->holder * info->replica_count;
    info->replica_count *= param->holders;
}

keel_status keel_zero_owner(const keel_zero *zero, size_t offset, int *rank) {
    size_t b = 0;
    while (offset - zero->buckets[b].begin >= zero->buckets[b].count) b++;
    const keel_zero_bucket *bucket = &zero->buckets[b];
    const int owner = (int)((offset - bucket->begin) / bucket->share);
    if (bucket->comm->size == 1) {
        *rank = zero->mesh->world.rank;
        return KEEL_OK;
    }
    MPI_Group holders, world;
    MPI_Comm_group(bucket->comm->mpi, &holders);
    MPI_Comm_group(zero->mesh->world.mpi, &world);
    const int code = MPI_Group_translate_ranks(holders, 1, &owner, world, rank);
    MPI_Group_free(&holders);
    MPI_Group_free(&world);
    return code == MPI_SUCCESS ? KEEL_OK
                               : keel_fail(KEEL_ERR_COMM, "MPI knows no rank %d of %s", owner, bucket->comm->name);
}
