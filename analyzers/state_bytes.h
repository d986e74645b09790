// State to and from bytes, for checkpoints: numbers in the machine's own order, since a state goes back to where it
// came from.
#ifndef KEEL_ANALYZERS_STATE_BYTES_H
#define KEEL_ANALYZERS_STATE_BYTES_H

#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

typedef struct keel_state_writer {
    unsigned char *bytes; // malloc'ed; the caller takes it from here at the end
    size_t size, capacity;
    keel_status status; // the first failure; later writes do nothing
} keel_state_writer;

void keel_state_write(keel_state_writer *writer, const void *data, size_t size);
void keel_state_write_u64(keel_state_writer *writer, uint64_t value);

typedef struct keel_state_reader {
    const unsigned char *bytes;
    size_t left;
} keel_state_reader;

// KEEL_ERR_FORMAT where the bytes end too early.
keel_status keel_state_read(keel_state_reader *reader, void *data, size_t size);
keel_status keel_state_read_u64(keel_state_reader *reader, uint64_t *value);
// A u64 that must be EXPECTED; WHAT names it in the message.
keel_status keel_state_expect(keel_state_reader *reader, uint64_t expected, const char *what);

#endif
