#include "train/model/param.h"

#include <string.h>

static void describe(const keel_param *param, keel_site_info *info) {
    memcpy(info->name, param->name, sizeof info->name);
    memcpy(info->module, param->module, sizeof info->module);
    info->layer = param->layer;
    info->stage = param->stage;
    info->ndim = param->ndim;
    for (uint32_t d = 0; d < param->ndim; d++) info->shape[d] = param->whole[d];
    info->numel = param->whole_numel;
}

// Among the tensor ranks.
static void count_copies(const keel_param *param, const keel_mesh *mesh, keel_site_info *info) {
    const bool cut = param->cut == KEEL_CUT_TENSOR || param->cut == KEEL_CUT_EXPERT_TENSOR;
    info->replica_index = cut ? 0 : (uint32_t)mesh->model_parallel.rank;
    info->replica_count = cut ? 1 : (uint32_t)mesh->model_parallel.size;
}

void keel_param_describe(const keel_param *param, const keel_mesh *mesh, keel_site_info *info) {
    const bool expert = param->cut == KEEL_CUT_EXPERT || param->cut == KEEL_CUT_EXPERT_TENSOR;
    const keel_comm *data = expert ? &mesh->expert_data_parallel : &mesh->data_parallel;
    describe(param, info);
    count_copies(param, mesh, info);
    info->layout = param->cut == KEEL_CUT_NONE ? KEEL_LAYOUT_REPLICA : KEEL_LAYOUT_SHARD;
    info->replica_index += (uint32_t)data->rank * info->replica_count;
    info->replica_count *= (uint32_t)data->size;
    info->replica_index += param->holder * info->replica_count;
    info->replica_count *= param->holders;
}

void keel_param_describe_partial(const keel_param *param, const keel_mesh *mesh, keel_site_info *info) {
    describe(param, info);
    count_copies(param, mesh, info);
    info->layout = KEEL_LAYOUT_PARTIAL;
}
