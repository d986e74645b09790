#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "tests/unit/temp_folder.h"
#include "train/data/shards.h"

typedef struct heard {
    char notes[4096];
    size_t progress_calls;
    double last_progress;
    int turn; // the folder's lock, given back when the one who waits for it says so; 0: none
} heard;

static void hear_note(void *context, const char *text) {
    heard *h = context;
    strncat(h->notes, text, sizeof h->notes - strlen(h->notes) - 1);
    strncat(h->notes, "\n", sizeof h->notes - strlen(h->notes) - 1);
    if (h->turn) close(h->turn);
    h->turn = 0;
}

static void hear_progress(void *context, const char *what, double done) {
    heard *h = context;
    assert_non_null(what);
    assert_true(done >= h->last_progress && done <= 1);
    h->last_progress = done;
    h->progress_calls++;
}

static keel_status prepare_as(const char *folder, const char *text, uint64_t shard_tokens, bool look, heard *h,
                              int *hold) {
    char *paths[] = {(char *)text};
    keel_shards_plan plan = {
        .text = paths, .text_count = text ? 1 : 0, .folder = folder, .shard_tokens = shard_tokens, .look = look};
    assert_int_equal(keel_tokenizer_find("byte", &plan.tokenizer), KEEL_OK);
    return keel_shards_prepare(&plan, &(keel_shards_listener){h, hear_progress, hear_note}, hold);
}

static keel_status prepare(const char *folder, const char *text, uint64_t shard_tokens, heard *h) {
    int hold;
    *h = (heard){0};
    const keel_status status = prepare_as(folder, text, shard_tokens, false, h, &hold);
    if (!status) close(hold);
    return status;
}

