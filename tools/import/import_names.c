#include "tools/import/import_names.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 96, KEYS_KEPT = 1 << 16, USER_NAMES = 32, SCALAR_NAME_BYTES = 32, GONE_AFTER = 8, SHOWN_KEYS = 12 };

static const keel_import_name common[] = {
    {"global_step", KEEL_IMPORT_STEP},
    {"trainer_global_step", KEEL_IMPORT_STEP},
    {"train_global_step", KEEL_IMPORT_STEP},
    {"global_step_max_steps", KEEL_IMPORT_STEP}, // ms-swift: "10/1000"
    {"step", KEEL_IMPORT_STEP},
    {"steps", KEEL_IMPORT_STEP},
    {"current_step", KEEL_IMPORT_STEP},
    {"current_steps", KEEL_IMPORT_STEP},
    {"training_step", KEEL_IMPORT_STEP},
    {"train_step", KEEL_IMPORT_STEP},
    {"optimizer_step", KEEL_IMPORT_STEP},
    {"opt_step", KEEL_IMPORT_STEP},
    {"iteration", KEEL_IMPORT_STEP},
    {"iterations", KEEL_IMPORT_STEP},
    {"global_iter", KEEL_IMPORT_STEP},
    {"iter", KEEL_IMPORT_STEP},
    {"iters", KEEL_IMPORT_STEP},
    {"it", KEEL_IMPORT_STEP},
    {"num_updates", KEEL_IMPORT_STEP},
    {"num_steps", KEEL_IMPORT_STEP},
    {"updates", KEEL_IMPORT_STEP},
    {"update", KEEL_IMPORT_STEP},
    {"batch_idx", KEEL_IMPORT_STEP},
    {"batch", KEEL_IMPORT_STEP},
    {"epoch", KEEL_IMPORT_EPOCH},
    {"epochs", KEEL_IMPORT_EPOCH},
    {"current_epoch", KEEL_IMPORT_EPOCH},
    {"train_epoch", KEEL_IMPORT_EPOCH},
    {"loss", KEEL_IMPORT_LOSS},
    {"train_loss_step", KEEL_IMPORT_LOSS},
    {"loss_step", KEEL_IMPORT_LOSS},
    {"train_loss", KEEL_IMPORT_LOSS},
    {"training_loss", KEEL_IMPORT_LOSS},
    {"loss_train", KEEL_IMPORT_LOSS},
    {"loss_training", KEEL_IMPORT_LOSS},
    {"total_loss", KEEL_IMPORT_LOSS},
    {"train_total_loss", KEEL_IMPORT_LOSS},
    {"loss_total", KEEL_IMPORT_LOSS},
    {"losses_total_loss", KEEL_IMPORT_LOSS},
    {"lm_loss", KEEL_IMPORT_LOSS},
    {"lm_loss_training_lm_loss", KEEL_IMPORT_LOSS}, // Megatron's tags
    {"train_lm_loss", KEEL_IMPORT_LOSS},
    {"reduced_train_loss", KEEL_IMPORT_LOSS},
    {"train_samples_train_loss", KEEL_IMPORT_LOSS}, // DeepSpeed's tags
    {"loss_metrics_global_avg_loss", KEEL_IMPORT_LOSS},
    {"global_avg_loss", KEEL_IMPORT_LOSS},
    {"train_cross_entropy_loss", KEEL_IMPORT_LOSS},
    {"train_cross_entropy", KEEL_IMPORT_LOSS},
    {"cross_entropy_loss", KEEL_IMPORT_LOSS},
    {"cross_entropy", KEEL_IMPORT_LOSS},
    {"train_ce_loss", KEEL_IMPORT_LOSS},
    {"ce_loss", KEEL_IMPORT_LOSS},
    {"loss_train_total", KEEL_IMPORT_LOSS},
    {"batch_loss", KEEL_IMPORT_LOSS},
    {"train_batch_loss", KEEL_IMPORT_LOSS},
    {"avg_loss", KEEL_IMPORT_LOSS},
    {"train_avg_loss", KEEL_IMPORT_LOSS},
    {"nll_loss", KEEL_IMPORT_LOSS},
    {"train_loss_epoch", KEEL_IMPORT_LOSS},
    {"loss_epoch", KEEL_IMPORT_LOSS},
    {"grad_norm", KEEL_IMPORT_GRAD_NORM},
    {"train_grad_norm", KEEL_IMPORT_GRAD_NORM},
    {"grad_norm_step", KEEL_IMPORT_GRAD_NORM},
    {"gradient_norm", KEEL_IMPORT_GRAD_NORM},
    {"train_gradient_norm", KEEL_IMPORT_GRAD_NORM},
    {"gradients_norm", KEEL_IMPORT_GRAD_NORM},
    {"global_grad_norm", KEEL_IMPORT_GRAD_NORM},
    {"train_global_grad_norm", KEEL_IMPORT_GRAD_NORM},
    {"total_grad_norm", KEEL_IMPORT_GRAD_NORM},
    {"grad_norm_total", KEEL_IMPORT_GRAD_NORM},
    {"optim_total_grad_norm", KEEL_IMPORT_GRAD_NORM},
    {"optim_grad_norm", KEEL_IMPORT_GRAD_NORM},
    {"grad_norm_grad_norm", KEEL_IMPORT_GRAD_NORM},
    {"l2_norm_grad_global", KEEL_IMPORT_GRAD_NORM},
    {"grad_2_0_norm_total", KEEL_IMPORT_GRAD_NORM},
    {"gnorm", KEEL_IMPORT_GRAD_NORM},
    {"train_gnorm", KEEL_IMPORT_GRAD_NORM},
    {"total_norm", KEEL_IMPORT_GRAD_NORM},
    {"norm", KEEL_IMPORT_GRAD_NORM},
    {"lr", KEEL_IMPORT_LR},
    {"learning_rate", KEEL_IMPORT_LR},
    {"train_lr", KEEL_IMPORT_LR},
    {"train_learning_rate", KEEL_IMPORT_LR},
    {"learning_rate_learning_rate", KEEL_IMPORT_LR},
    {"train_samples_lr", KEEL_IMPORT_LR},
    {"lr_step", KEEL_IMPORT_LR},
    {"lr_0", KEEL_IMPORT_LR},
    {"train_lr_0", KEEL_IMPORT_LR},
    {"learning_rate_0", KEEL_IMPORT_LR},
    {"lr_group_0", KEEL_IMPORT_LR},
    {"lr_pg_0", KEEL_IMPORT_LR},
    {"lr_pg0", KEEL_IMPORT_LR},
    {"optim_learning_rate_group0", KEEL_IMPORT_LR},
    {"lr_adam_w", KEEL_IMPORT_LR}, // Lightning's lr-AdamW, one per group of parameters where there are several
    {"lr_adam_w_pg1", KEEL_IMPORT_LR},
    {"lr_adam", KEEL_IMPORT_LR},
    {"lr_adam_pg1", KEEL_IMPORT_LR},
    {"lr_sgd", KEEL_IMPORT_LR},
    {"lr_sgd_pg1", KEEL_IMPORT_LR},
    {"loss_scale", KEEL_IMPORT_LOSS_SCALE},
    {"train_loss_scale", KEEL_IMPORT_LOSS_SCALE},
    {"loss_scale_loss_scale", KEEL_IMPORT_LOSS_SCALE},
    {"train_samples_loss_scale", KEEL_IMPORT_LOSS_SCALE},
    {"grad_scale", KEEL_IMPORT_LOSS_SCALE},
    {"amp_scale", KEEL_IMPORT_LOSS_SCALE},
    {"overflow", KEEL_IMPORT_SKIPPED}, // 1 where the update was skipped because of the loss scale
    {"skipped_iterations", KEEL_IMPORT_SKIPPED},
    {"perplexity", KEEL_IMPORT_PERPLEXITY},
    {"train_perplexity_step", KEEL_IMPORT_PERPLEXITY},
    {"train_perplexity", KEEL_IMPORT_PERPLEXITY},
    {"train_ppl_step", KEEL_IMPORT_PERPLEXITY},
    {"train_ppl", KEEL_IMPORT_PERPLEXITY},
    {"ppl", KEEL_IMPORT_PERPLEXITY},
    {"aux_loss", KEEL_IMPORT_AUX_LOSS},
    {"train_aux_loss", KEEL_IMPORT_AUX_LOSS},
    {"load_balancing_loss", KEEL_IMPORT_AUX_LOSS},
    {"moe_aux_loss", KEEL_IMPORT_AUX_LOSS},
    {"router_aux_loss", KEEL_IMPORT_AUX_LOSS},
    {"z_loss", KEEL_IMPORT_Z_LOSS},
    {"train_z_loss", KEEL_IMPORT_Z_LOSS},
    {"router_z_loss", KEEL_IMPORT_Z_LOSS},
    {"eval_loss", KEEL_IMPORT_EVAL_LOSS},
    {"val_loss", KEEL_IMPORT_EVAL_LOSS},
    {"valid_loss", KEEL_IMPORT_EVAL_LOSS},
    {"validation_loss", KEEL_IMPORT_EVAL_LOSS},
    {"val_loss_epoch", KEEL_IMPORT_EVAL_LOSS},
    {"valid_loss_epoch", KEEL_IMPORT_EVAL_LOSS},
    {"loss_val", KEEL_IMPORT_EVAL_LOSS},
    {"loss_valid", KEEL_IMPORT_EVAL_LOSS},
    {"loss_eval", KEEL_IMPORT_EVAL_LOSS},
    {"lm_loss_validation_lm_loss_validation", KEEL_IMPORT_EVAL_LOSS},
    {"dev_loss", KEEL_IMPORT_EVAL_LOSS},
    {"test_loss", KEEL_IMPORT_EVAL_LOSS},
    {"eval_perplexity", KEEL_IMPORT_EVAL_PERPLEXITY},
    {"val_perplexity", KEEL_IMPORT_EVAL_PERPLEXITY},
    {"eval_ppl", KEEL_IMPORT_EVAL_PERPLEXITY},
    {"val_ppl", KEEL_IMPORT_EVAL_PERPLEXITY},
    {"valid_ppl", KEEL_IMPORT_EVAL_PERPLEXITY},
    {"split", KEEL_IMPORT_PHASE},
    {"mode", KEEL_IMPORT_PHASE},
    {"phase", KEEL_IMPORT_PHASE},
    {"stage", KEEL_IMPORT_PHASE},
    {"type", KEEL_IMPORT_PHASE},
    {"event", KEEL_IMPORT_PHASE},
    {"tag", KEEL_IMPORT_PHASE},
    {"set", KEEL_IMPORT_PHASE},
    {"train_runtime", KEEL_IMPORT_SUMMARY},
};

