#include "train/model/layer.h"

void keel_work_plan(const keel_context *context, keel_arena *arena, keel_work *work) {
    size_t n = context->rows * context->hidden;
    work->branch = keel_arena_take(arena, n);
    work->dnarrow = keel_arena_take(arena, n);
    work->dwide = keel_arena_take(arena, context->rows * context->sum_width);
    if (context->experts)
        keel_moe_plan(context, arena, &work->moe);
    else
        work->dact = context->gpt2 ? work->dwide : keel_arena_take(arena, context->rows * context->intermediate);
}

// What makes up KEEL_KEEP_PRODUCTS.
static void plan_halves(const keel_context *context, keel_arena *arena, keel_layer *layer) {
    keel_attention_plan_core(context, arena, &layer->attention.state);
    if (context->experts)
        keel_experts_plan_act(context, arena, &layer->moe.experts);
    else
        keel_mlp_plan_act(context, arena, context->rows, &layer->mlp.state);
}

static void plan_mlp_products(const keel_context *context, keel_arena *arena, keel_layer *layer) {
    if (context->experts)
        keel_moe_plan_rows(context, arena, &layer->moe);
    else
        keel_mlp_plan_up(context, arena, context->rows, &layer->mlp.state);
}

void keel_work_plan_again(const keel_context *context, keel_arena *arena, keel_keep least, keel_work *work) {
    keel_layer *again = &work->again;
    if (least == KEEL_KEEP_ALL) return;
    plan_halves(context, arena, again);
    if (least != KEEL_KEEP_STREAM) return;
    keel_join_plan_norm(context, arena, &again->join1.state);
    keel_attention_plan_qkv(context, arena, &again->attention.state);
    again->join2.state.stream = keel_arena_take(arena, context->rows * context->hidden);
    keel_join_plan_norm(context, arena, &again->join2.state);
    plan_mlp_products(context, arena, again);
}

static void take_shared(const keel_layer *again, keel_layer *layer) {
    float *stream = layer->join1.state.stream;
    layer->join1.state = again->join1.state;
    layer->join1.state.stream = stream;
    layer->attention.state = again->attention.state;
    layer->join2.state = again->join2.state;
    layer->mlp.state = again->mlp.state;
    layer->moe.experts.in = again->moe.experts.in;
    layer->moe.experts.out = again->moe.experts.out;
    layer->moe.returned = again->moe.returned;
    layer->moe.experts.mlp.state = again->moe.experts.mlp.state;
}

void keel_layer_plan(const keel_context *context, keel_arena *arena, const keel_work *work, keel_layer *layer) {
    const bool all = layer->keep == KEEL_KEEP_ALL;
    take_shared(&work->again, layer);
    if (layer->keep != KEEL_KEEP_STREAM) {
        keel_join_plan(context, arena, &layer->join1);
        keel_attention_plan_qkv(context, arena, &layer->attention.state);
        if (all) keel_attention_plan_core(context, arena, &layer->attention.state);
        keel_join_plan(context, arena, &layer->join2);
    } else if (!layer->join1.from_below) {
        layer->join1.state.stream = keel_arena_take(arena, context->rows * context->hidden);
    }
    if (context->experts) keel_moe_plan_layer(context, arena, &layer->moe);
    if (layer->keep != KEEL_KEEP_STREAM) plan_mlp_products(context, arena, layer);
    if (all && context->experts) keel_experts_plan_act(context, arena, &layer->moe.experts);
    if (all && !context->experts) keel_mlp_plan_act(context, arena, context->rows, &layer->mlp.state);
}

static void connect_mlp(const keel_layer_params *params, const keel_place_taps *taps, keel_mlp_layer *mlp) {
    mlp->up = &params->up;
    mlp->up_tap = taps[KEEL_PLACE_UP].value;
    mlp->up_grad_tap = taps[KEEL_PLACE_UP].grad;
    mlp->act_tap = taps[KEEL_PLACE_ACT].value;
    mlp->act_grad_tap = taps[KEEL_PLACE_ACT].grad;
}

