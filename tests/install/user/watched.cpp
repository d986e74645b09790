// The same from C++, with a configuration that the program has read: argv[1]: the run directory, argv[2]: a monitor.yaml.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "configs/monitor_config.h"
#include "probe/keel.h"
#include "tools/assemble.h"

static keel_status watch(const char *directory, const keel_monitor_config *config) {
    float grad[100] = {1};
    keel_assembly_options options = {};
    options.config = config;
    options.output = directory;
    keel_assembly *keel;
    keel_status status = keel_assembly_open(&options, &keel);
    if (status) return status;
    keel_probe *probe = keel_assembly_probe(keel);
    keel_site_info info = {};
    std::strcpy(info.name, "layers.0.weight");
    info.quantity = KEEL_GRAD_REDUCED;
    info.phase = KEEL_PHASE_REDUCTION;
    info.dtype = KEEL_F32;
    info.ndim = 1;
    info.shape[0] = 100;
    keel_site *site;
    status = keel_site_add(probe, &info, &site);
    if (!status && keel_site_get_info(site)->numel != 100) status = KEEL_ERR_FORMAT;
    if (!status) status = keel_probe_start(probe);
    for (uint64_t step = 1; !status && step <= 10; step++) {
        keel_step_begin(probe, step);
        if (step == 7) grad[5] = NAN;
        keel_observe(site, grad, 100);
        keel_step end = {};
        end.step = end.update = step;
        keel_step_end(probe, &end);
    }
    const keel_status closed = keel_assembly_close(keel);
    return status ? status : closed;
}

int main(int argc, char **argv) {
    if (argc != 3) return 1;
    const char *overrides[] = {"monitor.queue_depth=64"};
    keel_monitor_config *config;
    keel_status status = keel_monitor_config_load(argv[2], overrides, 1, &config);
    if (!status) {
        status = config->queue_depth == 64 ? watch(argv[1], config) : KEEL_ERR_CONFIG;
        keel_monitor_config_free(config);
    }
    if (status) std::fprintf(stderr, "%s\n", keel_error());
    return status != KEEL_OK;
}