typedef struct known_key {
    char *text;
    size_t size;
    keel_import_field field;
    uint32_t rank;
} known_key;

typedef struct user_name {
    char name[SCALAR_NAME_BYTES];
    keel_import_slice column; // in the copy of the user's text
    keel_import_field field;
    bool met;
} user_name;

struct keel_import_names {
    const keel_import_name *table;
    size_t count;
    char *columns;
    user_name user[USER_NAMES];
    size_t user_count;
    uint64_t by_user; // scalars whose name the user gave
    bool step_by_user, epoch_by_user;
    bool stepped;    // a step was read
    known_key *keys; // [key_capacity]
    int32_t key_count, key_capacity;
    int32_t *places;                      // open addressing over the keys' hashes, [2 * key_capacity], -1: free
    int32_t expected;                     // keys mostly come in the same order
    int32_t bound[KEEL_IMPORT_SCALARS];   // the key that gives each scalar
    uint32_t missed[KEEL_IMPORT_SCALARS]; // records since it was last seen, that had another name
};

void keel_import_normalize(keel_import_slice key, char *name, size_t size) {
    for (size_t i = 0; i + 3 <= key.size; i++)
        if (memcmp(key.text + i, " - ", 3) == 0) {
            key.text += i + 3;
            key.size -= i + 3;
            i = (size_t)-1;
        }
    size_t n = 0;
    bool gap = false;
    for (size_t i = 0; i < key.size; i++) {
        unsigned char c = (unsigned char)key.text[i];
        if (!isalnum(c)) {
            gap = true;
            continue;
        }
        bool hump = isupper(c) && i > 0 && islower((unsigned char)key.text[i - 1]);
        if ((gap || hump) && n > 0 && n + 1 < size) name[n++] = '_';
        if (n + 1 < size) name[n++] = (char)tolower(c);
        gap = false;
    }
    name[n] = 0;
}

