// Reads the logs of other trainers as runs of rows, which the analysis takes like those of a store. The format is
// recognised by content.
//
// Steps are those the log prints (some trainers count from 0); where it prints none, records are counted from 1. One
// record is one row: the scalars loss, grad_norm, lr, loss_scale, perplexity, aux_loss, z_loss, eval_loss,
// eval_perplexity, and those that a user names; flags KEEL_STEP_* where the log tells. What a log does not say, or says
// by a constant 0 for want of it, is not set. skipped_iterations counts the updates that were skipped since the row
// before, where a row stands for several. An evaluation belongs to the row of its step, else to the row before it.
// Losses are as printed (fairseq's in bits). Runs appended in one file are several runs; steps that overlap after a
// restart from a checkpoint stay one run, its first row after the restart flagged KEEL_STEP_RESUMED.
#ifndef KEEL_TOOLS_IMPORT_IMPORT_H
#define KEEL_TOOLS_IMPORT_IMPORT_H

#include <stdio.h>

#include "analyzers/offline.h"
#include "probe/status.h"

typedef struct keel_import keel_import;

typedef struct keel_import_options {
    const char *format;  // name of an importer ("megatron"); NULL: recognised by content
    const char *columns; // "step=iter,loss=train_loss": standard name = the log's own (CSV column, JSON key,
                         // TensorBoard tag); NULL: recognised
} keel_import_options;

// Reads all of PATH that is there now ("-": standard input, to its end; gzip is recognised). Of a last line without its
// line end only what cannot change any more is taken. OPTIONS NULL: defaults. KEEL_ERR_IO if it cannot be read,
// KEEL_ERR_FORMAT if no importer knows it (names what was tried), KEEL_ERR_CONFIG for an unknown format or column,
// KEEL_ERR_MEMORY. Rows wait in a temporary file ($TMPDIR) where they are many, so that memory does not grow with the
// log.
keel_status keel_import_open(const char *path, const keel_import_options *options, keel_import **import);
void keel_import_close(keel_import *import); // NULL is fine

size_t keel_import_runs(const keel_import *import); // at least 1
// Rows of run RUN (from 0), from its first; a second call on the same run starts anew. Owned by IMPORT; its rows are
// valid until the next one.
const keel_row_source *keel_import_run(keel_import *import, size_t run);
// Lines, records and values that could not be read, which keel_import_open says once, as a warning of keel_log with the
// path, the first line and what is wrong with it.
keel_left_out keel_import_left_out(const keel_import *import);
const char *keel_import_format(const keel_import *import); // "megatron", ...

// One line per importer: name and what it reads.
void keel_import_list(FILE *out);

#endif
