// Small models of both kinds for tests of what is seen of a model and of how it is computed.
#ifndef KEEL_TESTS_UNIT_TRAIN_MATH_SMALL_MODELS_H
#define KEEL_TESTS_UNIT_TRAIN_MATH_SMALL_MODELS_H

#include "configs/train_config.h"

enum { SMALL_VOCAB = 101, SMALL_SEQ = 21, SMALL_WIDTH = 32 };

// Initializers of a keel_model_config of LAYERS layers; further ones of the llama follow.
#define SMALL_GPT2(LAYERS)                                                                                             \
    {                                                                                                                  \
        .model_type = KEEL_MODEL_GPT2, .vocab_size = SMALL_VOCAB, .seq_length = SMALL_SEQ, .hidden_size = SMALL_WIDTH, \
        .num_layers = (LAYERS), .num_heads = 2, .intermediate_size = 64, .layer_norm_epsilon = 1e-5,                   \
        .tie_word_embeddings = true, .initializer_range = 0.1,                                                         \
    }
#define SMALL_LLAMA(LAYERS, ...)                                                                                       \
    {                                                                                                                  \
        .model_type = KEEL_MODEL_LLAMA, .vocab_size = SMALL_VOCAB, .seq_length = SMALL_SEQ,                            \
        .hidden_size = SMALL_WIDTH, .num_layers = (LAYERS), .num_heads = 4, .intermediate_size = 48,                   \
        .rms_norm_eps = 1e-6, .theta = 10000, .initializer_range = 0.1, __VA_ARGS__                                    \
    }

#endif
