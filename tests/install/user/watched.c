// A program that knows Evenkeel as installed only: watches one tensor for ten steps. argv[1]: the run directory.
#include <math.h>

#include "probe/keel.h"
#include "tools/assemble.h"

int main(int argc, char **argv) {
    float grad[100] = {1};
    keel_assembly *keel;
    keel_site *site;
    uint32_t loss;
    if (argc != 2 || keel_assembly_open(&(keel_assembly_options){.output = argv[1]}, &keel)) return 1;
    keel_probe *probe = keel_assembly_probe(keel);
    keel_site_info info = {
        .name = "layers.0.weight", .quantity = KEEL_GRAD_REDUCED, .dtype = KEEL_F32, .ndim = 1, .shape = {100}};
    if (keel_site_add(probe, &info, &site) || keel_scalar_add(probe, "loss", KEEL_SCALAR_FIRST, &loss)) return 1;
    if (keel_probe_start(probe)) return 1;
    for (uint64_t step = 1; step <= 10; step++) {
        keel_step_begin(probe, step);
        if (step == 7) grad[5] = NAN;
        keel_observe(site, grad, 100);
        keel_scalar_set(probe, loss, 1.0);
        keel_step_end(probe, &(keel_step){.step = step, .update = step});
    }
    return keel_assembly_close(keel) ? 1 : 0;
}
