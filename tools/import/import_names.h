// Logs that name their values (JSON keys, CSV columns, TensorBoard tags): which of them is the loss, the step, ...
#ifndef KEEL_TOOLS_IMPORT_IMPORT_NAMES_H
#define KEEL_TOOLS_IMPORT_IMPORT_NAMES_H

#include "tools/import/import_pattern.h"
#include "tools/import/import_record.h"

// A name as a format writes it, in the form that keel_import_normalize gives; the first of a table that a record has
// wins.
typedef struct keel_import_name {
    const char *name;
    keel_import_field field;
} keel_import_name;

// Lower case, every run of other characters one underscore, "trainLoss" as "train_loss", what stands before " - " left
// off (a run's name, in tables exported from Weights & Biases). NAME holds SIZE bytes with the end mark; longer ones
// are cut.
void keel_import_normalize(keel_import_slice key, char *name, size_t size);

typedef struct keel_import_names keel_import_names;

// TABLE: COUNT names of one format; NULL: the names in common use. COLUMNS: the user's "name=column,..." or NULL; they
// win, and other names of the same scalar are then left alone. KEEL_ERR_CONFIG says what is wrong with them.
keel_status keel_import_names_open(const keel_import_name *table, size_t count, const char *columns,
                                   keel_import_names **names);
void keel_import_names_close(keel_import_names *names); // NULL is fine

// A number for KEY, of at least 0, to be used below.
enum { KEEL_IMPORT_NO_KEY = -1 };
int32_t keel_import_names_key(keel_import_names *names, keel_import_slice key);
keel_import_field keel_import_names_field(const keel_import_names *names,
                                          int32_t key); // KEEL_IMPORT_NOTHING: not wanted
// Of COUNT keys, which all come in one table, the preferred one of each scalar gives it.
void keel_import_names_bind(keel_import_names *names, const int32_t *keys, size_t count);
// True if the key gives its scalar; an epoch's always does.
bool keel_import_names_is_bound(const keel_import_names *names, int32_t key);
// Name of a scalar, standard or the user's. Valid until close.
const char *keel_import_names_scalar(const keel_import_names *names, keel_import_field field);
// The name of KEY (not NO_KEY) as the log has it. Valid until the next key.
const char *keel_import_names_text(const keel_import_names *names, int32_t key);
bool keel_import_names_stepped(const keel_import_names *names); // true if a draft had a step
bool keel_import_names_any(const keel_import_names *names);     // true if a key was met
// KEEL_ERR_CONFIG where the user named a column that was never met; PATH is for its text.
keel_status keel_import_names_check(const keel_import_names *names, const char *path);

// A record in the making. begin, then set for each value, then end.
typedef struct keel_import_draft {
    keel_import_record record;
    int32_t key[KEEL_IMPORT_NOTHING]; // that gave each field
    char phase[8];
    bool summary;
    bool bad_step;      // a step was given that is none
    uint32_t unread;    // texts where a number belongs
    int32_t unread_key; // of the first of them, or of the step
    char unread_text[32];
} keel_import_draft;

void keel_import_draft_begin(keel_import_draft *draft);
void keel_import_draft_number(keel_import_names *names, keel_import_draft *draft, int32_t key, double value);
// A text: a number in quotes, a phase, or nothing.
void keel_import_draft_text(keel_import_names *names, keel_import_draft *draft, int32_t key, keel_import_slice text);
// True if draft->record is now a record. Values of an evaluation are moved to where they belong. Once a name gave a
// scalar the others of that scalar are not mixed into it, unless the name disappears.
bool keel_import_draft_end(keel_import_names *names, keel_import_draft *draft);

#endif
