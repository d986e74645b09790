// What a rank holds of a parameter, as if the model were shared out over ranks, without any.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/golden/param_rows.h"
#include "tests/unit/train_math/watcher.h"
#include "train/model/parameters.h"
#include "train/model/random.h"

static keel_model_config model_of(keel_model_type type) {
    return (keel_model_config){.model_type = (int)type,
                               .vocab_size = 24,
                               .seq_length = 6,
                               .hidden_size = 32,
                               .num_layers = 2,
                               .num_heads = 8,
                               .n_kv_heads = type == KEEL_MODEL_GPT2 ? 8 : 4,
                               .intermediate_size = 12,
                               .tie_word_embeddings = type == KEEL_MODEL_GPT2,
                               .theta = 10000};
}

static keel_mesh mesh_of(int rank, int size) {
    keel_mesh mesh = keel_mesh_alone();
    mesh.tp = (uint32_t)size;
    mesh.model_parallel.rank = rank;
    mesh.model_parallel.size = size;
    return mesh;
}

static void build(const keel_model_config *config, const keel_mesh *mesh, keel_parameters *out) {
    keel_context context;
    assert_int_equal(keel_context_init(config, 1, 1, mesh, &context), KEEL_OK);
    assert_int_equal(keel_parameters_build(&context, out), KEEL_OK);
}

static size_t rows_of(const keel_param *p) {
    return p->whole_numel / keel_param_cols(p);
}

// Every element of the whole lies at one place of one rank, and comes back from there.
static void check_shared_out(keel_model_type type, int size) {
    const keel_model_config config = model_of(type);
    const keel_mesh alone = keel_mesh_alone();
    keel_parameters single;
    build(&config, &alone, &single);
    assert_int_equal(single.numel, single.whole_numel);
    float *whole = calloc(single.numel, sizeof *whole), *back = calloc(single.numel, sizeof *back);
    int *held = calloc(single.numel, sizeof *held);
    for (size_t i = 0; i < single.numel; i++) whole[i] = (float)(i + 1);
    for (int rank = 0; rank < size; rank++) {
        const keel_mesh mesh = mesh_of(rank, size);
        keel_parameters own;
        build(&config, &mesh, &own);
        assert_int_equal(own.count, single.count);
        assert_int_equal(own.whole_numel, single.numel);
        float *flat = calloc(own.numel, sizeof *flat);
        for (size_t i = 0; i < own.count; i++) {
            const keel_param *p = &own.list[i], *s = &single.list[i];
            assert_string_equal(p->name, s->name);
            assert_int_equal(p->place, s->offset);
            assert_memory_equal(p->whole, s->shape, sizeof p->whole);
            assert_int_equal(s->cut, KEEL_CUT_NONE);
            assert_int_equal(s->piece_count, 1);
            assert_int_equal(p->numel, p->cut == KEEL_CUT_NONE ? s->numel : s->numel / (size_t)size);
            // By halves of the rows, as files may hold them.
            const size_t rows = rows_of(p), half = rows / 2, cols = keel_param_cols(p);
            param_rows_take(p, flat, whole + p->place, 0, half);
            param_rows_take(p, flat, whole + p->place + half * cols, half, rows - half);
            param_rows_give(p, flat, back + p->place, 0, rows);
        }
        for (size_t i = 0; i < own.numel; i++) {
            assert_true(flat[i] > 0);
            held[(size_t)flat[i] - 1]++;
        }
        free(flat);
        keel_parameters_free(&own);
    }
    assert_memory_equal(back, whole, single.numel * sizeof *whole);
    for (size_t i = 0; i < single.count; i++) {
        const keel_param *s = &single.list[i];
        const bool replica = s->ndim == 1 ? strstr(s->name, "qkv.bias") == NULL && strstr(s->name, "up.bias") == NULL
                                          : strcmp(s->name, "position.weight") == 0;
        for (size_t k = 0; k < s->numel; k++) assert_int_equal(held[s->offset + k], replica ? size : 1);
    }
    free(whole);
    free(back);
    free(held);
    keel_parameters_free(&single);
}

static void test_shared_out(void **state) {
    (void)state;
    for (int size = 1; size <= 4; size *= 2) {
        check_shared_out(KEEL_MODEL_GPT2, size);
        check_shared_out(KEEL_MODEL_LLAMA, size);
    }
}

