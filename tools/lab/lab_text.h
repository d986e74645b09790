// The text of a training of the laboratory: what its files hold in letters, all else a space, so that no token is so
// rare that a healthy run stumbles over it (as in text8, Mahoney 2006). Small letters; on request stretches between
// them in which the twelve rarer letters are capitals, so that some tokens are long unseen and then come back.
#ifndef KEEL_TOOLS_LAB_LAB_TEXT_H
#define KEEL_TOOLS_LAB_LAB_TEXT_H

#include <stdint.h>

#include "configs/yaml.h"

typedef struct keel_lab_text {
    int64_t small;    // letters and spaces in small letters, then ...
    int64_t capitals; // ... with capitals among them, and again; 0: none
} keel_lab_text;

// Of FILES, a list of paths (train_dataset.text), to PATH. KEEL_ERR_IO, with the path; KEEL_ERR_CONFIG, with the place,
// where FILES is no such list.
keel_status keel_lab_text_write(const keel_lab_text *text, const keel_yaml_node *files, const char *path);

#endif
