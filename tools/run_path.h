// What a path given by the user holds: a store, or a log.
#ifndef KEEL_TOOLS_RUN_PATH_H
#define KEEL_TOOLS_RUN_PATH_H

#include <stdbool.h>

#include "probe/status.h"

// A directory, a file named .h5, or one that begins as HDF5 does. "-" is none.
bool keel_path_is_store(const char *path);

// KEEL_OK unless PATH is a directory without a segment of a run: KEEL_ERR_FORMAT then says what it holds instead (the
// directories of runs, the output of keel-train without a monitor) and what to give.
keel_status keel_path_holds_run(const char *path);

// Makes the text of the latest failure begin with PATH. The status is STATUS.
keel_status keel_name_path(keel_status status, const char *path);

#endif
