// One writer for a run directory: a lock on the directory itself, which goes with the process; where its file system
// has no locks, a file "keel.lock" in it that says who writes.
#ifndef KEEL_COLLECTORS_STORE_RUN_LOCK_H
#define KEEL_COLLECTORS_STORE_RUN_LOCK_H

#include <stdbool.h>

#include "probe/status.h"

typedef struct keel_run_lock {
    int directory; // open, and locked unless BY_FILE
    bool by_file;
} keel_run_lock;

// KEEL_ERR_USAGE while another process has it, KEEL_ERR_IO where the directory cannot be written.
keel_status keel_run_lock_take(const char *directory, keel_run_lock *lock);
// Says that the writer lives; to be called every few seconds. False where another has taken the lock meanwhile. Nothing
// where the lock is one of the system's.
bool keel_run_lock_touch(const keel_run_lock *lock);
void keel_run_lock_release(keel_run_lock *lock);
// The directory is still the one that is locked, and the lock this process's.
bool keel_run_lock_holds(const keel_run_lock *lock, const char *directory);

// Whether some process has it. Of a process on another host that writes without locks only its last touch tells: it is
// taken for alive for two minutes after it.
bool keel_run_locked(const char *directory);

#endif
