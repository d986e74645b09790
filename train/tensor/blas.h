// Which BLAS kernels run, and whether they are right. OpenBLAS may take a new CPU for an ancient one.
#ifndef KEEL_TRAIN_TENSOR_BLAS_H
#define KEEL_TRAIN_TENSOR_BLAS_H

#include "probe/status.h"

// To be called first in main, before MPI_Init: if OpenBLAS chose a kernel below what CPUID allows, sets OPENBLAS_CORETYPE and
// executes the program again, once (an environment variable marks it). Returns if nothing is to be done. A user's own OPENBLAS_CORETYPE is left alone.
void keel_blas_choose(char **argv);
// A small product against a plain loop: KEEL_ERR_FORMAT if the chosen kernel computes wrong results.
keel_status keel_blas_check(void);
// "OpenBLAS 0.3.21, SkylakeX kernels, 2 threads"; malloc'ed.
char *keel_blas_describe(void);
const char *keel_blas_core(void);          // as openblas_get_corename()
const char *keel_blas_core_expected(void); // what CPUID allows: "SkylakeX", "Haswell", ...

#endif
