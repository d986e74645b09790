// The safetensors reader on any bytes: it opens, or refuses with a text; every tensor it lists can be read within its
// bounds.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "train/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const keel_safetensors *file) {
    size_t count;
    const keel_safetensor *tensors = keel_safetensors_list(file, &count);
    for (size_t i = 0; i < count; i++) {
        // Exactly as long as the header says, so that a byte too many is found.
        float *values = malloc(tensors[i].numel * sizeof *values + 1);
        uint8_t *bytes = malloc(tensors[i].end - tensors[i].begin + 1);
        if (values) (void)keel_safetensors_read_f32(file, &tensors[i], 0, tensors[i].numel, values);
        if (bytes) (void)keel_safetensors_read_bytes(file, &tensors[i], bytes);
        if (keel_safetensors_find(file, tensors[i].name) == NULL) abort();
        free(values);
        free(bytes);
    }
    (void)keel_safetensors_verify(file);
    (void)keel_safetensors_metadata(file, "format");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    keel_safetensors *file = NULL;
    if (keel_safetensors_open(path, &file) == KEEL_OK)
        read_all(file);
    else if (*keel_error() == '\0')
        abort();
    keel_safetensors_close(file);
    close(fd);
    return 0;
}