// ---- what the user named ----

static keel_import_field standard_field(const char *name) {
    if (strcmp(name, "step") == 0) return KEEL_IMPORT_STEP;
    if (strcmp(name, "epoch") == 0) return KEEL_IMPORT_EPOCH;
    for (keel_import_field field = 0; field < KEEL_IMPORT_STANDARD; field++)
        if (strcmp(name, keel_import_field_name(field)) == 0) return field;
    return KEEL_IMPORT_NOTHING;
}

static keel_status add_user_name(keel_import_names *names, keel_import_slice part) {
    const char *equals = memchr(part.text, '=', part.size);
    size_t left = equals ? (size_t)(equals - part.text) : 0;
    if (!left || left + 1 == part.size)
        return keel_fail(KEEL_ERR_CONFIG, "columns: \"%.*s\" is not name=column", (int)part.size, part.text);
    if (names->user_count == USER_NAMES) return keel_fail(KEEL_ERR_CONFIG, "columns: more than %d names", USER_NAMES);
    user_name *added = &names->user[names->user_count];
    if (left >= sizeof added->name)
        return keel_fail(KEEL_ERR_CONFIG, "columns: the name \"%.*s\" is longer than %d bytes", (int)left, part.text,
                         SCALAR_NAME_BYTES - 1);
    memcpy(added->name, part.text, left);
    added->column = (keel_import_slice){equals + 1, part.size - left - 1};
    for (size_t i = 0; i < names->user_count; i++)
        if (strcmp(names->user[i].name, added->name) == 0)
            return keel_fail(KEEL_ERR_CONFIG, "columns: \"%s\" is given twice", added->name);
    added->field = standard_field(added->name);
    if (added->field == KEEL_IMPORT_NOTHING) added->field = KEEL_IMPORT_STANDARD + (keel_import_field)names->user_count;
    if (added->field == KEEL_IMPORT_STEP)
        names->step_by_user = true;
    else if (added->field == KEEL_IMPORT_EPOCH)
        names->epoch_by_user = true;
    else
        names->by_user |= KEEL_IMPORT_BIT(added->field);
    names->user_count++;
    return KEEL_OK;
}

