#include "train/routing_report.h"

#include "train/plain_nan.h"

#include <stdlib.h>

enum { BALANCE, Z, DROP_RATE, VALUES };

keel_status keel_routing_report_open(const keel_model_config *config, keel_probe *probe, const keel_mesh *mesh,
                                     keel_collectives *collectives, keel_routing_report *report) {
    if (config->moe.expert_num <= 1) return KEEL_OK;
    keel_routing_report made = {.layers = (size_t)config->num_layers, .config = &config->moe};
    made.totals = calloc(made.layers, sizeof *made.totals);
    made.values = calloc(made.layers, VALUES * sizeof *made.values);
    keel_status status =
        made.totals && made.values ? KEEL_OK : keel_fail(KEEL_ERR_MEMORY, "no memory for the routing of experts");
    const struct {
        const char *name;
        uint32_t *id;
    } scalars[] = {{"aux_loss", &made.aux_loss},
                   {"z_loss", &made.z_loss},
                   {"loss_total", &made.loss_total},
                   {"drop_rate", &made.drop_rate}};
    for (size_t i = 0; !status && i < sizeof scalars / sizeof *scalars; i++)
        status = keel_scalar_add(probe, scalars[i].name, KEEL_SCALAR_FIRST, scalars[i].id);
    if (!status)
        status = keel_collectives_add(collectives,
                                      &(keel_collective_plan){.name = "all_reduce.routing",
                                                              .kind = KEEL_ALL_REDUCE,
                                                              .when = KEEL_EVERY_STEP,
                                                              .dtype = KEEL_F64,
                                                              .count = made.layers * VALUES,
                                                              .comm = &mesh->pipeline,
                                                              .op = MPI_SUM},
                                      &made.gather);
    if (status)
        keel_routing_report_close(&made);
    else
        *report = made;
    return status;
}

void keel_routing_report_close(keel_routing_report *report) {
    free(report->totals);
    free(report->values);
    *report = (keel_routing_report){0};
}

void keel_routing_report_begin(const keel_routing_report *report, keel_model *model) {
    if (report->layers) keel_model_take_routing(model, report->totals);
}

keel_status keel_routing_report_gather(const keel_routing_report *report, keel_model *model) {
    if (!report->layers) return KEEL_OK;
    keel_model_take_routing(model, report->totals);
    for (size_t l = 0; l < report->layers; l++) {
        const keel_routing_totals *t = &report->totals[l];
        const double share = t->micro_batches ? 1 / (double)t->micro_batches : 0; // 0: of another stage
        double *values = report->values + l * VALUES;
        values[BALANCE] = share * t->balance;
        values[Z] = share * t->z;
        values[DROP_RATE] = share * t->drop_rate;
    }
    return keel_all_reduce(report->gather, report->values);
}

void keel_routing_report_tell(const keel_routing_report *report, keel_probe *probe, const keel_step *step, double loss,
                              const keel_trainer_report *listener) {
    if (!report->layers) return;
    double balance = 0, z = 0, dropped = 0;
    for (size_t l = 0; l < report->layers; l++) {
        const double *values = report->values + l * VALUES;
        balance += values[BALANCE];
        z += values[Z];
        dropped += values[DROP_RATE];
    }
    const double aux_loss = keel_plain(report->config->aux_loss_factor * balance);
    const double z_loss = keel_plain(report->config->z_loss_factor * z);
    keel_scalar_set(probe, report->aux_loss, aux_loss);
    keel_scalar_set(probe, report->z_loss, z_loss);
    keel_scalar_set(probe, report->loss_total, loss + aux_loss + z_loss);
    keel_scalar_set(probe, report->drop_rate, dropped / (double)report->layers);
    if (!listener->routing) return;
    listener->routing(listener->context, step, aux_loss, z_loss, report->values + DROP_RATE, VALUES, report->layers);
}
