#include "batch.h"

enum { D_V = 512, CANARY_BYTES = 4096 };

/* A NaN as bf16, as f16 and, twice over, as float32. */
static const uint16_t nan_pattern = 0xffa5;

bool batch_outputs_alloc(batch_outputs *outputs, const batch *input)
{
    const batch_spec *spec = &input->spec;
    *outputs = (batch_outputs){.offset = CANARY_BYTES};
    int64_t rows = spec->batch * spec->s_q * spec->h_q;
    const int64_t bytes[TENSOR_OUTPUTS] = {
        rows * input->tensors.out_stride[2] * 2, rows * (int64_t)sizeof(float),
        spec->op == MLA_OP_SPARSE_PREFILL ? rows * (int64_t)sizeof(float) : -1};
    for (int i = 0; i < TENSOR_OUTPUTS; i++) {
        if (bytes[i] < 0) {
            continue;
        }
        if (!guarded_alloc(&outputs->memory[i], (size_t)bytes[i] + 2 * CANARY_BYTES, 64)) {
            batch_outputs_free(outputs);
            return false;
        }
    }
    batch_outputs_reset(outputs);
    return true;
}

void batch_outputs_reset(batch_outputs *outputs)
{
    for (int i = 0; i < TENSOR_OUTPUTS; i++) {
        uint16_t *values = (uint16_t *)(void *)outputs->memory[i].data;
        for (size_t n = 0; n < outputs->memory[i].bytes / 2; n++) {
            values[n] = nan_pattern;
        }
    }
}

bool batch_outputs_written(const batch_outputs *outputs, const batch *input)
{
    const batch_spec *spec = &input->spec;
    int64_t rows = spec->batch * spec->s_q * spec->h_q, stride = input->tensors.out_stride[2];
    mla_tensors tensors = batch_host_tensors(input, outputs);
    const uint16_t *out = tensors.out, *lse = (const uint16_t *)(const void *)tensors.lse;
    bool written = true;
    for (int64_t row = 0; written && row < rows; row++) {
        written = lse[2 * row] != nan_pattern || lse[2 * row + 1] != nan_pattern;
        for (int64_t i = 0; written && i < D_V; i++) {
            written = out[row * stride + i] != nan_pattern;
        }
    }
    return written;
}

void batch_outputs_free(batch_outputs *outputs)
{
    for (int i = 0; i < TENSOR_OUTPUTS; i++) {
        guarded_free(&outputs->memory[i]);
    }
}

void batch_free(batch *built)
{
    for (int id = 0; id < TENSOR_FIRST_OUTPUT; id++) {
        guarded_free(&built->memory[id]);
    }
}

mla_tensors batch_host_tensors(const batch *input, const batch_outputs *outputs)
{
    mla_tensors tensors = input->tensors;
    for (int i = 0; i < TENSOR_OUTPUTS; i++) {
        if (outputs->memory[i].data != NULL) {
            tensor_bind(&tensors, (tensor_id)(TENSOR_FIRST_OUTPUT + i),
                        outputs->memory[i].data + outputs->offset);
        }
    }
    return tensors;
}

double batch_flops(const batch *input)
{
    const batch_spec *spec = &input->spec;
    return 2.0 * (double)spec->h_q * (double)input->keys_read * (double)(spec->d_qk + D_V);
}
