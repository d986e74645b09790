#include <stdlib.h>
#include <string.h>

#include "train/faults/fault_weights.h"
#include "train/optim/groups.h"
#include "train/trainer_state.h"

// What some rank has found, all know.
static keel_status share_found(keel_trainer *trainer, const char *name, double *found, size_t count) {
    keel_collective *collective;
    keel_status status = keel_collectives_add(trainer->collectives,
                                              &(keel_collective_plan){.name = name,
                                                                      .kind = KEEL_ALL_REDUCE,
                                                                      .when = KEEL_AT_START,
                                                                      .dtype = KEEL_F64,
                                                                      .count = count,
                                                                      .comm = &trainer->mesh.world,
                                                                      .op = MPI_MAX},
                                              &collective);
    status = keel_agree(&trainer->mesh.world, status);
    return status ? status : keel_all_reduce(collective, found);
}

// A group of parameters needs one on some stage.
static keel_status check_groups(keel_trainer *trainer) {
    const keel_optimizer_config *config = &trainer->config->optimizer;
    double *found = calloc(config->group_count, sizeof *found);
    keel_status status = keel_agree(&trainer->mesh.world,
                                    found ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for parameter groups"));
    for (size_t k = 0; found && !status && k < config->group_count; k++)
        found[k] = keel_optimizer_uses_group(trainer->optimizer, k);
    if (!status) status = share_found(trainer, "all_reduce.groups", found, config->group_count);
    for (size_t k = 0; found && !status && k < config->group_count; k++)
        if (!(found[k] > 0)) status = keel_group_fail_unused(&config->groups[k]);
    free(found);
    return status;
}

// ---- faults ----

static bool names_site(const keel_fault_config *fault) {
    return keel_taps_concern(fault) || keel_fault_names_parameter(fault);
}

static bool has_site(const keel_trainer *trainer, const keel_fault_config *fault) {
    return keel_fault_names_parameter(fault) ? keel_fault_finds_parameter(trainer->model, fault)
                                             : keel_taps_find(trainer->taps, fault) != NULL;
}

static keel_status fail_unknown(const keel_fault_config *fault, const char *nearest) {
    return keel_fault_names_parameter(fault) ? keel_fault_fail_parameter(fault, nearest)
                                             : keel_taps_fail_unknown(fault, nearest);
}

// NAME: the nearest that this rank has; "" where it has none. malloc'ed.
static keel_status nearest_here(const keel_trainer *trainer, const keel_fault_config *fault, char **name) {
    const char *nearest = NULL;
    const keel_status status = keel_fault_names_parameter(fault)
                                   ? keel_fault_nearest_parameter(trainer->model, fault, &nearest)
                                   : keel_taps_nearest(trainer->taps, fault, &nearest);
    if (status) return status;
    *name = strdup(nearest ? nearest : "");
    return *name ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for site names");
}

// No rank has the site of FAULT: fails with the nearest name of all stages. Collective.
static keel_status fail_everywhere(const keel_trainer *trainer, const keel_fault_config *fault) {
    const keel_mesh *mesh = &trainer->mesh;
    char **names = calloc(mesh->pp, sizeof *names), *own = NULL;
    keel_status status = names ? nearest_here(trainer, fault, &own) : keel_fail(KEEL_ERR_MEMORY, "no memory for names");
    status = keel_agree(&mesh->world, status);
    for (uint32_t p = 0; names && !status && p < mesh->pp; p++) {
        const int first = (int)(p * mesh->dp * mesh->tp); // rank of the stage
        if (first == mesh->world.rank) names[p] = own;
        status = keel_share_text(&mesh->world, first, &names[p]);
        if (first == mesh->world.rank) own = NULL;
    }
    size_t count = 0;
    for (uint32_t p = 0; names && !status && p < mesh->pp; p++)
        if (names[p][0]) {
            char *name = names[p];
            names[p] = names[count];
            names[count++] = name;
        }
    if (!status) status = fail_unknown(fault, keel_yaml_nearest(fault->site, (const char *const *)names, count));
    for (uint32_t p = 0; names && p < mesh->pp; p++) free(names[p]);
    free(names);
    free(own);
    return status;
}

// FOUND: 1 + the last stage that has the site of FAULT; 0: none has. Collective.
static keel_status check_site(const keel_trainer *trainer, const keel_fault_config *fault, double found) {
    const keel_comm *world = &trainer->mesh.world;
    if (!(found > 0)) return fail_everywhere(trainer, fault);
    if (fault->rank != world->rank || has_site(trainer, fault)) return KEEL_OK;
    return keel_yaml_fail_key(fault->node, "rank", "%s is of pipeline stage %d, and rank %d of stage %d", fault->site,
                              (int)found - 1, world->rank, trainer->mesh.pipeline.rank);
}

static keel_status check_faults(keel_trainer *trainer) {
    const keel_train_config *config = trainer->config;
    const keel_comm *world = &trainer->mesh.world;
    double *found = calloc(config->fault_count, sizeof *found);
    keel_status status = keel_agree(world, found ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for faults"));
    for (size_t i = 0; found && !status && i < config->fault_count; i++)
        if (has_site(trainer, &config->faults[i])) found[i] = 1 + trainer->mesh.pipeline.rank;
    if (!status && trainer->mesh.pp > 1) status = share_found(trainer, "all_reduce.faults", found, config->fault_count);
    for (size_t i = 0; found && !status && i < config->fault_count; i++)
        if (names_site(&config->faults[i]))
            status = keel_agree(world, check_site(trainer, &config->faults[i], found[i]));
    free(found);
    if (!status) status = keel_faults_check(&trainer->faults);
    if (!status) status = keel_taps_check(trainer->taps);
    for (size_t i = 0; !status && i < config->fault_count; i++)
        status = keel_optimizer_check_fault(trainer->optimizer, &config->faults[i],
                                            keel_taps_find(trainer->taps, &config->faults[i]));
    return keel_agree(world, status);
}

keel_status keel_trainer_check_names(keel_trainer *trainer) {
    const keel_train_config *config = trainer->config;
    keel_status status = KEEL_OK;
    if (trainer->mesh.pp > 1 && config->optimizer.group_count > 0) status = check_groups(trainer);
    if (!status && config->fault_count > 0) status = check_faults(trainer);
    return keel_agree(&trainer->mesh.world, status);
}
