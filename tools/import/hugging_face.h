// The names that the Hugging Face Trainer writes, in trainer_state.json as in what it prints.
#ifndef KEEL_TOOLS_IMPORT_HUGGING_FACE_H
#define KEEL_TOOLS_IMPORT_HUGGING_FACE_H

#include "tools/import/importer.h"

keel_status keel_import_use_hugging_face_names(keel_import_context *context);

#endif
