#include "train/reshard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/model/parameters.h"

enum { WINDOW = 1 << 20 };

struct keel_reshard {
    keel_reshard_plan plan;
    const keel_param *params;
    size_t param_count;
    bool *first; // [parameter] of the copies of this rank's part, this one is the first
    keel_whole_list whole, hf;
    size_t numel, window;
    float *data; // [window]
    MPI_Op either;
    keel_collective *gather, *scatter, *least; // NULL where they are not needed
};

// ---- what the whole model is ----

static void name_params(const keel_parameters *single, keel_whole_list *whole) {
    for (size_t i = 0; i < single->count; i++) {
        const keel_param *p = &single->list[i];
        keel_whole_tensor *t = &whole->list[whole->count++];
        *t = (keel_whole_tensor){.ndim = p->ndim, .begin = p->place, .numel = p->whole_numel};
        memcpy(t->name, p->name, sizeof t->name);
        memcpy(t->shape, p->whole, sizeof t->shape);
    }
}

static void name_hf(const keel_parameters *single, keel_whole_list *hf) {
    for (size_t i = 0; i < single->hf_count; i++) {
        const keel_hf_tensor *from = &single->hf[i];
        const keel_param *p = &single->list[from->param];
        keel_whole_tensor *t = &hf->list[hf->count++];
        *t = (keel_whole_tensor){.ndim = from->ndim, .begin = p->place + from->row * keel_param_cols(p), .numel = 1};
        for (uint32_t d = 0; d < t->ndim; d++) t->numel *= from->shape[d];
        memcpy(t->name, from->name, sizeof t->name);
        memcpy(t->shape, from->shape, sizeof t->shape);
    }
}

static int by_begin(const void *a, const void *b) {
    const keel_whole_tensor *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

// Files are written from end to end.
static keel_status check_tiling(const keel_whole_list *tensors, size_t numel) {
    size_t at = 0;
    for (size_t i = 0; i < tensors->count; i++) {
        const keel_whole_tensor *t = &tensors->list[i];
        if (t->begin != at)
            return keel_fail(KEEL_ERR_USAGE, "tensor %s begins at %zu of the whole model, not at %zu", t->name,
                             t->begin, at);
        at += t->numel;
    }
    if (at == numel) return KEEL_OK;
    return keel_fail(KEEL_ERR_USAGE, "the tensors of a model of %zu parameters hold %zu", numel, at);
}

// The parameters of a single rank, without a model of them.
static keel_status describe_whole(keel_reshard *made) {
    const keel_mesh alone = keel_mesh_alone();
    keel_context context;
    keel_parameters single;
    keel_status status = keel_context_init(made->plan.config, 1, 1, &alone, &context);
    if (!status) status = keel_parameters_build(&context, &single);
    if (status) return status;
    made->whole.list = calloc(single.count, sizeof *made->whole.list);
    made->hf.list = calloc(single.hf_count, sizeof *made->hf.list);
    if (made->whole.list && made->hf.list) {
        name_params(&single, &made->whole);
        name_hf(&single, &made->hf);
        qsort(made->hf.list, made->hf.count, sizeof *made->hf.list, by_begin);
        made->numel = single.numel;
        status = check_tiling(&made->whole, made->numel);
        if (!status) status = check_tiling(&made->hf, made->numel);
    } else {
        status = keel_fail(KEEL_ERR_MEMORY, "no memory for the list of %zu parameters", single.count);
    }
    keel_parameters_free(&single);
    return status;
}

// ---- open, close ----

// One rank has the bits of an element, the others zeros.
static void either(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)type;
    const uint32_t *x = in;
    uint32_t *y = inout;
    for (int i = 0; i < *count; i++) y[i] |= x[i];
}

static keel_status add(keel_reshard *made, const char *name, keel_collective_kind kind, keel_dtype dtype, size_t count,
                       MPI_Op op, keel_collective **collective) {
    return keel_collectives_add(made->plan.collectives,
                                &(keel_collective_plan){.name = name,
                                                        .kind = kind,
                                                        .when = KEEL_AT_CHECKPOINT,
                                                        .dtype = dtype,
                                                        .count = count,
                                                        .comm = &made->plan.zero->mesh->world,
                                                        .op = op},
                                collective);
}

static keel_status add_collectives(keel_reshard *made) {
    keel_status status = KEEL_OK;
    if (made->plan.zero->mesh->world.size == 1) return KEEL_OK;
    if (!keel_reshard_alone(made)) {
        if (MPI_Op_create(either, 1, &made->either) != MPI_SUCCESS) {
            made->either = MPI_OP_NULL;
            return keel_fail(KEEL_ERR_COMM, "MPI made no operation for checkpoints");
        }
        status = add(made, "reduce.checkpoint", KEEL_REDUCE, KEEL_F32, made->window, made->either, &made->gather);
        if (!status) status = add(made, "all_reduce.checkpoint", KEEL_ALL_REDUCE, KEEL_F64, 1, MPI_MIN, &made->least);
    }
    if (!status)
        status = add(made, "broadcast.checkpoint", KEEL_BROADCAST, KEEL_F32, made->window, MPI_OP_NULL, &made->scatter);
    return status;
}

