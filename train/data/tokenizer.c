#include "train/data/tokenizer.h"

#include <string.h>

static size_t byte_encode(const uint8_t *text, size_t size, uint32_t *tokens) {
    for (size_t i = 0; i < size; i++) tokens[i] = text[i];
    return size;
}

static size_t byte_decode(const uint32_t *tokens, size_t count, uint8_t *text, size_t size) {
    size_t needed = 0;
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] == 0) continue; // the end of a document has no text
        if (needed < size) text[needed] = (uint8_t)tokens[i];
        needed++;
    }
    return needed;
}

static const keel_tokenizer tokenizers[] = {
    {.name = "byte", .vocab_size = 256, .end_of_text = 0, .encode = byte_encode, .decode = byte_decode},
};

keel_status keel_tokenizer_find(const char *name, const keel_tokenizer **tokenizer) {
    for (size_t i = 0; i < sizeof tokenizers / sizeof tokenizers[0]; i++) {
        if (strcmp(tokenizers[i].name, name) != 0) continue;
        *tokenizer = &tokenizers[i];
        return KEEL_OK;
    }
    return keel_fail(KEEL_ERR_NOT_FOUND, "no tokenizer \"%s\"; there is byte", name);
}
