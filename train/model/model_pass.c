// The passes of a micro-batch through the model, or through one stage of it.
#include <string.h>

#include "train/model/model_state.h"

static keel_status check_tokens(const keel_model *m, const uint32_t *tokens) {
    const size_t width = m->context.seq + 1, vocab = m->context.vocab * (size_t)m->context.mesh->model_parallel.size;
    for (size_t i = 0; i < m->context.batch * width; i++)
        if (tokens[i] >= vocab)
            return keel_fail(KEEL_ERR_FORMAT, "token %u at sequence %zu, position %zu is not below vocab_size %zu",
                             tokens[i], i / width, i % width, vocab);
    return KEEL_OK;
}

static keel_status take_tokens(const keel_model *m, const keel_slot *slot, const uint32_t *tokens) {
    const keel_context *c = &m->context;
    if (!keel_stage_is_first(&c->stage) && !keel_stage_is_last(&c->stage)) return KEEL_OK;
    const keel_status status = check_tokens(m, tokens);
    if (status) return status;
    memcpy(slot->tokens, tokens, c->batch * (c->seq + 1) * sizeof *tokens);
    return KEEL_OK;
}

// Where a layer ends, what is on its way moves on.
static void pause_between(const keel_model *m) {
    keel_poll(m->probe);
    if (m->context.stage.count > 1) keel_collectives_progress(m->collectives);
}

keel_status keel_model_forward_stage(keel_model *model, const keel_stage_forward *pass, double *loss_sum) {
    keel_context *c = &model->context;
    keel_slot *slot = &model->slots[pass->slot];
    const keel_join *first = &slot->layers[0].join1;
    keel_status status = take_tokens(model, slot, pass->tokens);
    if (status) return status;
    c->grad = pass->grad;
    model->failure = KEEL_OK;
    c->scale = pass->scale;
    if (!keel_stage_is_first(&c->stage)) slot->layers[0].join1.state.stream = pass->stream;
    if (!keel_stage_is_last(&c->stage)) slot->last.state.stream = pass->out;
    keel_lap_begin(c);
    if (keel_stage_is_first(&c->stage))
        keel_embedding_forward(c, &model->embedding, slot->tokens, first);
    else
        keel_join_enter(c, first);
    for (size_t l = 0; l < c->stage.layers; l++) {
        keel_layer *layer = &slot->layers[l];
        const keel_join *next = l + 1 < c->stage.layers ? &slot->layers[l + 1].join1 : &slot->last;
        status = keel_layer_forward(c, &model->work, layer);
        if (status) return status;
        keel_join_forward(c, next, model->work.branch, layer->join2.state.stream);
        pause_between(model);
    }
    if (keel_stage_is_last(&c->stage))
        *loss_sum = keel_head_run(c, &model->head, slot->last.state.normed, slot->tokens, pass->scale);
    keel_poll(model->probe);
    return model->failure;
}

// What LAYER did not keep.
static keel_status form_again(keel_model *m, const keel_layer *layer) {
    if (layer->keep == KEEL_KEEP_ALL) return KEEL_OK;
    keel_taps_set_again(m->taps, true);
    const keel_status status = keel_layer_again(&m->context, &m->work, layer);
    keel_taps_set_again(m->taps, false);
    return status;
}

keel_status keel_model_backward_stage(keel_model *model, const keel_stage_backward *pass) {
    keel_context *c = &model->context;
    const keel_slot *slot = &model->slots[pass->slot];
    const bool last = keel_stage_is_last(&c->stage);
    keel_status status = KEEL_OK;
    float *dstream = pass->dstream ? pass->dstream : model->dstream;
    model->failure = KEEL_OK;
    c->grad = pass->grad;
    c->ready = pass->ready;
    c->ready_context = pass->context;
    keel_lap_begin(c);
    if (last && !c->tied) keel_context_tell(c, model->parameters.head.weight);
    keel_join_backward(c, &slot->last, model->head.dnormed, dstream, last);
    if (last) keel_context_tell(c, model->parameters.final_norm.weight);
    for (size_t l = c->stage.layers; l-- > 0 && !status;) {
        status = form_again(model, &slot->layers[l]);
        if (!status) status = keel_layer_backward(c, &model->work, &slot->layers[l], dstream);
        pause_between(model);
    }
    if (!status && keel_stage_is_first(&c->stage)) keel_embedding_backward(c, &model->embedding, slot->tokens, dstream);
    if (!status) keel_context_tell(c, 0);
    c->grad = NULL;
    c->ready = NULL;
    return status ? status : model->failure;
}

keel_status keel_model_forward(keel_model *model, const uint32_t *tokens, double scale, float *grad, double *loss_sum) {
    return keel_model_forward_stage(model, &(keel_stage_forward){.tokens = tokens, .scale = scale, .grad = grad},
                                    loss_sum);
}

keel_status keel_model_backward(keel_model *model, keel_grad_ready *ready, void *context) {
    if (!model->context.grad)
        return keel_fail(KEEL_ERR_USAGE, "keel_model_backward without a forward pass that was given gradients");
    return keel_model_backward_stage(
        model, &(keel_stage_backward){
                   .grad = model->context.grad, .dstream = model->dstream, .ready = ready, .context = context});
}