// Heads stay whole: rank 1 of 2 has the second half of the queries, of the keys and of the values.
static void test_fused(void **state) {
    (void)state;
    const keel_model_config config = model_of(KEEL_MODEL_LLAMA);
    const keel_mesh mesh = mesh_of(1, 2);
    keel_parameters own;
    build(&config, &mesh, &own);
    for (size_t i = 0; i < own.count; i++) {
        const keel_param *p = &own.list[i];
        if (strcmp(p->name, "layers.1.attention.qkv.weight") == 0) {
            assert_int_equal(p->piece_count, 3);
            assert_int_equal(p->shape[0], 32);
            const size_t rows[] = {16, 40, 56}, counts[] = {16, 8, 8};
            for (size_t k = 0; k < 3; k++) {
                assert_int_equal(p->pieces[k].row, rows[k]);
                assert_int_equal(p->pieces[k].rows, counts[k]);
                assert_int_equal(p->pieces[k].cols, 32);
            }
        }
        if (strcmp(p->name, "layers.1.mlp.down.weight") == 0) {
            assert_int_equal(p->shape[1], 6);
            assert_int_equal(p->pieces[0].col, 6);
            assert_int_equal(p->pieces[0].local_stride, 6);
        }
    }
    keel_parameters_free(&own);
}

// Sizes that cannot be shared out are named.
static void test_refused(void **state) {
    (void)state;
    const struct {
        int size;
        size_t offset;
        int64_t value;
        const char *text;
    } cases[] = {
        {3, offsetof(keel_model_config, vocab_size), 24, "model_parallel: 3 does not divide num_heads 8"},
        {8, offsetof(keel_model_config, vocab_size), 24, "model_parallel: 8 does not divide n_kv_heads 4"},
        {2, offsetof(keel_model_config, intermediate_size), 9, "model_parallel: 2 does not divide intermediate_size 9"},
        {4, offsetof(keel_model_config, vocab_size), 25, "model_parallel: 4 does not divide vocab_size 25"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        keel_model_config config = model_of(KEEL_MODEL_LLAMA);
        memcpy((char *)&config + cases[i].offset, &cases[i].value, sizeof cases[i].value);
        const keel_mesh mesh = mesh_of(0, cases[i].size);
        keel_context context;
        assert_int_equal(keel_context_init(&config, 1, 1, &mesh, &context), KEEL_ERR_CONFIG);
        assert_non_null(strstr(keel_error(), cases[i].text));
    }
}

static void test_describe(void **state) {
    (void)state;
    const keel_model_config config = model_of(KEEL_MODEL_GPT2);
    keel_mesh mesh = mesh_of(1, 2);
    mesh.dp = 3;
    mesh.data_parallel.size = 3;
    mesh.data_parallel.rank = 2;
    keel_parameters own;
    build(&config, &mesh, &own);
    keel_site_info info = {0};
    keel_param_describe(&own.list[0], &mesh, &info);
    assert_string_equal(info.name, "embedding.weight");
    assert_int_equal(info.layout, KEEL_LAYOUT_SHARD);
    assert_int_equal(info.shape[0], 24);
    assert_int_equal(info.numel, 24 * 32);
    assert_int_equal(info.replica_index, 2);
    assert_int_equal(info.replica_count, 3);
    keel_param_describe_partial(&own.list[0], &mesh, &info);
    assert_int_equal(info.layout, KEEL_LAYOUT_PARTIAL);
    assert_int_equal(info.replica_count, 1);
    keel_param_describe(&own.list[1], &mesh, &info);
    assert_string_equal(info.name, "position.weight");
    assert_int_equal(info.layout, KEEL_LAYOUT_REPLICA);
    assert_int_equal(info.replica_index, 5);
    assert_int_equal(info.replica_count, 6);
    keel_param_describe_partial(&own.list[1], &mesh, &info);
    assert_int_equal(info.replica_index, 1);
    assert_int_equal(info.replica_count, 2);
    keel_parameters_free(&own);
}

// A stream gives the same values from any place on.
static void test_random(void **state) {
    (void)state;
    enum { N = 57 };
    float all[N], part[N];
    const uint64_t stream = keel_random_stream(3, 1000);
    keel_random_normal(stream, 0, 0.5, all, N);
    for (size_t begin = 0; begin < N; begin += 5)
        for (size_t n = 0; begin + n <= N; n += 3) {
            keel_random_normal(stream, begin, 0.5, part, n);
            assert_memory_equal(part, all + begin, n * sizeof *part);
        }
    keel_random_normal(keel_random_stream(3, 1001), 0, 0.5, part, N);
    assert_memory_not_equal(part, all, sizeof part);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_out), cmocka_unit_test(test_refused), cmocka_unit_test(test_fused),
        cmocka_unit_test(test_describe),   cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
