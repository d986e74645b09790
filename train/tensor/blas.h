// Which BLAS kernels run, and whether they are right. OpenBLAS may take a new CPU for an ancient one.
#ifndef KEEL_TRAIN_TENSOR_BLAS_H
#define KEEL_TRAIN_TENSOR_BLAS_H

#include <stdbool.h>

#include "probe/status.h"

// To be called first in main (after keel_cpu_check), before MPI_Init: if OpenBLAS chose kernels below what the CPU
// allows, sets OPENBLAS_CORETYPE and executes the program again, once (an environment variable marks it). Returns if
// nothing is to be done. A user's own OPENBLAS_CORETYPE is left alone.
void keel_blas_choose(char **argv);
// The same for a given finding: OpenBLAS runs CORE, the CPU allows EXPECTED (NULL: unknown).
void keel_blas_choose_for(char **argv, const char *core, const char *expected);

// A small product against a plain loop: KEEL_ERR_FORMAT if the chosen kernel computes wrong results. Logs a warning if
// the library keeps a pool of threads of its own beside OpenMP's, or still runs slower kernels than the CPU allows.
keel_status keel_blas_check(void);
// "OpenBLAS 0.3.21, SkylakeX kernels, 2 threads"; malloc'ed, NULL without memory.
char *keel_blas_describe(void);
const char *keel_blas_core(void); // as openblas_get_corename()
const char *
keel_blas_core_expected(void); // what the CPU allows: "SkylakeX", "Haswell", "Zen", "Sandybridge"; else NULL

// True if kernels for CORE use narrower vectors than those for EXPECTED. False where either is not known.
bool keel_blas_is_below(const char *core, const char *expected);

#endif
