// A model's weights as a safetensors file with Hugging Face names.
#ifndef KEEL_TRAIN_PRETRAINED_H
#define KEEL_TRAIN_PRETRAINED_H

#include "train/reshard_file.h"

typedef struct keel_pretrained keel_pretrained; // weights that rank 0 has found

// PATH: a file, an index of several (model.safetensors.index.json, its files beside it), or a folder with
// model.safetensors or such an index in it. Every tensor of the whole model must be there in its shape, by its
// name or with "transformer." before it, in F32, F16, BF16 or F64; KEEL_ERR_FORMAT names the one that is not. *IGNORED:
// tensors of the file that the model lacks.
keel_status keel_pretrained_open(const char *path, keel_reshard *reshard, keel_pretrained **weights, size_t *ignored);
// Brings what rank 0 has opened (NULL elsewhere) to all ranks, whatever they hold of it. Collective.
keel_status keel_pretrained_load(const keel_pretrained *weights, keel_reshard *reshard);
void keel_pretrained_close(keel_pretrained *weights); // NULL is fine

// The whole model in float32, by rank 0, whole or not at all. The other ranks take part unless the reshard is alone.
keel_status keel_pretrained_save(const char *path, keel_reshard *reshard);

#endif
