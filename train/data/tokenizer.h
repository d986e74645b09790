// Text to tokens. A tokenizer is one row of a table.
#ifndef KEEL_TRAIN_DATA_TOKENIZER_H
#define KEEL_TRAIN_DATA_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "probe/status.h"

typedef struct keel_tokenizer {
    const char *name;     // as shards keep it
    uint32_t vocab_size;  // every token is below it
    uint32_t end_of_text; // between two documents
    // SIZE bytes of TEXT into TOKENS, which has room for SIZE of them; their number.
    size_t (*encode)(const uint8_t *text, size_t size, uint32_t *tokens);
    // COUNT tokens into TEXT, which has room for SIZE bytes; the bytes they need, of which at most SIZE are written.
    size_t (*decode)(const uint32_t *tokens, size_t count, uint8_t *text, size_t size);
} keel_tokenizer;

// "byte": a token is a byte of the UTF-8 text; 0, which no text holds, ends a document. KEEL_ERR_NOT_FOUND lists what
// there is.
keel_status keel_tokenizer_find(const char *name, const keel_tokenizer **tokenizer);

#endif
