// How the flat gradient is cut into buckets, and which elements of each this rank's optimizer owns: all of them, or,
// with the optimizer shared out over the ranks that hold the same weights, an equal piece of every bucket (ZeRO,
// Rajbhandari et al. 2020: states as in its first stage; gradients are reduced as in its second, but kept whole).
#ifndef KEEL_TRAIN_PARALLEL_ZERO_H
#define KEEL_TRAIN_PARALLEL_ZERO_H

#include "train/model/model.h"

// Elements that one rank owns of one parameter, side by side.
typedef struct keel_zero_span {
    size_t param;  // index in keel_model_params
    size_t offset; // of the first one in the flat buffers of weights and gradients
    size_t at;     // and in those of the optimizer's states, which hold nothing else
    size_t count;
} keel_zero_span;

typedef struct keel_zero_bucket {
    const keel_comm *comm; // the ranks that hold the same weights, each with other data; borrowed
    size_t begin, count;   // in the flat buffers
    size_t share; // rank r of COMM owns the elements [r SHARE, (r + 1) SHARE) of the bucket; COUNT: each owns all
    size_t first_span, span_count;
} keel_zero_bucket;

typedef struct keel_zero {
    bool shared; // an element has one owner among the ranks that hold it
    bool cut;    // no rank owns everything: sums over all parameters need a reduction
    const keel_mesh *mesh;
    keel_zero_bucket *buckets; // from the start of the flat buffers to their end, which they cover
    size_t count;
    keel_zero_span *spans; // in order of OFFSET, and of AT
    size_t span_count;
    size_t own_numel;
} keel_zero;

// Buckets of BUCKET_BYTES at most, counted from the end of the buffers, which is ready first; one ends where the ranks
// change that hold the same weights. SHARE: the optimizer is shared out. KEEL_ERR_CONFIG for too many buckets. MODEL
// and MESH are borrowed.
keel_status keel_zero_open(const keel_model *model, const keel_mesh *mesh, size_t bucket_bytes, bool share,
                           keel_zero *zero);
void keel_zero_close(keel_zero *zero); // zeros are fine

// True if, of the ranks that own the same elements of PARAM as this one, it is the first: those whose parts together
// are every parameter once.
bool keel_zero_counts(const keel_zero *zero, const keel_param *param);
// The same among the ranks of this one's stage.
bool keel_zero_counts_in_stage(const keel_zero *zero, const keel_param *param);

// *RANK of the world that owns element OFFSET of this rank's flat buffers, of those that hold it as this one does.
keel_status keel_zero_owner(const keel_zero *zero, size_t offset, int *rank);

// What a site of a parameter's reduced gradient, its states or its weight as its owner updates it has of PARAM.
void keel_zero_describe(const keel_zero *zero, const keel_param *param, keel_site_info *info);

#endif
