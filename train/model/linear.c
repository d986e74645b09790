#include "train/model/linear.h"

#include "train/tensor/gemm.h"

static keel_operand weight_of(const keel_context *context, const keel_linear *linear, bool transposed) {
    return (keel_operand){
        .data = context->weights + linear->weight,
        .stride = linear->out_in ? linear->in : linear->out,
        .transposed = transposed != linear->out_in,
    };
}

void keel_linear_forward(const keel_context *context, const keel_linear *linear, size_t rows, const float *x,
                         float *y) {
    keel_gemm(rows, linear->out, linear->in, (keel_operand){x, linear->in, false}, weight_of(context, linear, false),
              false, y, linear->out);
}

void keel_linear_backward_input(const keel_context *context, const keel_linear *linear, size_t rows, const float *dy,
                                float *dx) {
    keel_gemm(rows, linear->in, linear->out, (keel_operand){dy, linear->out, false}, weight_of(context, linear, true),
              false, dx, linear->in);
}

void keel_linear_backward_weight(const keel_context *context, const keel_linear *linear, size_t rows, const float *x,
                                 const float *dy, bool accumulate) {
    float *dw = context->grad + linear->weight;
    if (linear->out_in)
        keel_gemm(linear->out, linear->in, rows, (keel_operand){dy, linear->out, true},
                  (keel_operand){x, linear->in, false}, accumulate, dw, linear->in);
    else
        keel_gemm(linear->in, linear->out, rows, (keel_operand){x, linear->in, true},
                  (keel_operand){dy, linear->out, false}, accumulate, dw, linear->out);
}
