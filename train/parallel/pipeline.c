#include "train/parallel/pipeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/model/places.h"
#include "train/tensor/arena.h"

// OUTS: streams that may be on their way to the next stage. DSTREAMS: one gradient comes in, one is worked on, one goes
// out.
enum { OUTS = 2, DSTREAMS = 3 };

struct keel_pipeline {
    keel_pipeline_plan plan;
    size_t slots;
    keel_collective *stream_in, *stream_out; // NULL at the ends
    keel_collective *grad_in, *grad_out;
    keel_arena arena;
    float **streams; // [slots + 1]: of every slot, and one that comes in
    float *outs[OUTS];
    float *dstreams[DSTREAMS];
    uint32_t *tokens; // [B, T + 1]
    size_t token_count;
    // Of the present run.
    keel_next_batch *next;
    void *context;
    double scale;
    keel_pipeline_loss loss;
    keel_status status; // of the first failure
    bool broken;        // it was a transfer's
};

size_t keel_pipeline_slots(const keel_stage *stage, size_t micro_batches) {
    const size_t most = stage->count - stage->index;
    return micro_batches < most ? micro_batches : most;
}

// ---- open, close ----

// The transfer of what lies between LAYER, the last of its stage, and the next: the stream, or the gradient by it.
static keel_status add(keel_pipeline *p, size_t layer, bool gradient, bool up, keel_collective **made) {
    const keel_pipeline_plan *plan = &p->plan;
    const bool sends = gradient != up; // gradients go down
    const int rank = plan->mesh->pipeline.rank;
    char name[64];
    snprintf(name, sizeof name, "%s.layers.%zu%s", sends ? "send" : "receive", layer, gradient ? ".gradient" : "");
    return keel_collectives_add(
        plan->collectives,
        &(keel_collective_plan){.name = name,
                                .kind = sends ? KEEL_SEND : KEEL_RECEIVE,
                                .when = KEEL_EVERY_STEP,
                                .dtype = KEEL_F32,
                                .count = keel_model_stream_numel(plan->model),
                                .comm = &plan->mesh->pipeline,
                                .peer = up ? rank + 1 : rank - 1,
                                .copies = plan->mesh->sequence ? NULL : &plan->mesh->model_parallel,
                                .gradient = gradient,
                                .place = {.within = true,
                                          .phase = gradient ? KEEL_PHASE_BACKWARD : KEEL_PHASE_FORWARD,
                                          .order = keel_place_order(plan->layers, layer, KEEL_PLACE_BLOCK, gradient),
                                          .layer = (int32_t)layer,
                                          .stage = (int32_t)plan->stage.index}},
        made);
}

static keel_status add_transfers(keel_pipeline *p) {
    const keel_stage *stage = &p->plan.stage;
    keel_status status = KEEL_OK;
    if (!keel_stage_is_first(stage)) {
        status = add(p, stage->first - 1, false, false, &p->stream_in);
        if (!status) status = add(p, stage->first - 1, true, false, &p->grad_out);
    }
    if (!status && !keel_stage_is_last(stage)) {
        const size_t layer = stage->first + stage->layers - 1;
        status = add(p, layer, false, true, &p->stream_out);
        if (!status) status = add(p, layer, true, true, &p->grad_in);
    }
    return status;
}

static size_t dstream_count(const keel_pipeline *p) {
    return (size_t)1 + (p->grad_in != NULL) + (p->grad_out != NULL);
}

static void plan_streams(keel_pipeline *p) {
    const size_t n = keel_model_stream_numel(p->plan.model);
    for (size_t i = 0; p->stream_in && i <= p->slots; i++) p->streams[i] = keel_arena_take(&p->arena, n);
    for (size_t i = 0; p->stream_out && i < OUTS; i++) p->outs[i] = keel_arena_take(&p->arena, n);
    for (size_t i = 0; p->plan.stage.count > 1 && i < dstream_count(p); i++)
        p->dstreams[i] = keel_arena_take(&p->arena, n);
}

keel_status keel_pipeline_open(const keel_pipeline_plan *plan, keel_pipeline **pipeline) {
    keel_pipeline *made = calloc(1, sizeof *made);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "no memory for a pipeline");
    made->plan = *plan;
    made->slots = keel_pipeline_slots(&plan->stage, plan->micro_batches);
    made->token_count = keel_model_token_count(plan->model);
    made->streams = calloc(made->slots + 1, sizeof *made->streams);
    made->tokens = calloc(made->token_count, sizeof *made->tokens);
    keel_status status = made->streams && made->tokens ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for a batch");
    if (!status) status = add_transfers(made);
    if (!status) {
        plan_streams(made);
        status = keel_arena_allocate(&made->arena);
    }
    if (status) {
        keel_pipeline_close(made);
        return status;
    }
    plan_streams(made);
    *pipeline = made;
    return KEEL_OK;
}