static keel_status read_columns(keel_import_names *names, const char *columns) {
    names->columns = strdup(columns);
    if (!names->columns) return keel_fail(KEEL_ERR_MEMORY, "no memory for the columns");
    for (char *part = names->columns; part;) {
        char *comma = strchr(part, ',');
        size_t size = comma ? (size_t)(comma - part) : strlen(part);
        keel_status status = add_user_name(names, (keel_import_slice){part, size});
        if (status) return status;
        part = comma ? comma + 1 : NULL;
    }
    return KEEL_OK;
}

keel_status keel_import_names_open(const keel_import_name *table, size_t count, const char *columns,
                                   keel_import_names **names) {
    keel_import_names *made = calloc(1, sizeof *made);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "no memory for the names of a log");
    made->table = table ? table : common;
    made->count = table ? count : sizeof common / sizeof *common;
    for (size_t i = 0; i < KEEL_IMPORT_SCALARS; i++) made->bound[i] = KEEL_IMPORT_NO_KEY;
    keel_status status = columns ? read_columns(made, columns) : KEEL_OK;
    if (status) {
        keel_import_names_close(made);
        return status;
    }
    *names = made;
    return KEEL_OK;
}

void keel_import_names_close(keel_import_names *names) {
    if (!names) return;
    for (int32_t i = 0; i < names->key_count; i++) free(names->keys[i].text);
    free(names->keys);
    free(names->places);
    free(names->columns);
    free(names);
}