keel_status keel_reshard_open(const keel_reshard_plan *plan, keel_reshard **reshard) {
    keel_reshard *made = calloc(1, sizeof *made);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "no memory to bring tensors together");
    made->plan = *plan;
    made->either = MPI_OP_NULL;
    made->params = keel_model_params(plan->model, &made->param_count);
    keel_status status = describe_whole(made);
    if (!status) {
        size_t most = plan->window ? plan->window : WINDOW;
        if (most > keel_optimizer_portion(plan->optimizer)) most = keel_optimizer_portion(plan->optimizer);
        made->window = made->numel < most ? made->numel : most;
        made->data = calloc(made->window, sizeof *made->data);
        made->first = calloc(made->param_count, sizeof *made->first);
        if (!made->data || !made->first) status = keel_fail(KEEL_ERR_MEMORY, "no memory to bring tensors together");
    }
    if (!status) status = add_collectives(made);
    if (status) {
        keel_reshard_close(made);
        return status;
    }
    for (size_t i = 0; i < made->param_count; i++) {
        keel_site_info info;
        keel_param_describe(&made->params[i], plan->zero->mesh, &info);
        made->first[i] = info.replica_index == 0;
    }
    *reshard = made;
    return KEEL_OK;
}

void keel_reshard_close(keel_reshard *reshard) {
    if (!reshard) return;
    if (reshard->either != MPI_OP_NULL) MPI_Op_free(&reshard->either);
    free(reshard->whole.list);
    free(reshard->hf.list);
    free(reshard->data);
    free(reshard->first);
    free(reshard);
}

const keel_whole_list *keel_reshard_params(const keel_reshard *reshard) {
    return &reshard->whole;
}
const keel_whole_list *keel_reshard_hf(const keel_reshard *reshard) {
    return &reshard->hf;
}
size_t keel_reshard_numel(const keel_reshard *reshard) {
    return reshard->numel;
}
size_t keel_reshard_window(const keel_reshard *reshard) {
    return reshard->window;
}
bool keel_reshard_alone(const keel_reshard *reshard) {
    return !reshard->plan.zero->cut;
}
bool keel_reshard_leads(const keel_reshard *reshard) {
    return reshard->plan.zero->mesh->world.rank == 0;
}
float *keel_reshard_data(keel_reshard *reshard) {
    return reshard->data;
}

// NULL beyond the last.
static float *buffer_at(const keel_reshard *r, size_t buffer, const char **name) {
    size_t count;
    const keel_optimizer_state *states = keel_optimizer_states(r->plan.optimizer, &count);
    if (buffer > count) return NULL;
    *name = buffer ? states[buffer - 1].name : "model";
    return buffer ? states[buffer - 1].data : keel_model_weights(r->plan.model);
}

const char *keel_reshard_name(const keel_reshard *reshard, size_t buffer) {
    const char *name = NULL;
    (void)buffer_at(reshard, buffer, &name);
    return name;
}

// ---- a window ----

typedef struct window {
    size_t begin, end; // in the whole
    float *data;       // of its elements
    float *buffer;     // what this rank holds
    bool give;         // from BUFFER to DATA; else the other way
} window;

// N elements, at PLACE of the whole and at AT of the buffer.
static void move(const window *w, size_t place, size_t at, size_t n) {
    float *inside = w->data + (place - w->begin);
    if (w->give)
        memcpy(inside, w->buffer + at, n * sizeof *inside);
    else
        memcpy(w->buffer + at, inside, n * sizeof *inside);
}

// The same of a state: AT counts in the flat buffers, of which this rank owns some spans.
static void move_owned(const keel_zero *zero, const window *w, size_t place, size_t at, size_t n) {
    size_t low = 0, high = zero->span_count; // the first span that ends behind AT
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (zero->spans[middle].offset + zero->spans[middle].count <= at)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < zero->span_count && zero->spans[low].offset < at + n; low++) {
        const keel_zero_span *span = &zero->spans[low];
        const size_t begin = span->offset > at ? span->offset : at;
        const size_t end = span->offset + span->count < at + n ? span->offset + span->count : at + n;
        move(w, place + (begin - at), span->at + (begin - span->offset), end - begin);
    }
}

static void move_run(const keel_reshard *r, const window *w, bool state, size_t place, size_t at, size_t n) {
    const size_t begin = place > w->begin ? place : w->begin, end = place + n < w->end ? place + n : w->end;
    if (begin >= end) return;
    at += begin - place;
    if (state)
        move_owned(r->plan.zero, w, begin, at, end - begin);
    else
        move(w, begin, at, end - begin);
}

