// A case of the laboratory: one YAML file, laid over configs/lab/base.yaml.
//
//     about: what it is, in a few words
//     ranks: 2                      # 1
//     alone: true                   # nothing else runs beside it (where time is judged); false
//     text: {small: 60000, capitals: 9000}    # stretches without and with capitals, see lab_text.h; none
//     draw: {onset: [120, 180], rank: {of: [0, 1]}, factor: [5.0, 20.0]}
//     train: {...}                  # sections of the trainer's YAML
//     resume: [{...}, ...]          # each continues the run of the one before it, with these sections besides
//     find:                         # what must be found; absent: the run is healthy
//       rules: [loss_spike]         # an alert of one of these finds it
//       onset: $onset               # step from which it can show; 1
//       sudden: true                # it begins in one step: the latency counts; false
//       site: layers.$layer         # what the site begins with; absent: none is asked for
//       rank: $rank                 # absent: none is asked for
//       cause: bad batch
//
// draw: a list of two is a range, of whole numbers if both are (all as likely), else on a logarithmic scale; {of:
// [...]} chooses one. $NAME stands for the value anywhere below.
#ifndef KEEL_TOOLS_LAB_LAB_CASE_H
#define KEEL_TOOLS_LAB_LAB_CASE_H

#include "configs/yaml.h"
#include "tools/lab/lab_text.h"

typedef struct keel_lab_find {
    char **rules; // NULL-terminated
    int64_t onset;
    bool sudden;
    char *site;   // NULL: any
    int64_t rank; // -1: any
    char *cause;
} keel_lab_find;

typedef struct keel_lab_case {
    char *name, *about;
    int64_t ranks;
    bool alone;
    bool faulty; // `find` is there
    keel_lab_find find;
    keel_lab_text text;
    keel_yaml *doc; // owned: of the nodes below, drawn values in their places
    const keel_yaml_node *train;
    const keel_yaml_node *resume; // a list; NULL: none
} keel_lab_case;

// The file's name without folder and ".yaml" is the case's. The same SEED draws the same values. KEEL_ERR_CONFIG, with
// the place, for a key that does not exist or a value of the wrong kind.
keel_status keel_lab_case_load(const char *path, uint64_t seed, keel_lab_case **made);
void keel_lab_case_free(keel_lab_case *lab_case); // NULL is fine

// The names of a folder's cases, sorted; the base is none. malloc'ed, NULL-terminated, free with
// keel_yaml_free_strings.
keel_status keel_lab_case_names(const char *folder, char ***names, size_t *count);

#endif