// ---- keys ----

static bool taken_by_user(const keel_import_names *names, keel_import_field field) {
    if (field == KEEL_IMPORT_STEP) return names->step_by_user;
    if (field == KEEL_IMPORT_EPOCH) return names->epoch_by_user;
    return field < KEEL_IMPORT_SCALARS && (names->by_user & KEEL_IMPORT_BIT(field));
}

static void resolve(keel_import_names *names, known_key *key) {
    key->field = KEEL_IMPORT_NOTHING;
    for (size_t i = 0; i < names->user_count; i++)
        if (names->user[i].column.size == key->size && memcmp(names->user[i].column.text, key->text, key->size) == 0) {
            key->field = names->user[i].field;
            key->rank = 0;
            names->user[i].met = true;
            return;
        }
    char name[NAME_BYTES];
    keel_import_normalize((keel_import_slice){key->text, key->size}, name, sizeof name);
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->table[i].name, name) == 0 && !taken_by_user(names, names->table[i].field)) {
            key->field = names->table[i].field;
            key->rank = (uint32_t)i + 1;
            return;
        }
}

static bool is_key(const known_key *known, keel_import_slice key) {
    return known->size == key.size && memcmp(known->text, key.text, key.size) == 0;
}

static size_t hash_of(keel_import_slice key) { // FNV-1a
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < key.size; i++) hash = (hash ^ (unsigned char)key.text[i]) * UINT64_C(0x100000001b3);
    return (size_t)(hash ^ hash >> 32);
}

// The place of KEY in the table: where it is, or the free one where it belongs.
static int32_t *place_of(const keel_import_names *names, keel_import_slice key) {
    size_t mask = 2 * (size_t)names->key_capacity - 1, at = hash_of(key) & mask;
    while (names->places[at] >= 0 && !is_key(&names->keys[names->places[at]], key)) at = (at + 1) & mask;
    return &names->places[at];
}

static bool grow_keys(keel_import_names *names) {
    int32_t capacity = names->key_capacity ? 2 * names->key_capacity : 64;
    known_key *keys = realloc(names->keys, (size_t)capacity * sizeof *keys);
    if (!keys) return false;
    names->keys = keys;
    int32_t *places = realloc(names->places, 2 * (size_t)capacity * sizeof *places);
    if (!places) return false;
    names->places = places;
    names->key_capacity = capacity;
    memset(places, 0xff, 2 * (size_t)capacity * sizeof *places);
    for (int32_t i = 0; i < names->key_count; i++)
        *place_of(names, (keel_import_slice){keys[i].text, keys[i].size}) = i;
    return true;
}

int32_t keel_import_names_key(keel_import_names *names, keel_import_slice key) {
    if (names->expected < names->key_count && is_key(&names->keys[names->expected], key)) return names->expected++;
    if (names->key_count) {
        int32_t found = *place_of(names, key);
        if (found >= 0) {
            names->expected = found + 1;
            return found;
        }
    }
    // A log with more keys than that makes them up as it goes.
    if (names->key_count == KEYS_KEPT) return KEEL_IMPORT_NO_KEY;
    if (names->key_count == names->key_capacity && !grow_keys(names)) return KEEL_IMPORT_NO_KEY;
    known_key *added = &names->keys[names->key_count];
    added->text = malloc(key.size + 1);
    if (!added->text) return KEEL_IMPORT_NO_KEY;
    memcpy(added->text, key.text, key.size);
    added->text[key.size] = 0;
    added->size = key.size;
    *place_of(names, key) = names->key_count;
    resolve(names, added);
    names->expected = names->key_count + 1;
    return names->key_count++;
}

keel_import_field keel_import_names_field(const keel_import_names *names, int32_t key) {
    return key < 0 ? KEEL_IMPORT_NOTHING : names->keys[key].field;
}

