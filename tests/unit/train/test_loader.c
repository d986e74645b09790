#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/temp_folder.h"
#include "train/data/loader.h"
#include "train/data/shards.h"

enum { SEQ = 3 };

// Sequence i is SEQ + 1 times the token i.
static keel_status read_numbered(void *context, uint64_t index, uint32_t *tokens) {
    (void)context;
    for (size_t t = 0; t <= SEQ; t++) tokens[t] = (uint32_t)index;
    return KEEL_OK;
}

static keel_sequences numbered(uint64_t count) {
    return (keel_sequences){.count = count, .identity = "numbered", .read = read_numbered};
}

static keel_loader_plan plan_of(const keel_sequences *sequences, size_t batch, size_t accumulation, uint32_t rank,
                                uint32_t ranks) {
    return (keel_loader_plan){.sequences = sequences,
                              .seq_length = SEQ,
                              .batch_size = batch,
                              .accumulation = accumulation,
                              .dp_rank = rank,
                              .dp_size = ranks,
                              .seed = 7,
                              .shuffle = true};
}

static void test_each_epoch_is_a_permutation(void **state) {
    (void)state;
    static const uint64_t counts[] = {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097};
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        const uint64_t count = counts[k];
        uint8_t *seen = calloc(count, 1);
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, count);
            for (uint64_t i = 0; i < count; i++) {
                const uint64_t index = keel_loader_sequence(42, count, epoch * count + i);
                assert_true(index < count && !seen[index]);
                seen[index] = 1;
            }
        }
        free(seen);
    }
}

static void test_permutations_differ_and_mix(void **state) {
    (void)state;
    const uint64_t count = 1000;
    size_t same_epoch = 0, same_seed = 0, fixed = 0, neighbours = 0;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t here = keel_loader_sequence(1, count, i);
        same_epoch += here == keel_loader_sequence(1, count, count + i);
        same_seed += here == keel_loader_sequence(2, count, i);
        fixed += here == i;
        if (i) neighbours += here == keel_loader_sequence(1, count, i - 1) + 1;
    }
    // Of two independent permutations about one place agrees.
    assert_true(same_epoch < 10 && same_seed < 10 && fixed < 10 && neighbours < 10);
}

// The sequences of one step, all ranks and micro-batches, as a sorted list.
static size_t step_sequences(const keel_sequences *sequences, size_t batch, size_t accumulation, uint32_t ranks,
                             uint64_t position, uint32_t *out) {
    size_t n = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        keel_loader loader;
        const keel_loader_plan plan = plan_of(sequences, batch, accumulation, rank, ranks);
        assert_int_equal(keel_loader_init(&plan, &loader), KEEL_OK);
        loader.position = position;
        for (size_t m = 0; m < accumulation; m++) {
            uint32_t tokens[16 * (SEQ + 1)];
            assert_int_equal(keel_loader_next(&loader, tokens), KEEL_OK);
            for (size_t i = 0; i < batch; i++) out[n++] = tokens[i * (SEQ + 1)];
        }
        assert_int_equal(loader.position, position + n / (rank + 1) * ranks);
    }
    for (size_t i = 1; i < n; i++)
        for (size_t j = i; j > 0 && out[j] < out[j - 1]; j--) {
            const uint32_t swap = out[j];
            out[j] = out[j - 1];
            out[j - 1] = swap;
        }
    return n;
}

static void test_a_step_is_the_same_however_it_is_split(void **state) {
    (void)state;
    const keel_sequences sequences = numbered(101);
    for (uint64_t position = 0; position < 300; position += 8) {
        uint32_t whole[8], split[8];
        assert_int_equal(step_sequences(&sequences, 8, 1, 1, position, whole), 8);
        static const struct {
            size_t batch, accumulation;
            uint32_t ranks;
        } splits[] = {{4, 2, 1}, {4, 1, 2}, {2, 1, 4}, {2, 2, 2}, {1, 2, 4}, {1, 8, 1}};
        for (size_t k = 0; k < sizeof splits / sizeof splits[0]; k++) {
            assert_int_equal(
                step_sequences(&sequences, splits[k].batch, splits[k].accumulation, splits[k].ranks, position, split),
                8);
            assert_memory_equal(whole, split, sizeof whole);
        }
    }
}

static void test_ranks_are_disjoint_within_an_epoch(void **state) {
    (void)state;
    const keel_sequences sequences = numbered(64);
    uint32_t step[8];
    uint8_t seen[64] = {0};
    for (uint64_t position = 0; position < 64; position += 8) {
        step_sequences(&sequences, 2, 1, 4, position, step);
        for (size_t i = 0; i < 8; i++) assert_int_equal(seen[step[i]]++, 0);
    }
}

