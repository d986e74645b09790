#include "tools/import/import_json.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 256, NESTED = 4, TRIES = 4, ELEMENT_BYTES = 1 << 20 };

// One "key": value of a flat object with what follows it. Nearly all records of nearly all logs are flat, and this is
// three times as fast as building and taking down a tree; the rest goes to jansson.
static keel_import_pattern pair = {
    .source = "\\s*+(?:\"([^\"\\\\]*+)\"|'([^'\\\\]*+)')\\s*+:\\s*+"
              "(?:(" KEEL_IMPORT_NUMBER ")|\"([^\"\\\\]*+)\"|'([^'\\\\]*+)'|(?i:null|none|true|false))\\s*+([,}])",
    .options = PCRE2_ANCHORED,
};

static bool flat_object(keel_import_match *match, keel_import_names *names, keel_import_draft *draft, const char *text,
                        size_t size, size_t *used) {
    for (size_t at = 1; keel_import_find(match, &pair, text, size, at);) {
        keel_import_slice key = keel_import_group(match, 1);
        if (!key.text) key = keel_import_group(match, 2);
        int32_t number = keel_import_names_key(names, key);
        if (keel_import_names_field(names, number) != KEEL_IMPORT_NOTHING) {
            double value;
            keel_import_slice string = keel_import_group(match, 4);
            if (!string.text) string = keel_import_group(match, 5);
            if (string.text)
                keel_import_draft_text(names, draft, number, string);
            else if (keel_import_group_number(match, 3, &value))
                keel_import_draft_number(names, draft, number, value);
        }
        at = keel_import_match_end(match);
        if (text[at - 1] == '}') {
            *used = at;
            return true;
        }
    }
    return false;
}

// ---- any object, by jansson ----

static bool is_word(char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// A copy with the bare words NaN and Infinity in quotes, or NULL if there are none (or no memory).
static char *quote_nonfinite(const char *text, size_t size, size_t *copied) {
    static const char *const words[] = {"NaN", "Infinity", "-Infinity", "-NaN"};
    // A word with its quotes is at most 5/3 as long.
    char *copy = malloc(2 * size + 2);
    if (!copy) return NULL;
    size_t n = 0;
    bool in_string = false, changed = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (in_string) {
            copy[n++] = c;
            if (c == '\\' && i + 1 < size)
                copy[n++] = text[++i];
            else if (c == '"')
                in_string = false;
            continue;
        }
        in_string = c == '"';
        size_t word = 0;
        if (c == 'N' || c == 'I' || c == '-')
            for (size_t w = 0; w < sizeof words / sizeof *words && !word; w++) {
                size_t length = strlen(words[w]);
                if (length <= size - i && memcmp(text + i, words[w], length) == 0 &&
                    (i + length == size || !is_word(text[i + length])))
                    word = length;
            }
        if (!word) {
            copy[n++] = c;
            continue;
        }
        copy[n++] = '"';
        memcpy(copy + n, text + i, word);
        n += word;
        copy[n++] = '"';
        i += word - 1;
        changed = true;
    }
    if (!changed) {
        free(copy);
        return NULL;
    }
    *copied = n;
    return copy;
}

typedef struct walk {
    keel_import_names *names;
    keel_import_draft *draft;
    char path[PATH_BYTES];
} walk;

static void take_value(walk *w, size_t length, json_t *value, int depth);

static void take_object(walk *w, size_t length, json_t *object, int depth) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        size_t size = strlen(key), at = length;
        if (at) w->path[at++] = '/';
        if (at + size + 2 > sizeof w->path) continue;
        memcpy(w->path + at, key, size);
        take_value(w, at + size, value, depth);
    }
}

static void take_value(walk *w, size_t length, json_t *value, int depth) {
    if (json_is_object(value)) {
        if (depth < NESTED) take_object(w, length, value, depth + 1);
        return;
    }
    // A learning rate per group of parameters: the first.
    if (json_is_array(value)) value = json_array_get(value, 0);
    if (!json_is_number(value) && !json_is_string(value)) return;
    int32_t key = keel_import_names_key(w->names, (keel_import_slice){w->path, length});
    if (json_is_number(value))
        keel_import_draft_number(w->names, w->draft, key, json_number_value(value));
    else
        keel_import_draft_text(w->names, w->draft, key,
                               (keel_import_slice){json_string_value(value), json_string_length(value)});
}

