#include "batch_file.h"
#include "safetensors_writer.h"
#include "tool.h"

#include <assert.h>

bool batch_can_save(const char *path)
{
    if (!st_may_write(path)) {
        tool_error("cannot write %s: not a regular file", path);
        return false;
    }
    return tool_can_write(path);
}

bool batch_save(const char *path, const batch *input)
{
    const mla_problem *p = &input->problem;
    const mla_tensors *t = &input->tensors;
    assert(p->op == MLA_OP_DENSE_DECODE && p->kv_format == MLA_KV_NATIVE);
    assert(input->spec.page_gap == 0 && input->spec.head_gap == 0);
    st_dtype dtype = p->dtype == MLA_DTYPE_BF16 ? ST_BF16 : ST_F16;
    st_tensor tensors[] = {
        {.dtype = dtype, .num_dims = 4, .shape = {p->batch, p->s_q, p->h_q, p->d_qk}},
        {.dtype = dtype, .num_dims = 4, .shape = {t->kv.num_pages, p->page_size, p->h_kv, p->d_qk}},
        {.dtype = ST_I32, .num_dims = 2, .shape = {p->batch, t->block_table_stride}},
        {.dtype = ST_I32, .num_dims = 1, .shape = {p->batch}}};
    enum { COUNT = sizeof tensors / sizeof tensors[0] };
    for (int i = 0; i < COUNT; i++) {
        st_tensor *tensor = &tensors[i];
        const guarded_memory *memory = &input->memory[TENSOR_Q + i];
        tensor->name = (char *)(uintptr_t)tensor_name((tensor_id)(TENSOR_Q + i));
        tensor->data = memory->data;
        tensor->bytes = st_dtype_bytes(tensor->dtype);
        for (int d = 0; d < tensor->num_dims; d++) {
            tensor->bytes *= (size_t)tensor->shape[d];
        }
        assert(tensor->bytes <= memory->bytes);
    }
    char error[200];
    if (!st_write(path, tensors, COUNT, error, sizeof error)) {
        tool_error("cannot write %s: %s", path, error);
        return false;
    }
    return true;
}
