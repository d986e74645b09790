#include "collectors/run_tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { NAME_BYTES = KEEL_SCALAR_NAME_BYTES + 5 }; // of a scalar's owner: NAME_rank

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

static void name_scalars(keel_run_tables *tables, const keel_rank_table *table) {
    const uint32_t scalars = table->scalar_count;
    uint32_t count = scalars;
    for (uint32_t i = 0; i < scalars; i++) {
        tables->scalar_names[i] = table->scalars[i].name;
        if (!keel_scalar_names_rank(table->scalars[i].merge)) continue;
        char *owner = tables->owner_names + (size_t)(count - scalars) * NAME_BYTES;
        snprintf(owner, NAME_BYTES, "%s_rank", table->scalars[i].name);
        tables->scalar_names[count++] = owner;
    }
    tables->info.scalar_count = count;
    tables->info.scalar_names = tables->scalar_names;
}

// NAME_rank may be the name of a scalar of the program's.
static keel_status check_names(const keel_run_info *info, uint32_t scalars) {
    for (uint32_t owner = scalars; owner < info->scalar_count; owner++)
        for (uint32_t i = 0; i < scalars; i++)
            if (strcmp(info->scalar_names[i], info->scalar_names[owner]) == 0)
                return keel_fail(KEEL_ERR_USAGE,
                                 "scalar %s: that is also where the rank of another scalar's value is kept; name it "
                                 "otherwise",
                                 info->scalar_names[i]);
    return KEEL_OK;
}

keel_status keel_run_tables_open(const keel_run_identity *identity, const keel_rank_table *table,
                                 const keel_rank_series_table *ranks, keel_run_tables *tables) {
    *tables = (keel_run_tables){0};
    const uint32_t sites = table->site_count, scalars = table->scalar_count;
    tables->micro_sites = calloc((size_t)sites + 1, sizeof *tables->micro_sites);
    tables->scalar_names = calloc(2 * (size_t)scalars + 1, sizeof *tables->scalar_names);
    tables->owner_names = calloc((size_t)scalars + 1, NAME_BYTES);
    if (!tables->micro_sites || !tables->scalar_names || !tables->owner_names) {
        keel_run_tables_close(tables);
        return keel_fail(KEEL_ERR_MEMORY, "no memory for the tables of %u sites", sites);
    }
    keel_run_info *info = &tables->info;
    identify(info, identity);
    info->micro_count = table->micro_count;
    info->site_count = sites;
    info->sites = table->sites;
    info->op_mask = table->op_masks;
    info->micro_sites = tables->micro_sites;
    for (uint32_t s = 0; s < sites; s++) {
        for (int op = 0; op < KEEL_OP_COUNT; op++) info->op_stored[op] |= table->op_masks[s] >> op & 1;
        if (keel_plan_is_per_micro(&table->plans[s])) tables->micro_sites[info->micro_site_count++] = s;
    }
    info->rank_series_count = ranks->series_count;
    info->rank_series = ranks->series;
    info->rank_op_mask = ranks->ops;
    for (uint32_t j = 0; j < ranks->series_count; j++)
        for (int op = 0; op < KEEL_OP_COUNT; op++) info->rank_op_stored[op] |= ranks->ops[j] >> op & 1;
    name_scalars(tables, table);
    const keel_status status = check_names(info, scalars);
    if (status) keel_run_tables_close(tables);
    return status;
}

void keel_run_tables_close(keel_run_tables *tables) {
    free(tables->micro_sites);
    free(tables->scalar_names);
    free(tables->owner_names);
    *tables = (keel_run_tables){0};
}

size_t keel_run_tables_bytes(const keel_run_tables *tables) {
    const keel_run_info *info = &tables->info;
    return keel_row_buffer_bytes(info) + info->site_count * sizeof *info->micro_sites;
}
