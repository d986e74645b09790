#include "train/faults/faults.h"

#include <stdlib.h>

#include "train/faults/fault_host.h"
#include "train/faults/fault_weights.h"

void keel_faults_close(keel_faults *faults) {
    keel_fault_free_leaked(faults->leaked);
    faults->leaked = NULL;
}

static keel_status check_rank(const keel_faults *faults, const keel_fault_config *fault) {
    if (fault->rank >= (int64_t)faults->ranks)
        return keel_yaml_fail_key(fault->node, "rank", "rank %lld, but the job has %u rank%s, from 0",
                                  (long long)fault->rank, faults->ranks, faults->ranks == 1 ? "" : "s");
    return KEEL_OK;
}

keel_status keel_faults_check(const keel_faults *faults) {
    keel_status status = KEEL_OK;
    for (size_t i = 0; !status && i < faults->config->fault_count; i++) {
        const keel_fault_config *fault = &faults->config->faults[i];
        status = check_rank(faults, fault);
        if (!status) status = keel_fault_check_weights(&faults->config->model, faults->model, fault);
    }
    return status;
}

void keel_faults_initial_weights(const keel_faults *faults) {
    for (size_t i = 0; i < faults->config->fault_count; i++)
        if (faults->config->faults[i].kind == KEEL_FAULT_INITIAL_SCALE)
            keel_fault_scale_parameter(faults->model, &faults->config->faults[i]);
}

keel_status keel_faults_begin_step(keel_faults *faults, uint64_t step) {
    keel_status status = KEEL_OK;
    for (size_t i = 0; !status && i < faults->config->fault_count; i++) {
        const keel_fault_config *fault = &faults->config->faults[i];
        if (!keel_fault_due(fault, step) || !keel_fault_concerns(fault, faults->rank)) continue;
        switch (fault->kind) {
        case KEEL_FAULT_BIT_FLIP:
            keel_fault_flip_bit(faults->model, fault);
            break;
        case KEEL_FAULT_QUERY_GROWTH:
            keel_fault_scale_queries(&faults->config->model, faults->model, fault);
            break;
        case KEEL_FAULT_STRAGGLER:
            keel_fault_sleep(fault->seconds);
            break;
        case KEEL_FAULT_MEMORY_LEAK:
            status = keel_fault_leak(&faults->leaked, (size_t)fault->bytes);
            break;
        default:
            break;
        }
    }
    return status;
}

double keel_faults_learning_rate(const keel_faults *faults, uint64_t step, double lr) {
    for (size_t i = 0; i < faults->config->fault_count; i++) {
        const keel_fault_config *fault = &faults->config->faults[i];
        if (fault->kind == KEEL_FAULT_LEARNING_RATE && keel_fault_due(fault, step)) lr *= fault->factor;
    }
    return lr;
}

bool keel_faults_skip_update(const keel_faults *faults, uint64_t step) {
    bool skip = false;
    for (size_t i = 0; i < faults->config->fault_count; i++) {
        const keel_fault_config *fault = &faults->config->faults[i];
        skip |= fault->kind == KEEL_FAULT_REPLICA_SKIP && keel_fault_due(fault, step) &&
                keel_fault_concerns(fault, faults->rank);
    }
    return skip;
}