static void move_piece(const keel_reshard *r, const window *w, bool state, const keel_param *p,
                       const keel_piece *piece) {
    const size_t cols = keel_param_cols(p), begin = p->place + piece->row * cols + piece->col;
    const size_t at = p->offset + piece->local_offset;
    if (piece->cols == cols && piece->local_stride == cols) {
        move_run(r, w, state, begin, at, piece->rows * cols);
        return;
    }
    size_t row = w->begin > begin ? (w->begin - begin) / cols : 0;
    for (; row < piece->rows && begin + row * cols < w->end; row++)
        move_run(r, w, state, begin + row * cols, at + row * piece->local_stride, piece->cols);
}

static void move_window(const keel_reshard *r, const window *w, size_t buffer) {
    for (size_t i = 0; i < r->param_count; i++) {
        const keel_param *p = &r->params[i];
        if (p->place + p->whole_numel <= w->begin || p->place >= w->end) continue;
        const bool counts = buffer ? keel_zero_counts(r->plan.zero, p) : r->first[i];
        if (w->give && !keel_reshard_alone(r) && !counts) continue;
        for (size_t k = 0; k < p->piece_count; k++) move_piece(r, w, buffer > 0, p, &p->pieces[k]);
    }
    if (buffer) keel_optimizer_rest(r->plan.optimizer);
}

static window window_at(keel_reshard *r, size_t buffer, size_t begin, bool give) {
    const char *name;
    const size_t rest = r->numel - begin;
    return (window){.begin = begin,
                    .end = begin + (rest < r->window ? rest : r->window),
                    .data = r->data,
                    .buffer = buffer_at(r, buffer, &name),
                    .give = give};
}

keel_status keel_reshard_gather(keel_reshard *reshard, size_t buffer, size_t begin, const float **data) {
    const window w = window_at(reshard, buffer, begin, true);
    if (reshard->gather) memset(reshard->data, 0, reshard->window * sizeof *reshard->data);
    move_window(reshard, &w, buffer);
    const keel_status status = reshard->gather ? keel_reduce(reshard->gather, reshard->data) : KEEL_OK;
    if (!status) *data = reshard->data;
    return status;
}

keel_status keel_reshard_scatter(keel_reshard *reshard, size_t buffer, size_t begin) {
    const keel_status status = reshard->scatter ? keel_broadcast(reshard->scatter, reshard->data) : KEEL_OK;
    const window w = window_at(reshard, buffer, begin, false);
    if (!status) move_window(reshard, &w, buffer);
    return status;
}

keel_status keel_reshard_check(keel_reshard *reshard) {
    const keel_status status = keel_optimizer_check(reshard->plan.optimizer);
    return keel_reshard_alone(reshard) ? status : keel_agree(&reshard->plan.zero->mesh->world, status);
}

keel_status keel_reshard_level(keel_reshard *reshard, size_t buffer) {
    keel_status status = KEEL_OK;
    const float *data;
    for (size_t at = 0; reshard->scatter && !status && at < reshard->numel; at += reshard->window) {
        status = keel_reshard_gather(reshard, buffer, at, &data);
        if (!status) status = keel_reshard_scatter(reshard, buffer, at);
    }
    return status;
}

// ---- what is not finite ----

static bool nonfinite(const float *data, size_t n) {
    keel_stats stats;
    keel_stats_clear(&stats);
    keel_stats_observe(&stats, &(keel_stats_params){.fields = KEEL_FIELDS_FLAGS}, KEEL_F32, data, n);
    return keel_stats_nonfinite(&stats);
}

// A span of BUFFER.
static bool span_nonfinite(keel_reshard *r, size_t buffer, const keel_zero_span *span, const float *data) {
    const size_t portion = keel_optimizer_portion(r->plan.optimizer);
    const float *first = data + (buffer ? span->at : span->offset);
    bool found = false;
    for (size_t at = 0, n; !found && at < span->count; at += n) {
        n = span->count - at < portion ? span->count - at : portion;
        found = nonfinite(first + at, n);
        if (buffer) keel_optimizer_rest(r->plan.optimizer);
    }
    return found;
}

double keel_reshard_nonfinite(keel_reshard *reshard) {
    const keel_zero *zero = reshard->plan.zero;
    const char *name;
    const float *data;
    for (size_t buffer = 0; (data = buffer_at(reshard, buffer, &name)); buffer++)
        for (size_t s = 0; s < zero->span_count; s++) {
            const keel_zero_span *span = &zero->spans[s];
            if (span_nonfinite(reshard, buffer, span, data))
                return (double)(buffer * reshard->numel + reshard->params[span->param].place);
        }
    return INFINITY;
}

keel_status keel_reshard_least(keel_reshard *reshard, double *value) {
    return reshard->least ? keel_all_reduce(reshard->least, value) : KEEL_OK;
}

void keel_reshard_name_nonfinite(const keel_reshard *reshard, double value, char *name) {
    const size_t at = (size_t)value, buffer = at / reshard->numel, place = at % reshard->numel;
    size_t i = 0;
    while (i + 1 < reshard->whole.count && reshard->whole.list[i + 1].begin <= place) i++;
    snprintf(name, KEEL_SITE_NAME_BYTES + 32, "%s.%s", keel_reshard_name(reshard, buffer), reshard->whole.list[i].name);
}