static void test_position_is_the_whole_state(void **state) {
    (void)state;
    const keel_sequences sequences = numbered(37);
    const keel_loader_plan plan = plan_of(&sequences, 3, 1, 0, 1);
    keel_loader whole, resumed;
    assert_int_equal(keel_loader_init(&plan, &whole), KEEL_OK);
    uint32_t a[3 * (SEQ + 1)], b[3 * (SEQ + 1)];
    for (int i = 0; i < 50; i++) {
        assert_int_equal(keel_loader_init(&plan, &resumed), KEEL_OK);
        resumed.position = whole.position;
        assert_int_equal(keel_loader_batch(&whole), i);
        assert_int_equal(keel_loader_next(&whole, a), KEEL_OK);
        assert_int_equal(keel_loader_next(&resumed, b), KEEL_OK);
        assert_memory_equal(a, b, sizeof a);
    }
}

static void test_epoch_borders(void **state) {
    (void)state;
    const keel_sequences sequences = numbered(10);
    const keel_loader_plan plan = plan_of(&sequences, 2, 2, 0, 1); // 4 samples a step
    keel_loader loader;
    assert_int_equal(keel_loader_init(&plan, &loader), KEEL_OK);
    static const bool wanted[] = {true, false, true, false, false, true}; // samples 0-3, 4-7, 8-11, 12-15, 16-19, 20-23
    for (size_t step = 0; step < 6; step++) {
        loader.position = 4 * step;
        assert_int_equal(keel_loader_at_epoch(&loader), wanted[step]);
    }
}

static void test_without_shuffle_in_order(void **state) {
    (void)state;
    const keel_sequences sequences = numbered(5);
    keel_loader_plan plan = plan_of(&sequences, 1, 1, 0, 1);
    plan.shuffle = false;
    keel_loader loader;
    assert_int_equal(keel_loader_init(&plan, &loader), KEEL_OK);
    uint32_t tokens[SEQ + 1];
    for (uint32_t i = 0; i < 12; i++) {
        assert_int_equal(keel_loader_next(&loader, tokens), KEEL_OK);
        assert_int_equal(tokens[0], i % 5);
    }
}

static void test_too_little_text(void **state) {
    (void)state;
    const keel_sequences sequences = numbered(15);
    const keel_loader_plan plan = plan_of(&sequences, 2, 2, 0, 4);
    keel_loader loader;
    assert_int_equal(keel_loader_init(&plan, &loader), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "15 sequences of 3 tokens, but a step takes 16"));
    assert_non_null(strstr(keel_error(), "batch_size 2 x 2 micro-batches x 4 data-parallel ranks"));
}

static void test_sequences_of_shards_overlap_by_one(void **state) {
    const char *dir = *state;
    char *text[] = {temp_path(dir, "text")};
    const char *folder = temp_path(dir, "shards");
    temp_write(text[0], "abcdefghij", 10); // and the end of the document
    keel_shards_plan plan = {.text = text, .text_count = 1, .folder = folder, .shard_tokens = 4};
    assert_int_equal(keel_tokenizer_find("byte", &plan.tokenizer), KEEL_OK);
    int hold;
    assert_int_equal(keel_shards_prepare(&plan, NULL, &hold), KEEL_OK);
    close(hold);

    keel_sequences sequences;
    assert_int_equal(keel_sequences_open_shards(folder, SEQ, 255, &sequences), KEEL_ERR_CONFIG);
    assert_non_null(strstr(keel_error(), "model_config.vocab_size: 255"));
    assert_int_equal(keel_sequences_open_shards(folder, SEQ, 256, &sequences), KEEL_OK);
    assert_int_equal(sequences.count, 3);
    static const char *const wanted[] = {"abcd", "defg", "ghij"};
    for (uint64_t i = 0; i < 3; i++) {
        uint32_t tokens[SEQ + 1];
        assert_int_equal(sequences.read(sequences.context, i, tokens), KEEL_OK);
        for (size_t t = 0; t <= SEQ; t++) assert_int_equal(tokens[t], wanted[i][t]);
    }
    keel_sequences_close(&sequences);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_epoch_is_a_permutation),
        cmocka_unit_test(test_permutations_differ_and_mix),
        cmocka_unit_test(test_a_step_is_the_same_however_it_is_split),
        cmocka_unit_test(test_ranks_are_disjoint_within_an_epoch),
        cmocka_unit_test(test_position_is_the_whole_state),
        cmocka_unit_test(test_epoch_borders),
        cmocka_unit_test(test_without_shuffle_in_order),
        cmocka_unit_test(test_too_little_text),
        cmocka_unit_test_setup_teardown(test_sequences_of_shards_overlap_by_one, temp_folder_make, temp_folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