static void connect_moe(const keel_layer_params *params, const keel_layer_crossings *crossings,
                        const keel_layer_places *places, keel_moe_layer *moe) {
    moe->router.linear = &params->router;
    moe->router.tap = places->taps[KEEL_PLACE_ROUTER].value;
    moe->router.grad_tap = places->taps[KEEL_PLACE_ROUTER].grad;
    moe->experts.down = &params->down;
    moe->taps = &places->routing;
    moe->weights = crossings->weights;
    connect_mlp(params, places->taps, &moe->experts.mlp);
}

void keel_layer_connect(const keel_context *context, const keel_layer_params *params,
                        const keel_layer_crossings *crossings, const keel_layer_places *places, keel_layer *layer) {
    const keel_place_taps *taps = places->taps;
    layer->params = params;
    layer->crossings = crossings;
    layer->join1.vectors = crossings->norm1;
    layer->join2.vectors = crossings->norm2;
    layer->join2.norm = &params->norm2;
    layer->join2.taken_as = context->formats.compute;
    layer->join2.branch = &params->out;
    layer->join2.branch_tap = taps[KEEL_PLACE_OUT].value;
    layer->join2.branch_grad_tap = taps[KEEL_PLACE_OUT].grad;
    layer->join2.norm_tap = taps[KEEL_PLACE_NORM2].value;
    layer->join2.norm_grad_tap = taps[KEEL_PLACE_NORM2].grad;
    layer->attention.qkv = &params->qkv;
    layer->attention.qkv_tap = taps[KEEL_PLACE_QKV].value;
    layer->attention.qkv_grad_tap = taps[KEEL_PLACE_QKV].grad;
    layer->attention.core_tap = taps[KEEL_PLACE_CORE].value;
    layer->attention.logit_tap = places->logit;
    layer->attention.core_grad_tap = taps[KEEL_PLACE_CORE].grad;
    if (context->experts)
        connect_moe(params, crossings, places, &layer->moe);
    else
        connect_mlp(params, taps, &layer->mlp);
}

static void attention_forward(const keel_context *context, const keel_work *work, const keel_layer *layer) {
    const keel_context *c = context;
    const keel_layer_params *p = layer->params;
    const keel_layer_crossings *x = layer->crossings;
    keel_cross(c, x->qkv.forward, layer->join1.state.normed);
    keel_linear_forward(c, &p->qkv, c->rows, layer->join1.state.normed, layer->attention.state.qkv);
    keel_lap(c, KEEL_PART_PRODUCTS);
    keel_attention_forward(c, &work->attention, &layer->attention);
    keel_linear_forward(c, &p->out, c->rows, layer->attention.state.core, work->branch);
    keel_cross(c, x->out.forward, work->branch);
    keel_lap(c, KEEL_PART_PRODUCTS);
    keel_join_forward(c, &layer->join2, work->branch, layer->join1.state.stream);
    keel_cross(c, x->up.forward, layer->join2.state.normed);
}

static void mlp_forward(const keel_context *context, const keel_layer *layer) {
    keel_linear_forward(context, &layer->params->up, context->rows, layer->join2.state.normed, layer->mlp.state.up);
    keel_lap(context, KEEL_PART_PRODUCTS);
    keel_mlp_activate(context, &layer->mlp);
}

keel_status keel_layer_forward(const keel_context *context, const keel_work *work, keel_layer *layer) {
    const keel_context *c = context;
    attention_forward(c, work, layer);
    keel_status status = KEEL_OK;
    if (c->experts) {
        status = keel_moe_forward(c, &work->moe, &layer->moe, layer->join2.state.normed, work->branch);
    } else {
        mlp_forward(c, layer);
        keel_linear_forward(c, &layer->params->down, c->rows, layer->mlp.state.act, work->branch);
    }
    keel_cross(c, layer->crossings->down.forward, work->branch);
    keel_lap(c, KEEL_PART_PRODUCTS);
    return status;
}

