// The assembly: one call that wires probe, monitor, store, rules and alerts together, as the monitor's YAML says. For
// any training program of one process that links libkeel; assemble_ranks.h is for several.
#ifndef KEEL_TOOLS_ASSEMBLE_H
#define KEEL_TOOLS_ASSEMBLE_H

#include "configs/monitor_config.h"
#include "probe/keel.h"

KEEL_C_BEGIN

typedef struct keel_assembly keel_assembly;

typedef struct keel_assembly_options {
    const char *monitor_path;          // monitor YAML; NULL: the defaults
    const keel_monitor_config *config; // or a configuration already read; borrowed
    const char *output;                // run directory where the YAML names none; NULL: "runs/keel"
    const char *command;               // for the store; NULL: unknown
    // The program's own settings, for the store, which keeps the monitor's beside them as `monitor`: a YAML mapping.
    // NULL: none.
    const char *config_yaml;
    uint32_t dp, tp, pp, ep; // mesh; 0 counts as 1
    bool resume;             // continue the run in the directory; false: the directory must hold none
} keel_assembly_options;

// KEEL_ERR_CONFIG with file, line and key; KEEL_ERR_USAGE where the directory holds a run and resume is false.
KEEL_API keel_status keel_assembly_open(const keel_assembly_options *options, keel_assembly **assembly);
// The probe, with the monitor behind it. Owned by the assembly.
KEEL_API keel_probe *keel_assembly_probe(keel_assembly *assembly);
KEEL_API const char *keel_assembly_directory(const keel_assembly *assembly);
// One line on what is watched; valid after keel_probe_start.
KEEL_API const char *keel_assembly_describe(const keel_assembly *assembly);
// The program was asked to stop, and will: what becomes of its other ranks now is no surprise. From any thread.
KEEL_API void keel_assembly_stopping(keel_assembly *assembly);
// Drains and closes everything. KEEL_ERR_IO: something could not be recorded, which was logged. Collective where there
// are several ranks; see keel_monitor_close for what a failure means then.
KEEL_API keel_status keel_assembly_close(keel_assembly *assembly);

KEEL_C_END

#endif