// Numbers as doubles: an integer beyond 64 bits (a count of operations) must not cost the record.
static json_t *parse(const char *text, size_t size, size_t *used) {
    json_error_t error;
    json_t *root = json_loadb(text, size, JSON_DISABLE_EOF_CHECK | JSON_DECODE_INT_AS_REAL, &error);
    if (root) *used = (size_t)error.position;
    return root;
}

static bool any_object(keel_import_names *names, keel_import_draft *draft, const char *text, size_t size,
                       size_t *used) {
    size_t end = 0;
    json_t *root = parse(text, size, &end);
    if (!root) {
        size_t copied, ignored;
        char *copy = quote_nonfinite(text, size, &copied);
        if (!copy) return false;
        root = parse(copy, copied, &ignored);
        free(copy);
        end = size; // positions in the copy are not those in the text; records are one to a line
    }
    if (!root) return false;
    walk w = {.names = names, .draft = draft};
    take_object(&w, 0, root, 0);
    json_decref(root);
    *used = end;
    return true;
}

bool keel_import_json_object(keel_import_match *match, keel_import_names *names, keel_import_draft *draft,
                             const char *text, size_t size, size_t *used) {
    keel_import_draft_begin(draft);
    if (flat_object(match, names, draft, text, size, used)) return true;
    keel_import_draft_begin(draft);
    return any_object(names, draft, text, size, used);
}

// A brace that begins the value of a key, or an element, is inside of an object that was cut.
static bool is_inner(const char *text, const char *brace) {
    while (brace > text && isspace((unsigned char)brace[-1])) brace--;
    return brace > text && strchr(":,[", brace[-1]);
}

keel_import_json_found keel_import_json_find(keel_import_match *match, keel_import_names *names,
                                             keel_import_draft *draft, const char *text, size_t size) {
    const char *end = text + size;
    const char *brace = memchr(text, '{', size);
    keel_import_json_found found = KEEL_IMPORT_JSON_NOTHING;
    for (int tries = 0; brace && tries < TRIES; tries++) {
        size_t used;
        const char *next = brace + 1;
        keel_import_draft tried;
        bool whole = (tries == 0 || !is_inner(text, brace)) &&
                     keel_import_json_object(match, names, &tried, brace, (size_t)(end - brace), &used);
        if (whole) {
            const bool record = keel_import_draft_end(names, &tried);
            if (record || found == KEEL_IMPORT_JSON_NOTHING) *draft = tried;
            if (record) return KEEL_IMPORT_JSON_RECORD;
            found = KEEL_IMPORT_JSON_OBJECT;
            next = brace + used;
        }
        brace = next < end ? memchr(next, '{', (size_t)(end - next)) : NULL;
    }
    return found;
}

// Text between the records of a log is its own; what begins as an object should be one.
static bool looks_like_object(const keel_import_line *line) {
    const char *text = line->text;
    while (isspace((unsigned char)*text)) text++;
    return *text == '{' || memmem(line->text, line->size, "{\"", 2);
}

keel_status keel_import_json_line(keel_import_context *context, const keel_import_line *line, bool stepped) {
    keel_import_draft draft;
    keel_import_names *names = keel_import_context_names(context);
    switch (keel_import_json_find(keel_import_matcher(context), names, &draft, line->text, line->size)) {
    case KEEL_IMPORT_JSON_RECORD:
        if (draft.record.has_step || !stepped || (draft.bad_step && keel_import_names_stepped(names)))
            return keel_import_emit_draft(context, &draft, 0);
        break;
    case KEEL_IMPORT_JSON_OBJECT:
        keel_import_leave_draft(context, &draft, 0);
        break;
    case KEEL_IMPORT_JSON_NOTHING:
        if (!line->open && looks_like_object(line))
            keel_import_leave_out(context, KEEL_IMPORT_LINES, 1, 0, "it is no whole JSON object");
    }
    return KEEL_OK;
}

// ---- documents ----

struct keel_import_json_stream {
    const char *key;
    char name[64]; // the latest string of the outermost object: a key, if a colon follows
    size_t name_size;
    uint32_t depth, array; // brackets open; depth inside the wanted array, 0 outside
    bool begun, foreign;   // the first bracket was met; it, or what stands before it, is not that of such a document
    bool in_string, escaped, named;
    bool in_element, too_long;
    uint64_t line;
    char *element;
    size_t element_size, element_capacity;
};

