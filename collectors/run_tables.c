#include "collectors/run_tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { NAME_BYTES = 40 }; // of a scalar's owner: a name of 31, "_rank", the end

// A name that sorts by time and that two runs do not share.
static void make_run_id(keel_run_info *info, time_t now) {
    struct tm utc;
    gmtime_r(&now, &utc);
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &utc);
    uint32_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random) random = (uint32_t)getpid();
    snprintf(info->run_id, sizeof info->run_id, "%s-%08x", stamp, random);
}

static void identify(keel_run_info *info, const keel_run_identity *identity) {
    const time_t now = time(NULL);
    if (identity->run_id)
        snprintf(info->run_id, sizeof info->run_id, "%s", identity->run_id);
    else
        make_run_id(info, now);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(info->created_utc, sizeof info->created_utc, "%Y-%m-%dT%H:%M:%SZ", &utc);
    if (gethostname(info->host, sizeof info->host - 1) != 0) snprintf(info->host, sizeof info->host, "unknown");
    info->command = identity->command ? identity->command : "";
    info->config_yaml = identity->config_yaml ? identity->config_yaml : "";
    info->world_size = identity->world_size;
    info->dp = identity->dp;
    info->tp = identity->tp;
    info->pp = identity->pp;
    info->ep = identity->ep;
}

static void name_scalars(keel_run_tables *tables, const keel_probe *probe) {
    const uint32_t scalars = keel_probe_scalar_count(probe);
    uint32_t count = scalars;
    for (uint32_t i = 0; i < scalars; i++) {
        tables->scalar_names[i] = keel_probe_scalar_name(probe, i);
        if (!keel_scalar_names_rank(keel_probe_scalar_merge(probe, i))) continue;
        char *owner = tables->owner_names + (size_t)(count - scalars) * NAME_BYTES;
        snprintf(owner, NAME_BYTES, "%s_rank", keel_probe_scalar_name(probe, i));
        tables->scalar_names[count++] = owner;
    }
    tables->info.scalar_count = count;
    tables->info.scalar_names = tables->scalar_names;
}

keel_status keel_run_tables_open(const keel_run_identity *identity, const keel_probe *probe,
                                 const keel_site_plan *plans, const uint64_t *op_masks, keel_run_tables *tables) {
    *tables = (keel_run_tables){0};
    const uint32_t sites = keel_probe_site_count(probe), scalars = keel_probe_scalar_count(probe);
    tables->sites = calloc((size_t)sites + 1, sizeof *tables->sites);
    tables->micro_sites = calloc((size_t)sites + 1, sizeof *tables->micro_sites);
    tables->scalar_names = calloc(2 * (size_t)scalars + 1, sizeof *tables->scalar_names);
    tables->owner_names = calloc((size_t)scalars + 1, NAME_BYTES);
    if (!tables->sites || !tables->micro_sites || !tables->scalar_names || !tables->owner_names) {
        keel_run_tables_close(tables);
        return keel_fail(KEEL_ERR_MEMORY, "no memory for the tables of %u sites", sites);
    }
    keel_run_info *info = &tables->info;
    identify(info, identity);
    info->micro_count = keel_probe_micro_count(probe);
    info->site_count = sites;
    info->sites = tables->sites;
    info->op_mask = op_masks;
    info->micro_sites = tables->micro_sites;
    for (uint32_t s = 0; s < sites; s++) {
        tables->sites[s] = *keel_probe_site_info(probe, s);
        for (int op = 0; op < KEEL_OP_COUNT; op++) info->op_stored[op] |= op_masks[s] >> op & 1;
        if (plans[s].fields && plans[s].per_micro) tables->micro_sites[info->micro_site_count++] = s;
    }
    name_scalars(tables, probe);
    return KEEL_OK;
}

void keel_run_tables_close(keel_run_tables *tables) {
    free(tables->sites);
    free(tables->micro_sites);
    free(tables->scalar_names);
    free(tables->owner_names);
    *tables = (keel_run_tables){0};
}

size_t keel_run_tables_bytes(const keel_run_tables *tables) {
    const keel_run_info *info = &tables->info;
    return keel_row_buffer_bytes(info) + info->site_count * (sizeof(keel_site_info) + sizeof *info->micro_sites);
}
