// A decoder-only transformer, forward and backward by hand over BLAS: the GPT-2 and the LLaMA family; the whole, or one
// stage of a pipeline.
//
// Shapes: B sequences of T tokens, N = B T rows; C hidden, H heads, D = C / H, V vocabulary, L layers.
// Parameters live in one flat float32 buffer in forward order (embedding, layers.0 .. layers.L-1, final_norm, head),
// gradients in buffers of the same layout, so that gradients become final from the end of the buffer to its start, and
// a bucket of them is one contiguous piece.
#ifndef KEEL_TRAIN_MODEL_MODEL_H
#define KEEL_TRAIN_MODEL_MODEL_H

#include <stdio.h>

#include "configs/train_config.h"
#include "train/model/param.h"
#include "train/model/stage.h"
#include "train/model/tap.h"
#include "train/parallel/collective.h"

// A tensor as Hugging Face names it: rows of a whole parameter (q, k and v are row blocks of one fused parameter).
typedef struct keel_hf_tensor {
    char name[KEEL_SITE_NAME_BYTES]; // "model.layers.0.self_attn.q_proj.weight"
    size_t param;                    // index in keel_model_params
    size_t row, rows;                // of the whole parameter, seen as a matrix
    uint32_t ndim;
    size_t shape[KEEL_MAX_DIMS];
} keel_hf_tensor;

typedef struct keel_model keel_model;

typedef struct keel_model_plan { // everything is borrowed and outlives the model
    const keel_model_config *config;
    size_t micro_batch;      // B
    const keel_stage *stage; // NULL: the whole model
    size_t slots;            // micro-batches that may be between forward and backward pass at a time; 0: 1
    const keel_recompute_config *recompute; // NULL: every layer keeps all
    const keel_mesh *mesh;
    keel_taps *taps;
    keel_collectives *collectives; // those within the model are declared here; NULL: none, for a model that is alone
} keel_model_plan;

// MICRO_BATCH sequences of config->seq_length tokens at a time, with as many threads as omp_get_max_threads() gives
// now. Plans and allocates all memory: nothing is allocated in a step. Registers activation and activation_grad taps of
// every module output.
//
// The same run gives the same bits again. Sums over rows and norms do not depend on the number of threads; products may
// in their last bits, since BLAS shares them out by threads. What is observed never changes what is computed.
keel_status keel_model_open(const keel_model_plan *plan, keel_model **model);
void keel_model_close(keel_model *model);

const keel_param *keel_model_params(const keel_model *model, size_t *count);
uint32_t keel_model_whole_param_count(const keel_model *model); // those of other stages with them
const keel_hf_tensor *keel_model_hf_tensors(const keel_model *model, size_t *count);
size_t keel_model_numel(const keel_model *model);        // of the flat buffers
size_t keel_model_stream_numel(const keel_model *model); // R C: of the residual stream between two stages
size_t keel_model_token_count(const keel_model *model);  // B (T + 1)
float *keel_model_weights(keel_model *model);            // flat, 64-byte aligned, float32 whatever the products take
size_t keel_model_bytes(const keel_model *model);        // allocated, weights included

// Random weights: normal(0, initializer_range), residual projections divided by sqrt(2 L), biases 0, norm weights 1.
void keel_model_init(keel_model *model, uint64_t seed);

// To be called whenever weights have changed, before the next forward: rounds what products take in another format. Not
// rounded for every micro-batch again.
void keel_model_take_weights(keel_model *model);

// TOKENS [B, T + 1]: inputs [:, :-1], targets [:, 1:]. A token >= V is KEEL_ERR_FORMAT. *loss_sum: sum of cross entropy
// in nats over the B T targets. GRAD NULL: evaluation, no backward pass will follow. Otherwise the gradients of
// loss_sum * SCALE by all parameters are wanted in GRAD (flat, as the weights): the head computes its logits in chunks
// of rows and forms its gradients while a chunk exists, so this call already writes to GRAD, and keel_model_backward
// must be the next.
keel_status keel_model_forward(keel_model *model, const uint32_t *tokens, double scale, float *grad, double *loss_sum);

// Completes GRAD of the last forward (overwritten, every element). In bfloat16 and float16 these are the float32 sums
// that products make of rounded inputs: whoever takes them looks at them, then rounds them to their parameter's
// precision. READY(context, begin) is called as gradients become
// final: everything in [begin, what was ready before) is, from numel down to 0. NULL: not wanted. KEEL_ERR_USAGE
// without a forward that was given a GRAD.
typedef void keel_grad_ready(void *context, size_t begin);
keel_status keel_model_backward(keel_model *model, keel_grad_ready *ready, void *context);

// The same for SLOT of one stage of several. STREAM [R, C], R = N but under sequence parallel, where it is this rank's
// share of the rows: the residual stream that the stage before gives, the caller's until the slot's backward pass is
// over; not looked at on the first stage. OUT [R, C]: the stream for the stage behind; not touched on the last stage,
// which alone sets *LOSS_SUM and writes to GRAD, and whose backward pass must follow at once. TOKENS are read on the
// first and the last.
typedef struct keel_stage_forward {
    size_t slot;
    const uint32_t *tokens;
    double scale;
    float *grad;
    float *stream, *out;
} keel_stage_forward;
keel_status keel_model_forward_stage(keel_model *model, const keel_stage_forward *pass, double *loss_sum);
// Completes GRAD of the slot. DSTREAM [R, C]: gradient by what the stage gave to the one behind (not looked at on the
// last stage), becomes that by what it had from the one before; NULL for the whole model.
typedef struct keel_stage_backward {
    size_t slot;
    float *grad;
    float *dstream;
    keel_grad_ready *ready;
    void *context;
} keel_stage_backward;
keel_status keel_model_backward_stage(keel_model *model, const keel_stage_backward *pass);

// Loss of every row of the last forward, [B T], for diagnosis and evaluation.
const float *keel_model_losses(const keel_model *model);

// Of a layer's experts over all data-parallel ranks, added up over micro-batches.
typedef struct keel_routing_totals {
    double balance, z; // losses without their factors (train/model/router.h)
    double drop_rate;  // dropped / routed assignments
    uint64_t micro_batches;
} keel_routing_totals;
// TOTALS [layers of the whole model] of the forward passes since they were taken last; zeros for layers without experts
// and those of other stages.
void keel_model_take_routing(keel_model *model, keel_routing_totals *totals);

typedef enum keel_part {
    KEEL_PART_EMBEDDING,
    KEEL_PART_NORM,      // norms with what joins the residual stream
    KEEL_PART_PRODUCTS,  // of the layers
    KEEL_PART_ATTENTION, // with rotation
    KEEL_PART_ACTIVATION,
    KEEL_PART_ROUTING, // to experts and back
    KEEL_PART_HEAD,    // its products
    KEEL_PART_LOSS,
    KEEL_PART_COUNT
} keel_part;
const char *keel_part_name(keel_part part); // "embedding", "norm", ...
// Wall seconds of every part since the model was opened, forward and backward.
void keel_model_seconds(const keel_model *model, double seconds[KEEL_PART_COUNT]);
// Floating-point operations of one forward and backward pass, a multiplication and an addition as two: the products and
// the visible half of attention; nothing that is computed a second time.
double keel_model_flops(const keel_model *model);

// The module tree with shapes and parameter counts, for --print-structure.
void keel_model_print(const keel_model *model, FILE *out);

#endif
