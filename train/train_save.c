#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

#include "train/atomic_file.h"
#include "train/earlier_run.h"
#include "train/trainer_state.h"

// Two runs in one folder would move and overwrite each other's checkpoints. A file system without locks is taken as it
// is. The lock goes with the process, however that ends; it is on a file, since the lock on the folder itself is that
// of a monitor whose output is the same folder.
keel_status keel_trainer_lock_output(keel_trainer *trainer) {
    const char *folder = trainer->config->runner.output_dir;
    char *path;
    if (trainer->output_lock >= 0) return KEEL_OK;
    if (asprintf(&path, "%s/train.lock", folder) < 0) return keel_fail(KEEL_ERR_MEMORY, "%s: no memory", folder);
    trainer->output_lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    keel_status status = KEEL_OK;
    if (trainer->output_lock < 0 && errno != ENOENT)
        status = keel_fail(KEEL_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    else if (trainer->output_lock >= 0 && flock(trainer->output_lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        status = keel_fail(KEEL_ERR_USAGE, "%s: another training writes there: name another runner_config.output_dir",
                           folder);
    free(path);
    return status;
}

keel_status keel_trainer_begin_folders(keel_trainer *trainer) {
    const char *path = trainer->config->runner.output_dir;
    char *moved = NULL;
    keel_status status = keel_make_folders(path);
    if (status) return keel_fail(status, "runner_config.output_dir: %s", keel_error());
    status = keel_trainer_lock_output(trainer);
    if (status) return status;
    keel_checkpoint_folder_clean(&trainer->folder);
    if (!trainer->new_run) return KEEL_OK;
    status = keel_earlier_run_move(path, &moved);
    if (moved) {
        keel_trainer_note(trainer, "checkpoints, train.csv and model of an earlier run are now in %s", moved);
        keel_checkpoint_folder_close(&trainer->folder);
        status = keel_checkpoint_folder_open(path, &trainer->folder);
    }
    free(moved);
    return status;
}

static keel_status write_on_rank_0(keel_trainer *trainer, const keel_checkpoint *checkpoint) {
    const keel_checkpoint_config *config = &trainer->config->checkpoint;
    const keel_checkpoint_entry entry = {.step = checkpoint->progress.step};
    char *path = keel_checkpoint_folder_path(&trainer->folder, &entry);
    keel_status status = path ? keel_make_folders(trainer->folder.path)
                              : keel_fail(KEEL_ERR_MEMORY, "%s: no memory", trainer->folder.path);
    const keel_status written = keel_checkpoint_write(status ? NULL : path, checkpoint, &trainer->facts);
    free(path);
    if (!status) status = written;
    if (!status) status = keel_checkpoint_folder_add(&trainer->folder, entry.step);
    if (!status)
        status = keel_checkpoint_folder_prune(&trainer->folder, (size_t)config->keep, (size_t)config->keep_healthy);
    return status;
}

// REFUSED: rank 0 will not have it, whatever the tensors hold.
static const double REFUSED = -1;

static void save_on_rank_0(keel_trainer *trainer) {
    keel_checkpoint checkpoint = {.reshard = trainer->reshard, .progress = trainer->progress};
    const uint64_t step = trainer->progress.step;
    if (keel_probe_save(trainer->probe, &checkpoint.monitor, &checkpoint.monitor_bytes))
        keel_trainer_note(trainer, "checkpoint at step %" PRIu64 " without the monitor's state: %s", step,
                          keel_error());
    if (write_on_rank_0(trainer, &checkpoint))
        keel_trainer_note(trainer, "checkpoint at step %" PRIu64 " failed, training goes on: %s", step, keel_error());
    free(checkpoint.monitor);
}

// All ranks know alike whether there is anything against it.
static bool may_save(keel_trainer *trainer, bool critical_open) {
    const uint64_t step = trainer->progress.step;
    const bool refused =
        critical_open || (trainer->mesh.world.rank == 0 && keel_probe_health(trainer->probe).open_criticals);
    double first = refused ? REFUSED : keel_reshard_nonfinite(trainer->reshard);
    if (keel_reshard_least(trainer->reshard, &first)) return false;
    if (first == REFUSED)
        keel_trainer_note(trainer, "no checkpoint at step %" PRIu64 ": a critical incident is open", step);
    if (isfinite(first) && first != REFUSED) {
        char name[KEEL_SITE_NAME_BYTES + 32];
        keel_reshard_name_nonfinite(trainer->reshard, first, name);
        keel_trainer_note(trainer, "no checkpoint at step %" PRIu64 ": %s holds a NaN or Inf", step, name);
    }
    return !isfinite(first);
}

void keel_trainer_save(keel_trainer *trainer, bool critical_open) {
    const bool leads = trainer->mesh.world.rank == 0;
    trainer->saved_step = trainer->progress.step;
    // So that the detectors have judged this very step. All ranks know alike whether it is worth the wait.
    if (!critical_open && keel_probe_drain(trainer->probe))
        keel_trainer_note(trainer, "the monitor could not catch up before the checkpoint: %s", keel_error());
    if ((!leads && keel_reshard_alone(trainer->reshard)) || !may_save(trainer, critical_open)) return;
    if (leads)
        save_on_rank_0(trainer);
    else // it says itself what goes wrong
        (void)keel_checkpoint_write(NULL, &(keel_checkpoint){.reshard = trainer->reshard}, &trainer->facts);
}

void keel_trainer_judge_checkpoints(keel_trainer *trainer) {
    if (trainer->mesh.world.rank != 0) return;
    const keel_health health = keel_probe_health(trainer->probe);
    if (keel_checkpoint_folder_judge(&trainer->folder, &health))
        keel_trainer_note(trainer, "a checkpoint could not be marked healthy: %s", keel_error());
}