const char *keel_import_names_scalar(const keel_import_names *names, keel_import_field field) {
    return field < KEEL_IMPORT_STANDARD ? keel_import_field_name(field)
                                        : names->user[field - KEEL_IMPORT_STANDARD].name;
}

const char *keel_import_names_text(const keel_import_names *names, int32_t key) {
    return names->keys[key].text;
}

bool keel_import_names_stepped(const keel_import_names *names) {
    return names->stepped;
}

bool keel_import_names_any(const keel_import_names *names) {
    return names->key_count > 0;
}

keel_status keel_import_names_check(const keel_import_names *names, const char *path) {
    for (size_t i = 0; i < names->user_count; i++) {
        if (names->user[i].met) continue;
        char list[512] = "";
        size_t used = 0;
        for (int32_t k = 0; k < names->key_count && k < SHOWN_KEYS && used < sizeof list; k++) {
            int n = snprintf(list + used, sizeof list - used, "%s\"%s\"", k ? ", " : "", names->keys[k].text);
            used += n > 0 ? (size_t)n : 0;
        }
        return keel_fail(KEEL_ERR_CONFIG, "%s: nothing is called \"%.*s\" (columns: %s=%.*s); there are %s%s", path,
                         (int)names->user[i].column.size, names->user[i].column.text, names->user[i].name,
                         (int)names->user[i].column.size, names->user[i].column.text, list,
                         names->key_count > SHOWN_KEYS ? ", ..." : "");
    }
    return KEEL_OK;
}

static bool is_preferred(const keel_import_names *names, int32_t key, int32_t to) {
    return to == KEEL_IMPORT_NO_KEY || names->keys[key].rank < names->keys[to].rank;
}

void keel_import_names_bind(keel_import_names *names, const int32_t *keys, size_t count) {
    for (size_t i = 0; i < KEEL_IMPORT_SCALARS; i++) names->bound[i] = KEEL_IMPORT_NO_KEY;
    for (size_t i = 0; i < count; i++) {
        keel_import_field field = keel_import_names_field(names, keys[i]);
        if (field < KEEL_IMPORT_SCALARS && is_preferred(names, keys[i], names->bound[field]))
            names->bound[field] = keys[i];
    }
}

bool keel_import_names_is_bound(const keel_import_names *names, int32_t key) {
    keel_import_field field = keel_import_names_field(names, key);
    return field == KEEL_IMPORT_EPOCH || (field < KEEL_IMPORT_SCALARS && names->bound[field] == key);
}

// ---- a record in the making ----

void keel_import_draft_begin(keel_import_draft *draft) {
    keel_import_record_clear(&draft->record);
    draft->key[KEEL_IMPORT_STEP] = draft->key[KEEL_IMPORT_EPOCH] = KEEL_IMPORT_NO_KEY;
    draft->phase[0] = 0;
    draft->summary = draft->bad_step = false;
    draft->unread = 0;
    draft->unread_key = KEEL_IMPORT_NO_KEY;
    draft->unread_text[0] = 0;
}

// What programs write for a value that there is not.
static bool is_absent(keel_import_slice text) {
    static const char *const words[] = {"none", "null", "na", "n/a", "nil", "-", "--", "true", "false"};
    while (text.size && isspace((unsigned char)*text.text)) text.text++, text.size--;
    while (text.size && isspace((unsigned char)text.text[text.size - 1])) text.size--;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (text.size == strlen(words[i]) && strncasecmp(text.text, words[i], text.size) == 0) return true;
    return text.size == 0;
}

static void note_unread(keel_import_draft *draft, int32_t key, keel_import_slice text) {
    if (draft->unread_text[0]) return;
    draft->unread_key = key;
    snprintf(draft->unread_text, sizeof draft->unread_text, "%.*s", (int)text.size, text.text);
}

