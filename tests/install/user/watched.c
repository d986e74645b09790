// A program that knows Evenkeel as installed only: watches one tensor for ten steps. argv[1]: the run directory.
#include <math.h>
#include <stdio.h>

#include "probe/keel.h"
#include "tools/assemble.h"

static keel_status watch(const char *directory) {
    float grad[100] = {1};
    keel_assembly *keel;
    keel_site *site;
    keel_site_info info = {.name = "layers.0.weight",
                           .quantity = KEEL_GRAD_REDUCED,
                           .phase = KEEL_PHASE_REDUCTION,
                           .dtype = KEEL_F32,
                           .ndim = 1,
                           .shape = {100}};
    keel_status status = keel_assembly_open(&(keel_assembly_options){.output = directory}, &keel);
    if (status) return status;
    keel_probe *probe = keel_assembly_probe(keel);
    status = keel_site_add(probe, &info, &site);
    if (!status) status = keel_probe_start(probe);
    for (uint64_t step = 1; !status && step <= 10; step++) {
        keel_step_begin(probe, step);
        if (step == 7) grad[5] = NAN;
        keel_observe(site, grad, 100);
        keel_step_end(probe, &(keel_step){.step = step, .update = step});
    }
    const keel_status closed = keel_assembly_close(keel);
    return status ? status : closed;
}

int main(int argc, char **argv) {
    if (argc != 2 || !watch(argv[1])) return argc != 2;
    fprintf(stderr, "%s\n", keel_error());
    return 1;
}
