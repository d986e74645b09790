// Preloaded into a program, lets a test do to it what only a bug would: after SIGUSR1 its next matrix product never
// ends, SIGUSR2 calls exit.
#include <cblas.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef void product(const CBLAS_LAYOUT, const CBLAS_TRANSPOSE, const CBLAS_TRANSPOSE, const blasint, const blasint,
                     const blasint, const float, const float *, const blasint, const float *, const blasint,
                     const float, float *, const blasint);

static volatile sig_atomic_t endless;

static void make_endless(int number) {
    (void)number;
    endless = 1;
}

static void leave(int number) {
    (void)number;
    exit(7); // NOLINT(bugprone-signal-handler): as a program does that gives up in the middle of anything
}

__attribute__((constructor)) static void listen_for_signals(void) {
    signal(SIGUSR1, make_endless);
    signal(SIGUSR2, leave);
}

__attribute__((visibility("default"))) void cblas_sgemm(const CBLAS_LAYOUT layout, const CBLAS_TRANSPOSE ta,
                                                        const CBLAS_TRANSPOSE tb, const blasint m, const blasint n,
                                                        const blasint k, const float alpha, const float *a,
                                                        const blasint lda, const float *b, const blasint ldb,
                                                        const float beta, float *c, const blasint ldc) {
    static product *real;
    while (endless) continue;
    if (!real) {
        void *found = dlsym(RTLD_NEXT, "cblas_sgemm");
        memcpy(&real, &found, sizeof real);
    }
    real(layout, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
