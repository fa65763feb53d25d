#include "engine.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

bool engine_open(engine *runner, const tool_options *options)
{
    *runner = (engine){.info.struct_size = sizeof(mla_info)};
    uint32_t isa_mask;
    if (!tool_isa_mask(options, &isa_mask)) {
        return false;
    }
    mla_ctx_params params = {.struct_size = sizeof params,
                             .backend = options->backend,
                             .device = options->device,
                             .num_threads = options->num_threads,
                             .isa_mask = isa_mask};
    mla_status status = mla_ctx_create(&params, &runner->ctx);
    if (status != MLA_OK) {
        tool_library_error("cannot open a context", status);
        if (status == MLA_ERR_UNSUPPORTED && isa_mask != 0) {
            tool_suggest_isas();
        }
        return false;
    }
    status = mla_ctx_get_info(runner->ctx, &runner->info);
    assert(status == MLA_OK);
    if (!memory_space_open(&runner->memory, runner->info.backend, options->device)) {
        mla_ctx_destroy(runner->ctx);
        runner->ctx = NULL;
        return false;
    }
    return true;
}

void engine_close(engine *runner)
{
    memory_space_close(&runner->memory);
    mla_ctx_destroy(runner->ctx);
    *runner = (engine){.ctx = NULL};
}

bool engine_rounds_p(const engine *runner)
{
    return runner->info.backend == MLA_BACKEND_CUDA;
}

void engine_describe(const engine *runner, char *text, size_t size)
{
    const mla_info *info = &runner->info;
    if (info->backend == MLA_BACKEND_CUDA) {
        snprintf(text, size, "GPU %s, %d multiprocessors", info->device_name, info->num_sms);
    } else {
        snprintf(text, size, "CPU %s, %d thread%s, %s", info->device_name, info->num_threads,
                 info->num_threads == 1 ? "" : "s", mla_isa_name(info->isa_used));
    }
}

/* Copies a tensor to the device; of a pool whose pages lie gigabytes apart, the pages only. */
static bool upload_tensor(const memory_space *memory, const batch *input, tensor_id id, uint8_t *to,
                          const guarded_memory *block)
{
    const size_t spread_out = (size_t)1 << 30;
    if (id != TENSOR_KV || input->spec.page_gap == 0 || block->bytes < spread_out) {
        return memory_upload(memory, to, block->data, block->bytes);
    }
    const mla_problem *problem = &input->problem;
    const mla_pool *pool = &input->tensors.kv;
    size_t page = (size_t)mla_page_bytes(problem->kv_format, problem->dtype, problem->page_size,
                                         problem->h_kv, problem->d_qk);
    size_t stride = (size_t)pool->stride[0] * (problem->kv_format == MLA_KV_NATIVE ? 2 : 1);
    bool ok = true;
    for (size_t at = 0; ok && at < block->bytes; at += stride) {
        assert(at + page <= block->bytes);
        ok = memory_upload(memory, to + at, block->data + at, page);
    }
    return ok;
}

/* Makes `work` point at what the engine can reach: the host's tensors, or copies of them. */
static bool place_tensors(job *work, const batch *input, batch_outputs *outputs)
{
    const memory_space *memory = &work->runner->memory;
    for (int id = 0; id < TENSOR_COUNT; id++) {
        const guarded_memory *block = id < TENSOR_FIRST_OUTPUT
                                          ? &input->memory[id]
                                          : &outputs->memory[id - TENSOR_FIRST_OUTPUT];
        if (block->bytes == 0) {
            continue;
        }
        void *base = block->data;
        if (memory->backend == MLA_BACKEND_CUDA) {
            base = memory_alloc(memory, block->bytes);
            work->copies[id] = base;
            if (base == NULL || !upload_tensor(memory, input, (tensor_id)id, base, block)) {
                return false;
            }
        }
        size_t offset = id < TENSOR_FIRST_OUTPUT ? 0 : outputs->offset;
        tensor_bind(&work->tensors, (tensor_id)id, (uint8_t *)base + offset);
    }
    return true;
}

/* Sizes, plan buffer and workspace, once the tensors are where the engine can reach them. */
static mla_status reserve(job *work)
{
    const engine *runner = work->runner;
    const mla_tensors *tensors = &work->tensors;
    work->sizes.struct_size = sizeof work->sizes;
    mla_status status = mla_get_sizes(runner->ctx, &work->problem, &work->sizes);
    if (status != MLA_OK) {
        return status;
    }
    work->lengths = (mla_lengths){.struct_size = sizeof work->lengths,
                                  .seqlens = tensors->seqlens,
                                  .topk_length = tensors->topk_length,
                                  .extra_topk_length = tensors->extra_topk_length};
    work->plan.struct_size = sizeof work->plan;
    work->plan.buffer = memory_alloc(&runner->memory, work->sizes.plan_bytes);
    work->plan.buffer_bytes = work->sizes.plan_bytes;
    work->workspace = memory_alloc(&runner->memory, work->sizes.workspace_bytes);
    bool ok = work->plan.buffer != NULL && work->workspace != NULL;
    return ok ? MLA_OK : MLA_ERR_OUT_OF_MEMORY;
}

mla_status job_open_placed(job *work, const engine *runner, const mla_problem *problem,
                           const mla_tensors *tensors)
{
    *work = (job){.runner = runner, .problem = *problem, .tensors = *tensors};
    return reserve(work);
}

mla_status job_open(job *work, const engine *runner, const batch *input, batch_outputs *outputs)
{
    *work = (job){.runner = runner,
                  .problem = input->problem,
                  .tensors = input->tensors,
                  .host_outputs = outputs->memory};
    mla_status status = mla_supports(runner->ctx, &work->problem);
    if (status != MLA_OK) {
        return status;
    }
    return place_tensors(work, input, outputs) ? reserve(work) : MLA_ERR_DEVICE;
}

mla_status job_plan(job *work)
{
    return mla_plan_build(work->runner->ctx, &work->problem, &work->lengths, &work->plan,
                          memory_stream(&work->runner->memory));
}

mla_status job_run(job *work)
{
    return mla_run(work->runner->ctx, &work->problem, &work->tensors, &work->plan, work->workspace,
                   work->sizes.workspace_bytes, memory_stream(&work->runner->memory));
}

bool job_fetch(const job *work)
{
    const memory_space *memory = &work->runner->memory;
    bool ok = memory_wait(memory);
    for (int id = TENSOR_FIRST_OUTPUT; ok && id < TENSOR_COUNT; id++) {
        if (work->copies[id] != NULL) {
            const guarded_memory *block = &work->host_outputs[id - TENSOR_FIRST_OUTPUT];
            ok = memory_download(memory, block->data, work->copies[id], block->bytes);
        }
    }
    return ok;
}

void job_close(job *work)
{
    if (work->runner == NULL) {
        return;
    }
    const memory_space *memory = &work->runner->memory;
    for (int id = 0; id < TENSOR_COUNT; id++) {
        memory_free(memory, work->copies[id]);
    }
    memory_free(memory, work->plan.buffer);
    memory_free(memory, work->workspace);
    *work = (job){.runner = NULL};
}

mla_status job_once(const engine *runner, const batch *input, batch_outputs *outputs)
{
    job work;
    mla_status status = job_open(&work, runner, input, outputs);
    if (status == MLA_OK) {
        status = job_plan(&work);
    }
    if (status == MLA_OK) {
        status = job_run(&work);
    }
    if (status == MLA_OK && !job_fetch(&work)) {
        status = MLA_ERR_DEVICE;
    }
    job_close(&work);
    return status;
}
