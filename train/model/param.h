// A parameter: its name, what of it this rank holds and where, and what its sites say of that.
#ifndef KEEL_TRAIN_MODEL_PARAM_H
#define KEEL_TRAIN_MODEL_PARAM_H

#include "configs/train_config.h"
#include "probe/site.h"
#include "train/parallel/mesh.h"

typedef enum keel_cut { // over which ranks a parameter is shared out; NONE where there is only one of them
    KEEL_CUT_NONE,
    KEEL_CUT_TENSOR,       // mesh.tp
    KEEL_CUT_EXPERT,       // mesh.ep
    KEEL_CUT_EXPERT_TENSOR // mesh.ep x mesh.tp
} keel_cut;

// A rectangle of the whole parameter that this rank holds. The parameter is seen as a matrix: its last dimension is the
// columns, all before it together are the rows; a vector is one row.
typedef struct keel_piece {
    size_t local_offset; // of its first element, from the parameter's first one
    size_t local_stride; // elements from row to row here
    size_t row, col;     // of its first element in the whole
    size_t rows, cols;
} keel_piece;

typedef struct keel_param {
    char name[KEEL_SITE_NAME_BYTES]; // "layers.3.attention.qkv.weight"; the site's name of all its quantities
    char module[KEEL_MODULE_NAME_BYTES];
    int32_t layer; // -1: none
    uint32_t ndim;
    // This rank's part.
    size_t shape[KEEL_MAX_DIMS]; // GPT-2 projections [in, out] (Conv1D), LLaMA [out, in] (Linear)
    size_t numel;
    size_t offset; // of its first element in the flat buffers
    // The whole, over all ranks.
    size_t whole[KEEL_MAX_DIMS];
    size_t whole_numel;
    size_t place;    // of its first element in the flat buffer of a single rank that holds the whole model
    uint32_t number; // among the parameters of that
    keel_cut cut;
    keel_piece *pieces; // that SHAPE is made of: one, the whole, where nothing is cut
    size_t piece_count;
    uint32_t order;           // backward, of the place that its module's output is: its gradient comes from there
    int32_t stage;            // pipeline stage that owns it
    uint32_t holder, holders; // stages that have it, the owner being holder 0: two have the tied table of a pipeline
    bool decay;               // weight decay by default: matrices, not vectors
    keel_precision precision; // that its gradient is to be rounded to
} keel_param;

static inline size_t keel_param_cols(const keel_param *param) { // of the whole
    return param->whole[param->ndim - 1];
}

// Fills in what the sites of a parameter, its reduced gradient and its optimizer states have alike: name, module,
// layer, the shape of the whole, layout, and which copy this rank's is of those of the same part.
void keel_param_describe(const keel_param *param, const keel_mesh *mesh, keel_site_info *info);
// The same before the reduction over the data: a summand, of which only tensor ranks may hold copies.
void keel_param_describe_partial(const keel_param *param, const keel_mesh *mesh, keel_site_info *info);

#endif
