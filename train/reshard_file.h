// Buffers of a model that is shared out over ranks, and the safetensors files they are whole in.
#ifndef KEEL_TRAIN_RESHARD_FILE_H
#define KEEL_TRAIN_RESHARD_FILE_H

#include "train/reshard.h"
#include "train/safetensors.h"

// Where rank 0 finds a whole tensor.
typedef struct keel_reshard_source {
    const keel_safetensors *file;
    const keel_safetensor *tensor;
} keel_reshard_source;

// Looks for a tensor by its name; NULL, and *TENSOR not set: there is none.
typedef const keel_safetensors *keel_reshard_find(void *context, const char *name, const keel_safetensor **tensor);

// Finds every tensor of LIST in its shape, its name led by "PREFIX."; PREFIX NULL: as it is. KEEL_ERR_FORMAT names PATH
// and the one that is not there. SOURCES [LIST->count].
keel_status keel_reshard_look_up(const keel_whole_list *list, const char *path, const char *prefix,
                                 keel_reshard_find *find, void *context, keel_reshard_source *sources);

// BUFFER from SOURCES [LIST->count] of rank 0 to all ranks; NULL elsewhere. Collective; a rank 0 that cannot read takes
// part to the end.
keel_status keel_reshard_read(keel_reshard *reshard, size_t buffer, const keel_whole_list *list,
                              const keel_reshard_source *sources);
// BUFFER, all of it in order, to the WRITER of rank 0; NULL elsewhere, and where rank 0 could not begin. Collective
// unless alone; a rank 0 that cannot write takes part to the end.
keel_status keel_reshard_write(keel_reshard *reshard, size_t buffer, keel_safetensors_writer *writer);

#endif
