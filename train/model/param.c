#include "train/model/param.h"

#include <string.h>

// The rows that PIECE and [ROW, ROW + ROWS) of the whole have in common: *SKIP is the first of them within the piece.
static size_t common_rows(const keel_piece *piece, size_t row, size_t rows, size_t *skip) {
    const size_t begin = piece->row > row ? piece->row : row;
    const size_t end = piece->row + piece->rows < row + rows ? piece->row + piece->rows : row + rows;
    *skip = begin - piece->row;
    return begin < end ? end - begin : 0;
}

void keel_param_take(const keel_param *param, float *flat, const float *whole, size_t row, size_t rows) {
    const size_t cols = keel_param_cols(param);
    for (size_t i = 0; i < param->piece_count; i++) {
        const keel_piece *p = &param->pieces[i];
        size_t skip;
        const size_t n = common_rows(p, row, rows, &skip);
        for (size_t r = skip; r < skip + n; r++)
            memcpy(flat + param->offset + p->local_offset + r * p->local_stride,
                   whole + (p->row + r - row) * cols + p->col, p->cols * sizeof *whole);
    }
}

void keel_param_give(const keel_param *param, const float *flat, float *whole, size_t row, size_t rows) {
    const size_t cols = keel_param_cols(param);
    for (size_t i = 0; i < param->piece_count; i++) {
        const keel_piece *p = &param->pieces[i];
        size_t skip;
        const size_t n = common_rows(p, row, rows, &skip);
        for (size_t r = skip; r < skip + n; r++)
            memcpy(whole + (p->row + r - row) * cols + p->col,
                   flat + param->offset + p->local_offset + r * p->local_stride, p->cols * sizeof *whole);
    }
}

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