keel_status keel_import_json_stream_open(const char *key, keel_import_json_stream **stream) {
    keel_import_json_stream *made = calloc(1, sizeof *made);
    if (!made) return keel_fail(KEEL_ERR_MEMORY, "no memory for a JSON document");
    made->key = key;
    made->line = 1;
    *stream = made;
    return KEEL_OK;
}

void keel_import_json_stream_close(keel_import_json_stream *stream) {
    if (!stream) return;
    free(stream->element);
    free(stream);
}

static keel_status keep(keel_import_json_stream *stream, char c) {
    if (stream->too_long) return KEEL_OK;
    if (stream->element_size == stream->element_capacity) {
        size_t capacity = stream->element_capacity ? 2 * stream->element_capacity : 1024;
        stream->too_long = capacity > ELEMENT_BYTES;
        if (stream->too_long) return KEEL_OK;
        char *grown = realloc(stream->element, capacity);
        if (!grown) return keel_fail(KEEL_ERR_MEMORY, "no memory for a record of a JSON document");
        stream->element = grown;
        stream->element_capacity = capacity;
    }
    stream->element[stream->element_size++] = c;
    return KEEL_OK;
}

static void take_string(keel_import_json_stream *stream, char c) {
    if (stream->escaped)
        stream->escaped = false;
    else if (c == '\\')
        stream->escaped = true;
    else if (c == '"')
        stream->in_string = false;
    if (stream->in_string && stream->depth == 1 && stream->name_size < sizeof stream->name)
        stream->name[stream->name_size++] = c;
}

// What stands before the document: nothing but blanks and a byte order mark.
static void begin(keel_import_json_stream *stream, char c) {
    if (isspace((unsigned char)c) || strchr("\xef\xbb\xbf", c)) return;
    stream->begun = true;
    stream->foreign = c != (stream->key ? '{' : '[');
}

static void open_bracket(keel_import_json_stream *stream, char c) {
    stream->depth++;
    if (c == '[' && !stream->array) {
        bool wanted = stream->key ? stream->depth == 2 && stream->named : stream->depth == 1;
        if (wanted) stream->array = stream->depth;
    } else if (c == '{' && stream->array && stream->depth == stream->array + 1) {
        stream->in_element = true;
        stream->too_long = false;
        stream->element_size = 0;
    }
    stream->named = false;
}

// The present line is the one where the element ends.
static keel_status take_element(const keel_import_json_stream *stream, keel_import_context *context) {
    keel_import_draft draft;
    keel_import_names *names = keel_import_context_names(context);
    size_t used;
    if (stream->too_long) {
        keel_import_leave_out(context, KEEL_IMPORT_ROWS, 1, stream->line, "it is longer than %d bytes", ELEMENT_BYTES);
        return KEEL_OK;
    }
    if (!keel_import_json_object(keel_import_matcher(context), names, &draft, stream->element, stream->element_size,
                                 &used)) {
        keel_import_leave_out(context, KEEL_IMPORT_ROWS, 1, stream->line, "it is no JSON object");
        return KEEL_OK;
    }
    if (keel_import_draft_end(names, &draft)) return keel_import_emit_draft(context, &draft, stream->line);
    keel_import_leave_draft(context, &draft, stream->line);
    return KEEL_OK;
}

keel_status keel_import_json_stream_feed(keel_import_json_stream *stream, const char *bytes, size_t size,
                                         keel_import_context *context) {
    for (size_t i = 0; i < size; i++) {
        char c = bytes[i];
        bool closes = false;
        stream->line += c == '\n';
        if (!stream->begun) begin(stream, c);
        if (stream->foreign) return KEEL_OK;
        if (stream->in_string) {
            take_string(stream, c);
        } else if (c == '"') {
            stream->in_string = true;
            stream->name_size = 0;
        } else if (c == ':') {
            stream->named = stream->key && stream->depth == 1 && stream->name_size == strlen(stream->key) &&
                            memcmp(stream->name, stream->key, stream->name_size) == 0;
        } else if (c == '{' || c == '[') {
            open_bracket(stream, c);
        } else if ((c == '}' || c == ']') && stream->depth) {
            if (c == ']' && stream->depth == stream->array) stream->array = 0;
            stream->depth--;
            closes = stream->in_element && stream->depth == stream->array;
        }
        if (stream->in_element) {
            keel_status status = keep(stream, c);
            if (status) return status;
        }
        if (!closes) continue;
        stream->in_element = false;
        keel_status status = take_element(stream, context);
        if (status) return status;
    }
    return KEEL_OK;
}
