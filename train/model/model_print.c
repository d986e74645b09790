#include <inttypes.h>
#include <string.h>

#include "train/model/model.h"
#include "train/model/model_state.h"

static void print_count(FILE *out, size_t count) {
    if (count >= 1000000)
        fprintf(out, "%.1f M", (double)count / 1e6);
    else if (count >= 10000)
        fprintf(out, "%.1f k", (double)count / 1e3);
    else
        fprintf(out, "%zu", count);
}

static void format_shape(const keel_param *p, const size_t *dims, char *text, size_t size) {
    size_t used = 0;
    for (uint32_t d = 0; d < p->ndim; d++)
        used += (size_t)snprintf(text + used, size - used, "%s%zu", d ? ", " : "[", dims[d]);
    snprintf(text + used, size - used, "]");
}

static void print_param(FILE *out, const keel_param *p, const char *prefix) {
    char shape[96];
    format_shape(p, p->whole, shape, sizeof shape);
    size_t skip = strlen(prefix);
    fprintf(out, "%*s%-28s %-16s ", skip ? 4 : 2, "", p->name + skip, shape);
    print_count(out, p->whole_numel);
    if (p->cut != KEEL_CUT_NONE) {
        format_shape(p, p->shape, shape, sizeof shape);
        fprintf(out, ", %s of it here", shape);
    }
    fputc('\n', out);
}

// What is not computed in float32.
static void print_formats(const keel_formats *f, FILE *out) {
    const struct {
        const char *name;
        keel_precision precision;
    } list[] = {{"products and activations", f->compute},
                {"attention's softmax", f->softmax},
                {"attention's values", f->value},
                {"norms", f->norm},
                {"embedding", f->embedding},
                {"head", f->head},
                {"loss", f->loss}};
    bool any = false;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (list[i].precision == KEEL_FLOAT32) continue;
        fprintf(out, "%s%s in %s", any ? ", " : "  computed: ", list[i].name, keel_precision_name(list[i].precision));
        any = true;
    }
    if (any) fprintf(out, "; all else in float32\n");
}

static void print_experts(const keel_context *c, FILE *out) {
    fprintf(out, "  experts: %zu in each layer, %zu for a token, ", c->experts, c->chosen);
    if (c->local_experts < c->experts) fprintf(out, "%zu on this rank, ", c->local_experts);
    if (c->capacity)
        fprintf(out, "each takes %zu assignments of a sequence", c->capacity);
    else
        fprintf(out, "none is dropped");
    fprintf(out, "; aux_loss_factor %g, z_loss_factor %g\n", c->moe.aux_loss_factor, c->moe.z_loss_factor);
}

void keel_model_print(const keel_model *model, FILE *out) {
    const keel_context *c = &model->context;
    fprintf(out, "model: %s, ", c->gpt2 ? "gpt2" : "llama");
    print_count(out, model->parameters.whole_numel);
    fprintf(out, " parameters");
    if (model->parameters.numel < model->parameters.whole_numel) {
        fprintf(out, ", ");
        print_count(out, model->parameters.numel);
        fprintf(out, " of them here");
    }
    const size_t ranks = (size_t)c->mesh->model_parallel.size;
    fprintf(out, "\n  batch %zu x %zu tokens, hidden %zu, %zu layers, %zu heads of %zu", c->batch, c->seq, c->hidden,
            c->layers, c->heads * ranks, c->head_size);
    if (c->kv_heads != c->heads) fprintf(out, " (%zu for keys and values)", c->kv_heads * ranks);
    fprintf(out, ", mlp %zu, vocabulary %zu, head %s\n", c->intermediate * ranks, c->vocab * ranks,
            c->tied ? "tied" : "of its own");
    if (ranks > 1)
        fprintf(out, "  heads, mlp and vocabulary are shared out over %zu ranks%s\n", ranks,
                c->mesh->sequence ? ", and so are the rows between the products" : "");
    if (c->experts) print_experts(c, out);
    print_formats(&c->formats, out);
    int32_t layer = -1;
    for (size_t i = 0; i < model->parameters.count; i++) {
        const keel_param *p = &model->parameters.list[i];
        char prefix[32] = "";
        if (p->layer >= 0) snprintf(prefix, sizeof prefix, "layers.%" PRId32 ".", p->layer);
        if (p->layer >= 0 && p->layer != layer)
            fprintf(out, "  layers.%" PRId32 "  [%zu, %zu, %zu]\n", p->layer, c->batch, c->seq, c->hidden);
        layer = p->layer;
        print_param(out, p, prefix);
    }
}