void keel_import_draft_number(keel_import_names *names, keel_import_draft *draft, int32_t key, double value) {
    keel_import_field field = keel_import_names_field(names, key);
    keel_import_record *record = &draft->record;
    if (field < KEEL_IMPORT_SCALARS) {
        bool again = (record->set & KEEL_IMPORT_BIT(field)) != 0;
        int32_t bound = names->bound[field];
        if (again && (draft->key[field] == bound || (key != bound && !is_preferred(names, key, draft->key[field]))))
            return;
        keel_import_record_set(record, field, value);
        draft->key[field] = key;
    } else if (field == KEEL_IMPORT_STEP) {
        uint64_t step;
        if (!is_preferred(names, key, draft->key[field])) return;
        if (!keel_import_step_from(value, &step)) {
            char text[sizeof draft->unread_text];
            const int size = snprintf(text, sizeof text, "%.17g", value);
            note_unread(draft, key, (keel_import_slice){text, (size_t)size});
            draft->bad_step = true;
            return;
        }
        names->stepped = true;
        record->step = step;
        record->has_step = true;
        draft->key[field] = key;
    } else if (field == KEEL_IMPORT_EPOCH) {
        if (!is_preferred(names, key, draft->key[field]) || !isfinite(value)) return;
        record->epoch = value;
        draft->key[field] = key;
    } else if (field == KEEL_IMPORT_SUMMARY) {
        draft->summary = true;
    }
}

void keel_import_draft_text(keel_import_names *names, keel_import_draft *draft, int32_t key, keel_import_slice text) {
    keel_import_field field = keel_import_names_field(names, key);
    if (field == KEEL_IMPORT_NOTHING) return;
    if (field == KEEL_IMPORT_SUMMARY) {
        draft->summary = true;
        return;
    }
    if (field == KEEL_IMPORT_PHASE) {
        char phase[sizeof draft->phase];
        keel_import_normalize(text, phase, sizeof phase);
        static const char *const evaluations[] = {"val", "eval", "test", "dev"};
        for (size_t i = 0; i < sizeof evaluations / sizeof *evaluations; i++)
            if (strncmp(phase, evaluations[i], strlen(evaluations[i])) == 0) memcpy(draft->phase, phase, sizeof phase);
        return;
    }
    const char *slash = field == KEEL_IMPORT_STEP ? memchr(text.text, '/', text.size) : NULL;
    if (slash) text.size = (size_t)(slash - text.text); // "10/1000"
    double value;
    if (keel_import_number(text, &value)) {
        keel_import_draft_number(names, draft, key, value);
    } else if (!is_absent(text)) {
        note_unread(draft, key, text);
        draft->unread += field < KEEL_IMPORT_SCALARS;
        draft->bad_step |= field == KEEL_IMPORT_STEP;
    }
}

static void move(keel_import_record *record, keel_import_field from, keel_import_field to) {
    if ((record->set & KEEL_IMPORT_BIT(from)) && !(record->set & KEEL_IMPORT_BIT(to)))
        keel_import_record_set(record, to, record->values[from]);
}

bool keel_import_draft_end(keel_import_names *names, keel_import_draft *draft) {
    names->expected = 0;
    keel_import_record *record = &draft->record;
    if (draft->summary) return false;
    if (draft->phase[0]) {
        move(record, KEEL_IMPORT_LOSS, KEEL_IMPORT_EVAL_LOSS);
        move(record, KEEL_IMPORT_PERPLEXITY, KEEL_IMPORT_EVAL_PERPLEXITY);
        record->set &= KEEL_IMPORT_EVALUATION;
        return record->set != 0;
    }
    for (uint64_t left = record->set; left; left &= left - 1) {
        keel_import_field field = (keel_import_field)__builtin_ctzll(left);
        int32_t key = draft->key[field], bound = names->bound[field];
        if (bound == key) {
            names->missed[field] = 0;
        } else if (bound == KEEL_IMPORT_NO_KEY || ++names->missed[field] >= GONE_AFTER) {
            names->bound[field] = key;
            names->missed[field] = 0;
        } else {
            record->set &= ~KEEL_IMPORT_BIT(field);
        }
    }
    return record->set != 0;
}