static keel_status all_again(const keel_context *context, const keel_work *work, const keel_layer *layer) {
    keel_join_enter(context, &layer->join1);
    attention_forward(context, work, layer);
    if (context->experts) return keel_moe_form_rows(context, &work->moe, &layer->moe, layer->join2.state.normed);
    mlp_forward(context, layer);
    return KEEL_OK;
}

keel_status keel_layer_again(const keel_context *context, const keel_work *work, const keel_layer *layer) {
    if (layer->keep == KEEL_KEEP_STREAM) return all_again(context, work, layer);
    keel_attention_core(context, &work->attention, &layer->attention);
    if (context->experts)
        keel_experts_act(context, &layer->moe.experts);
    else
        keel_mlp_act(context, &layer->mlp);
    return KEEL_OK;
}

// By the gradient of the layer's last product, into WORK->dnarrow.
static void mlp_backward(const keel_context *context, const keel_work *work, const keel_layer *layer,
                         const float *dbranch) {
    const keel_context *c = context;
    const keel_layer_params *p = layer->params;
    size_t n = c->rows;
    keel_linear_backward_weight(c, &p->down, n, layer->mlp.state.act, dbranch, false);
    keel_lap(c, KEEL_PART_PRODUCTS);
    keel_context_tell(c, p->down.weight);
    keel_linear_backward_input(c, &p->down, n, dbranch, work->dact);
    keel_lap(c, KEEL_PART_PRODUCTS);
    keel_mlp_activate_backward(c, &layer->mlp, work->dact, work->dwide);
    keel_linear_backward_weight(c, &p->up, n, layer->join2.state.normed, work->dwide, false);
    keel_lap(c, KEEL_PART_PRODUCTS);
    keel_context_tell(c, p->up.weight);
    keel_linear_backward_input(c, &p->up, n, work->dwide, work->dnarrow);
    keel_lap(c, KEEL_PART_PRODUCTS);
}

static keel_status moe_backward(const keel_context *context, const keel_work *work, const keel_layer *layer,
                                const float *dbranch) {
    const keel_status status =
        keel_moe_backward(context, &work->moe, &layer->moe, layer->join2.state.normed, dbranch, work->dnarrow);
    if (!status) keel_context_tell(context, layer->params->router.weight);
    return status;
}

keel_status keel_layer_backward(const keel_context *context, const keel_work *work, const keel_layer *layer,
                                float *dstream) {
    const keel_context *c = context;
    const keel_layer_params *p = layer->params;
    size_t n = c->rows;
    keel_status status = KEEL_OK;
    const keel_layer_crossings *x = layer->crossings;
    const float *dbranch = keel_cross_rows(c, x->down.backward, dstream, work->branch);
    if (c->experts)
        status = moe_backward(c, work, layer, dbranch);
    else
        mlp_backward(c, work, layer, dbranch);
    if (status) return status;
    keel_cross(c, x->up.backward, work->dnarrow);
    keel_join_backward(c, &layer->join2, work->dnarrow, dstream, false);
    dbranch = keel_cross_rows(c, x->out.backward, dstream, work->branch);
    keel_linear_backward_weight(c, &p->out, n, layer->attention.state.core, dbranch, false);
    keel_lap(c, KEEL_PART_PRODUCTS);
    keel_context_tell(c, p->out.weight);
    keel_linear_backward_input(c, &p->out, n, dbranch, work->dnarrow);
    keel_lap(c, KEEL_PART_PRODUCTS);
    keel_attention_backward(c, &work->attention, &layer->attention, work->dnarrow, work->dwide);
    keel_linear_backward_weight(c, &p->qkv, n, layer->join1.state.normed, work->dwide, false);
    keel_lap(c, KEEL_PART_PRODUCTS);
    keel_context_tell(c, p->qkv.weight);
    keel_linear_backward_input(c, &p->qkv, n, work->dwide, work->dnarrow);
    keel_cross(c, x->qkv.backward, work->dnarrow);
    keel_lap(c, KEEL_PART_PRODUCTS);
    keel_join_backward(c, &layer->join1, work->dnarrow, dstream, false);
    keel_context_tell(c, p->norm1.weight);
    return KEEL_OK;
}
