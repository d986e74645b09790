// A model's weights as a safetensors file with Hugging Face names.
#ifndef KEEL_TRAIN_PRETRAINED_H
#define KEEL_TRAIN_PRETRAINED_H

#include "train/model/model.h"

// PATH: a file, an index of several (model.safetensors.index.json, its files beside it), or a folder with
// model.safetensors or such an index in it. Every tensor of the model must be there in its shape, by its
// name or with "transformer." before it, in F32, F16, BF16 or F64; KEEL_ERR_FORMAT names the one that is not. *IGNORED:
// tensors of the file that the model lacks.
keel_status keel_pretrained_load(const char *path, keel_model *model, size_t *ignored);
// float32, whole or not at all.
keel_status keel_pretrained_save(const char *path, keel_model *model);

#endif
