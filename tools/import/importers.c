// The table of importers. To add one: from_template.c shows how.
#include <string.h>

#include "tools/import/importer.h"

extern const keel_importer keel_importer_hugging_face_state, keel_importer_hugging_face_dict,
    keel_importer_llama_factory, keel_importer_megatron, keel_importer_nanogpt, keel_importer_build_nanogpt,
    keel_importer_llmc, keel_importer_modded_nanogpt, keel_importer_fairseq, keel_importer_detectron2,
    keel_importer_lightning, keel_importer_tensorboard, keel_importer_json, keel_importer_jsonl, keel_importer_csv,
    keel_importer_text, keel_importer_overflow;

const keel_importer *const keel_importers[] = {
    &keel_importer_hugging_face_state,
    &keel_importer_hugging_face_dict,
    &keel_importer_llama_factory,
    &keel_importer_megatron,
    &keel_importer_nanogpt,
    &keel_importer_build_nanogpt,
    &keel_importer_llmc,
    &keel_importer_modded_nanogpt,
    &keel_importer_fairseq,
    &keel_importer_detectron2,
    &keel_importer_lightning,
    &keel_importer_tensorboard,
    &keel_importer_json,
    &keel_importer_jsonl,
    &keel_importer_csv,
    &keel_importer_text,
    &keel_importer_overflow,
};

const size_t keel_importer_count = sizeof keel_importers / sizeof *keel_importers;

const keel_importer *keel_importer_find(const char *name) {
    for (size_t i = 0; i < keel_importer_count; i++)
        if (strcmp(keel_importers[i]->name, name) == 0) return keel_importers[i];
    return NULL;
}