static size_t count_files(const char *folder) {
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    size_t count = 0;
    for (const struct dirent *entry; (entry = readdir(dir));) count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

// Two text files, one of them also under a second name, a hidden one, and two of bytes that are no text.
static char *make_corpus(const char *dir) {
    char *corpus = temp_path(dir, "corpus");
    mkdir(corpus, 0777);
    temp_write(temp_path(dir, "corpus/b.txt"), "second", 6);
    temp_write(temp_path(dir, "corpus/a.txt"), "first \xc3\xa9", 8);
    assert_int_equal(symlink("a.txt", temp_path(dir, "corpus/c.u8")), 0);
    temp_write(temp_path(dir, "corpus/.hidden"), "hidden", 6);
    temp_write(temp_path(dir, "corpus/x.dat"), "\0\0\0\2", 4);
    temp_write(temp_path(dir, "corpus/y.dat"), "ab\0c", 4);
    return corpus;
}

static void test_text_comes_back_over_shard_borders(void **state) {
    const char *dir = *state, *shards = temp_path(dir, "shards");
    heard h;
    assert_int_equal(prepare(shards, make_corpus(dir), 5, &h), KEEL_OK);
    assert_true(h.last_progress == 1);
    assert_non_null(strstr(h.notes, "x.dat and 1 more: not plain text, left out"));
    assert_non_null(strstr(h.notes, "16 tokens in 4 shards"));

    keel_shards *set = NULL;
    assert_int_equal(keel_shards_open(shards, &set), KEEL_OK);
    assert_int_equal(keel_shards_tokens(set), 16);
    static const char wanted[] = "first \xc3\xa9\0second";
    for (size_t begin = 0; begin < 16; begin++) {
        for (size_t n = 1; n <= 16 - begin; n++) {
            uint32_t tokens[17] = {[16] = 77};
            assert_int_equal(keel_shards_read(set, begin, n, tokens), KEEL_OK);
            for (size_t i = 0; i < n; i++) assert_int_equal(tokens[i], (uint8_t)wanted[begin + i]);
        }
    }
    uint32_t token;
    assert_int_equal(keel_shards_read(set, 16, 1, &token), KEEL_ERR_USAGE);
    assert_int_equal(keel_shards_read(set, UINT64_MAX, 2, &token), KEEL_ERR_USAGE);
    keel_shards_close(set);
}

static void test_remade_only_when_the_sources_change(void **state) {
    const char *dir = *state, *shards = temp_path(dir, "shards"), *corpus = make_corpus(dir);
    heard h;
    assert_int_equal(prepare(shards, corpus, 5, &h), KEEL_OK);
    const size_t files = count_files(shards);
    assert_int_equal(files, 5);

    assert_int_equal(prepare(shards, corpus, 5, &h), KEEL_OK);
    assert_int_equal(h.progress_calls, 0);
    assert_string_equal(h.notes, "");

    temp_write(temp_path(dir, "corpus/b.txt"), "changed text", 12);
    assert_int_equal(prepare(shards, corpus, 5, &h), KEEL_OK);
    assert_non_null(strstr(h.notes, "made again"));
    assert_non_null(strstr(h.notes, "22 tokens in 5 shards"));
    assert_int_equal(count_files(shards), 6); // nothing of the old set is left

    assert_int_equal(prepare(shards, corpus, 100, &h), KEEL_OK);
    assert_non_null(strstr(h.notes, "22 tokens in 1 shard"));
    assert_int_equal(count_files(shards), 2);
}

static void test_what_a_killed_run_leaves_is_removed(void **state) {
    const char *dir = *state, *shards = temp_path(dir, "shards");
    mkdir(shards, 0777);
    temp_write(temp_path(dir, "shards/shard-0123456789abcdef-00000.h5.partial"), "x", 1);
    temp_write(temp_path(dir, "shards/shard-0123456789abcdef-00000.h5"), "x", 1);
    temp_write(temp_path(dir, "shards/notes.txt"), "x", 1);
    heard h;
    assert_int_equal(prepare(shards, make_corpus(dir), 100, &h), KEEL_OK);
    assert_int_equal(count_files(shards), 3);
    assert_int_equal(access(temp_path(dir, "shards/notes.txt"), F_OK), 0);
}

// The name of the set's only or first shard.
static char *first_shard(const char *dir) {
    DIR *folder = opendir(temp_path(dir, "shards"));
    char name[300] = "";
    for (const struct dirent *entry; (entry = readdir(folder));)
        if (strstr(entry->d_name, "-00000.h5")) snprintf(name, sizeof name, "shards/%s", entry->d_name);
    closedir(folder);
    assert_true(name[0] != '\0');
    return temp_path(dir, name);
}

static void test_damage_is_named_and_repaired_from_the_text(void **state) {
    const char *dir = *state, *shards = temp_path(dir, "shards"), *corpus = make_corpus(dir);
    heard h;
    assert_int_equal(prepare(shards, corpus, 5, &h), KEEL_OK);
    char *path = first_shard(dir);
    assert_int_equal(truncate(path, (off_t)temp_size(path) / 2), 0);

    keel_shards *set = NULL;
    assert_int_equal(keel_shards_open(shards, &set), KEEL_ERR_FORMAT);
    assert_non_null(strstr(keel_error(), path));
    assert_null(set);
    assert_int_equal(prepare(shards, NULL, 5, &h), KEEL_ERR_FORMAT);

    assert_int_equal(prepare(shards, corpus, 5, &h), KEEL_OK);
    assert_non_null(strstr(h.notes, "not a whole set"));
    assert_int_equal(keel_shards_open(shards, &set), KEEL_OK);
    keel_shards_close(set);
}

static void test_a_flipped_bit_is_found_where_its_shard_is_read(void **state) {
    const char *dir = *state, *shards = temp_path(dir, "shards"), *corpus = make_corpus(dir);
    heard h;
    assert_int_equal(prepare(shards, corpus, 5, &h), KEEL_OK);
    char *path = first_shard(dir);
    keel_shard_info info;
    uint64_t offset;
    assert_int_equal(keel_shard_inspect(path, &info, &offset), KEEL_OK);
    temp_flip(path, (long)offset + 4);
    keel_shards *set = NULL;
    assert_int_equal(keel_shards_open(shards, &set), KEEL_OK);
    uint32_t tokens[16];
    assert_int_equal(keel_shards_read(set, 5, 11, tokens), KEEL_OK);
    assert_int_equal(keel_shards_read(set, 0, 2, tokens), KEEL_ERR_FORMAT);
    assert_non_null(strstr(keel_error(), path));
    assert_non_null(strstr(keel_error(), "damaged"));
    keel_shards_close(set);

    assert_int_equal(unlink(path), 0);
    assert_int_equal(prepare(shards, corpus, 5, &h), KEEL_OK);
    assert_int_equal(keel_shards_open(shards, &set), KEEL_OK);
    assert_int_equal(keel_shards_read(set, 0, 16, tokens), KEEL_OK);
    keel_shards_close(set);
}

static void test_what_is_in_use_is_not_replaced(void **state) {
    const char *dir = *state, *shards = temp_path(dir, "shards"), *corpus = make_corpus(dir);
    heard h = {0};
    int hold, second;
    assert_int_equal(prepare_as(shards, corpus, 5, false, &h, &hold), KEEL_OK);
    assert_int_equal(prepare_as(shards, corpus, 5, false, &h, &second), KEEL_OK); // the same is for everyone
    close(second);
    assert_int_equal(prepare(shards, corpus, 6, &h), KEEL_ERR_USAGE);
    assert_non_null(strstr(keel_error(), "another job uses the shards in "));
    assert_int_equal(access(first_shard(dir), F_OK), 0);
    assert_int_equal(count_files(shards), 5);
    close(hold);
    assert_int_equal(prepare(shards, corpus, 6, &h), KEEL_OK);
    assert_int_equal(count_files(shards), 4);
}

static void test_who_looks_changes_nothing(void **state) {
    const char *dir = *state, *shards = temp_path(dir, "shards"), *corpus = make_corpus(dir);
    heard h = {0};
    int hold;
    assert_int_equal(prepare_as(shards, corpus, 5, true, &h, &hold), KEEL_ERR_NOT_FOUND);
    assert_int_not_equal(access(shards, F_OK), 0);

    assert_int_equal(prepare(shards, corpus, 5, &h), KEEL_OK);
    const char *first = first_shard(dir);
    h = (heard){0};
    assert_int_equal(prepare_as(shards, corpus, 6, true, &h, &hold), KEEL_OK);
    assert_non_null(strstr(h.notes, "has changed: the shards are used as they are"));
    assert_string_equal(first_shard(dir), first);
    assert_int_equal(count_files(shards), 5);
    assert_int_equal(prepare(shards, corpus, 6, &h), KEEL_ERR_USAGE); // while one looks
    close(hold);
}

static void test_who_waits_for_another_says_so(void **state) {
    const char *dir = *state, *shards = temp_path(dir, "shards");
    heard h = {0};
    int hold;
    mkdir(shards, 0777);
    h.turn = open(shards, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(h.turn, LOCK_EX), 0);
    assert_int_equal(prepare_as(shards, make_corpus(dir), 100, false, &h, &hold), KEEL_OK);
    assert_int_equal(strncmp(h.notes, "waiting for another job that makes shards in ", 45), 0);
    close(hold);
}

static void test_a_shard_cut_short_while_it_is_read(void **state) {
    const char *dir = *state, *shards = temp_path(dir, "shards");
    heard h;
    assert_int_equal(prepare(shards, make_corpus(dir), 100, &h), KEEL_OK);
    keel_shards *set = NULL;
    assert_int_equal(keel_shards_open(shards, &set), KEEL_OK);
    assert_int_equal(truncate(first_shard(dir), 16), 0);
    uint32_t tokens[16];
    assert_int_equal(keel_shards_read(set, 0, 16, tokens), KEEL_ERR_FORMAT);
    assert_non_null(strstr(keel_error(), "cut short"));
    keel_shards_close(set);
}

static void test_a_shard_of_another_set(void **state) {
    const char *dir = *state, *shards = temp_path(dir, "shards");
    heard h;
    assert_int_equal(prepare(shards, make_corpus(dir), 100, &h), KEEL_OK);
    keel_shard_info info;
    uint64_t offset;
    char *path = first_shard(dir);
    assert_int_equal(keel_shard_inspect(path, &info, &offset), KEEL_OK);
    assert_int_equal(info.tokens, 16);
    uint8_t tokens[16] = {0};
    snprintf(info.set, sizeof info.set, "%s", "0123456789abcdef");
    assert_int_equal(keel_shard_write(path, &info, tokens), KEEL_OK);
    keel_shards *set = NULL;
    assert_int_equal(keel_shards_open(shards, &set), KEEL_ERR_FORMAT);
    assert_non_null(strstr(keel_error(), "another set"));

    temp_write(path, "some text", 9);
    assert_int_equal(keel_shards_open(shards, &set), KEEL_ERR_FORMAT);
    assert_non_null(strstr(keel_error(), "not an HDF5 file"));
}

static void test_wide_vocabularies(void **state) {
    const char *dir = *state;
    assert_int_equal(keel_shard_width(256), 1);
    assert_int_equal(keel_shard_width(257), 2);
    assert_int_equal(keel_shard_width(65536), 2);
    assert_int_equal(keel_shard_width(65537), 4);
    const uint32_t tokens[] = {70000, 1};
    const keel_shard_info info = {.set = "0123456789abcdef", .vocab_size = 70001, .tokens = 2};
    keel_shard_info found;
    uint64_t offset;
    const char *path = temp_path(dir, "wide.h5");
    assert_int_equal(keel_shard_write(path, &info, tokens), KEEL_OK);
    assert_int_equal(keel_shard_inspect(path, &found, &offset), KEEL_OK);
    assert_memory_equal(&found, &info, sizeof info);
    uint32_t back[2];
    const int fd = open(path, O_RDONLY);
    assert_int_equal(pread(fd, back, sizeof back, (off_t)offset), sizeof back);
    close(fd);
    assert_memory_equal(back, tokens, sizeof back);
}

static void test_nothing_to_make_shards_of(void **state) {
    const char *dir = *state, *shards = temp_path(dir, "shards");
    heard h;
    assert_int_equal(prepare(shards, temp_path(dir, "absent"), 100, &h), KEEL_ERR_NOT_FOUND);
    assert_non_null(strstr(keel_error(), "absent"));
    assert_int_equal(prepare(shards, NULL, 100, &h), KEEL_ERR_NOT_FOUND);
    assert_non_null(strstr(keel_error(), "shards.json"));

    const char *binary = temp_path(dir, "binary.dat");
    temp_write(binary, "\0\1", 2);
    assert_int_equal(prepare(shards, binary, 100, &h), KEEL_ERR_FORMAT);
    assert_non_null(strstr(keel_error(), "not plain text"));

    const char *empty = temp_path(dir, "empty");
    mkdir(empty, 0777);
    assert_int_equal(prepare(shards, empty, 100, &h), KEEL_ERR_FORMAT);
    assert_non_null(strstr(keel_error(), "no plain text"));
}

static void test_shards_outlive_their_text(void **state) {
    const char *dir = *state, *shards = temp_path(dir, "shards"), *text = temp_path(dir, "text");
    temp_write(text, "abc", 3);
    heard h;
    assert_int_equal(prepare(shards, text, 100, &h), KEEL_OK);
    assert_int_equal(unlink(text), 0);
    assert_int_equal(prepare(shards, text, 100, &h), KEEL_OK);
    assert_non_null(strstr(h.notes, "used as they are"));
    assert_int_equal(prepare(shards, NULL, 100, &h), KEEL_OK);
}

static void test_identity_is_of_the_tokens(void **state) {
    const char *dir = *state;
    static const struct { const char *name, *text; } texts[] = {{"one", "abc"}, {"two", "abc"}, {"three", "abd"}};
    char identities[3][64];
    for (size_t i = 0; i < 3; i++) {
        const char *text = temp_path(dir, texts[i].name);
        char folder[512];
        snprintf(folder, sizeof folder, "%s-shards", text);
        temp_write(text, texts[i].text, 3);
        heard h;
        assert_int_equal(prepare(folder, text, 100, &h), KEEL_OK);
        keel_shards *set = NULL;
        assert_int_equal(keel_shards_open(folder, &set), KEEL_OK);
        snprintf(identities[i], sizeof identities[i], "%s", keel_shards_identity(set));
        keel_shards_close(set);
    }
    assert_string_equal(identities[0], identities[1]);
    assert_string_not_equal(identities[0], identities[2]);
}

static void test_manifests_that_lie(void **state) {
    const char *dir = *state, *shards = temp_path(dir, "shards"), *manifest = temp_path(dir, "shards/shards.json");
    static const char *const texts[] = {
        "",
        "[]",
        "{\"keel_shards\": 2}",
        "{\"keel_shards\": 1}",
        "{\"keel_shards\": 1, \"set\": \"0123456789abcdef\", \"tokenizer\": \"byte\", \"vocab_size\": 256, \"tokens\": "
        "3, "
        "\"crc32\": 0, \"shards\": [{\"file\": \"../x\", \"tokens\": 3}]}",
        "{\"keel_shards\": 1, \"set\": \"0123456789abcdef\", \"tokenizer\": \"byte\", \"vocab_size\": 256, \"tokens\": "
        "4, "
        "\"crc32\": 0, \"shards\": [{\"file\": \"x\", \"tokens\": 3}]}",
        "{\"keel_shards\": 1, \"set\": \"0123456789abcdef\", \"tokenizer\": \"byte\", \"vocab_size\": 256, \"tokens\": "
        "3, "
        "\"crc32\": 0, \"shards\": []}",
    };
    mkdir(shards, 0777);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        temp_write(manifest, texts[i], strlen(texts[i]));
        keel_shards *set = NULL;
        assert_int_equal(keel_shards_open(shards, &set), KEEL_ERR_FORMAT);
        assert_non_null(strstr(keel_error(), "shards.json"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, temp_folder_make, temp_folder_remove)
        TEST(test_text_comes_back_over_shard_borders),
        TEST(test_remade_only_when_the_sources_change),
        TEST(test_what_a_killed_run_leaves_is_removed),
        TEST(test_damage_is_named_and_repaired_from_the_text),
        TEST(test_a_flipped_bit_is_found_where_its_shard_is_read),
        TEST(test_what_is_in_use_is_not_replaced),
        TEST(test_who_looks_changes_nothing),
        TEST(test_who_waits_for_another_says_so),
        TEST(test_a_shard_cut_short_while_it_is_read),
        TEST(test_a_shard_of_another_set),
        TEST(test_wide_vocabularies),
        TEST(test_nothing_to_make_shards_of),
        TEST(test_shards_outlive_their_text),
        TEST(test_identity_is_of_the_tokens),
        TEST(test_manifests_that_lie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