void keel_pipeline_close(keel_pipeline *pipeline) {
    if (!pipeline) return;
    keel_arena_free(&pipeline->arena);
    free(pipeline->streams);
    free(pipeline->tokens);
    free(pipeline);
}

size_t keel_pipeline_bytes(const keel_pipeline *pipeline) {
    return pipeline->arena.size;
}

// ---- a run ----

static void note(keel_pipeline *p, keel_status status) {
    if (status && !p->status) p->status = status;
}

// A transfer that fails leaves nothing that its neighbours could go on with.
static void moved(keel_pipeline *p, keel_status status) {
    note(p, status);
    if (status) p->broken = true;
}

static void wait_for(keel_pipeline *p, keel_collective *transfer) {
    if (transfer && !p->broken) moved(p, keel_collective_wait(transfer));
}

static void receive(keel_pipeline *p, keel_collective *transfer, float *into) {
    if (transfer && !p->broken) moved(p, keel_receive_start(transfer, into));
}

// After the one before it has gone.
static void send(keel_pipeline *p, keel_collective *transfer, float *data) {
    wait_for(p, transfer);
    if (transfer && !p->broken) moved(p, keel_send_start(transfer, data));
}

static float *stream_of(const keel_pipeline *p, size_t micro) {
    return p->streams[micro % (p->slots + 1)];
}

static float *dstream_of(const keel_pipeline *p, size_t micro) {
    return p->dstreams[micro % dstream_count(p)];
}

static void count_loss(keel_pipeline *p, double loss) {
    p->loss.sum += loss;
    if (isnan(loss) || loss > p->loss.greatest) p->loss.greatest = loss;
}

static void forward(keel_pipeline *p, size_t micro) {
    const keel_pipeline_plan *plan = &p->plan;
    const bool last = keel_stage_is_last(&plan->stage);
    keel_probe *probe = keel_taps_probe(plan->taps);
    double loss = 0;
    keel_taps_begin_micro(plan->taps, (uint32_t)micro);
    wait_for(p, p->stream_in);
    if (micro + 1 < plan->micro_batches) receive(p, p->stream_in, stream_of(p, micro + 1));
    const keel_status drawn = p->next(p->context, micro, p->tokens);
    note(p, drawn);
    if (drawn) memset(p->tokens, 0, p->token_count * sizeof *p->tokens);
    const keel_stage_forward pass = {.slot = micro % p->slots,
                                     .tokens = p->tokens,
                                     .scale = p->scale,
                                     .grad = last ? keel_buckets_begin(plan->buckets, micro) : NULL,
                                     .stream = stream_of(p, micro),
                                     .out = p->outs[micro % OUTS]};
    const keel_status status = keel_model_forward_stage(plan->model, &pass, &loss);
    note(p, status);
    if (status) {
        memset(p->tokens, 0, p->token_count * sizeof *p->tokens);
        note(p, keel_model_forward_stage(plan->model, &pass, &loss));
    }
    if (last) count_loss(p, loss);
    send(p, p->stream_out, pass.out);
    keel_poll(probe);
}

static void backward(keel_pipeline *p, size_t micro) {
    const keel_pipeline_plan *plan = &p->plan;
    float *dstream = dstream_of(p, micro);
    keel_taps_begin_micro(plan->taps, (uint32_t)micro);
    wait_for(p, p->grad_in);
    if (micro + 1 < plan->micro_batches) receive(p, p->grad_in, dstream_of(p, micro + 1));
    note(p,
         keel_model_backward_stage(plan->model, &(keel_stage_backward){.slot = micro % p->slots,
                                                                       .grad = keel_buckets_begin(plan->buckets, micro),
                                                                       .dstream = dstream,
                                                                       .ready = keel_buckets_ready,
                                                                       .context = plan->buckets}));
    send(p, p->grad_out, dstream);
}

keel_status keel_pipeline_run(keel_pipeline *pipeline, keel_next_batch *next, void *context, double scale,
                              keel_pipeline_loss *loss) {
    keel_pipeline *p = pipeline;
    const size_t count = p->plan.micro_batches, ahead = p->slots - 1;
    p->next = next;
    p->context = context;
    p->scale = scale;
    p->loss = (keel_pipeline_loss){.greatest = -1};
    p->status = KEEL_OK;
    p->broken = false;
    receive(p, p->stream_in, stream_of(p, 0));
    receive(p, p->grad_in, dstream_of(p, 0));
    for (size_t micro = 0; micro < ahead; micro++) forward(p, micro);
    for (size_t micro = ahead; micro < count; micro++) {
        forward(p, micro);
        backward(p, micro - ahead);
    }
    for (size_t micro = count - ahead; micro < count; micro++) backward(p, micro);
    wait_for(p, p->stream_out);
    wait_for(p, p->grad_out);
    *loss = p->loss;
    return p->status;
}
