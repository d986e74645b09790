// Whole tensors out of what ranks hold of them, and back: for files, which know no layout.
//
// Elements are counted in the flat buffer of a single rank that holds the whole model (keel_param.place). All buffers
// are moved in windows of it, so that no rank needs more memory than one window for that.
#ifndef KEEL_TRAIN_RESHARD_H
#define KEEL_TRAIN_RESHARD_H

#include "train/optim/optimizer.h"

typedef struct keel_reshard_plan { // everything is borrowed
    const keel_model_config *config;
    keel_model *model;
    keel_optimizer *optimizer;
    const keel_zero *zero;
    keel_collectives *collectives; // NULL: one rank
    size_t window;                 // elements moved at a time; 0: 1 Mi
} keel_reshard_plan;

// A tensor of the whole model.
typedef struct keel_whole_tensor {
    char name[KEEL_SITE_NAME_BYTES];
    uint32_t ndim;
    size_t shape[KEEL_MAX_DIMS];
    size_t begin, numel; // in the flat buffer of a single rank
} keel_whole_tensor;

typedef struct keel_whole_list { // one after another, with nothing between them
    keel_whole_tensor *list;
    size_t count;
} keel_whole_list;

typedef struct keel_reshard keel_reshard;

keel_status keel_reshard_open(const keel_reshard_plan *plan, keel_reshard **reshard);
void keel_reshard_close(keel_reshard *reshard); // NULL is fine

// The same on every rank: the parameters, and the tensors that Hugging Face makes of them.
const keel_whole_list *keel_reshard_params(const keel_reshard *reshard);
const keel_whole_list *keel_reshard_hf(const keel_reshard *reshard);
size_t keel_reshard_numel(const keel_reshard *reshard);  // of the whole model
size_t keel_reshard_window(const keel_reshard *reshard); // elements moved at a time

// The buffers: 0 "model", the weights, then the optimizer's states by their names; NULL beyond the last.
const char *keel_reshard_name(const keel_reshard *reshard, size_t buffer);

// True if rank 0 owns all: then it gathers without the others.
bool keel_reshard_alone(const keel_reshard *reshard);
bool keel_reshard_leads(const keel_reshard *reshard); // this is rank 0

// Elements [BEGIN, BEGIN + window) of BUFFER, fewer at the end, come to rank 0, bit for bit; of copies the first one.
// *DATA: this reshard's own memory until the next call; on other ranks nothing of use. Collective unless alone.
keel_status keel_reshard_gather(keel_reshard *reshard, size_t buffer, size_t begin, const float **data);
// Memory to put a window of rank 0 into, and its way to whoever holds any of it. The second is collective.
float *keel_reshard_data(keel_reshard *reshard);
keel_status keel_reshard_scatter(keel_reshard *reshard, size_t buffer, size_t begin);
// Every copy of an element of BUFFER becomes what the first one is. Collective.
keel_status keel_reshard_level(keel_reshard *reshard, size_t buffer);

// KEEL_ERR_IO where some rank's states are lost (keel_optimizer_check). Collective unless alone.
keel_status keel_reshard_check(keel_reshard *reshard);

// What this rank owns is searched for NaN and Inf: a number that is the lower the earlier the tensor that holds one, or
// infinity. keel_reshard_least makes it the least of all ranks: collective unless alone.
double keel_reshard_nonfinite(keel_reshard *reshard);
keel_status keel_reshard_least(keel_reshard *reshard, double *value);
// "exp_avg.layers.0.norm1.weight" of such a number. NAME [KEEL_SITE_NAME_BYTES + 32].
void keel_reshard_name_nonfinite(const keel_reshard *reshard, double value, char *name);

#endif
