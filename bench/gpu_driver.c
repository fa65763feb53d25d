#include "gpu_driver.h"

#include "formats.h"

#include <stdio.h>
#include <stdlib.h>

void check_cuda(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        printf("%s: %s\n", what, cudaGetErrorString(error));
        exit(2);
    }
}

void check_mla(mla_status status, const char *what)
{
    if (status != MLA_OK) {
        printf("%s: %s: %s\n", what, mla_status_name(status), mla_last_error());
        exit(2);
    }
}

void *device_alloc(size_t bytes)
{
    void *data = NULL;
    check_cuda(cudaMalloc(&data, bytes > 0 ? bytes : 16), "cudaMalloc");
    return data;
}

void *device_copy(const void *host, size_t bytes)
{
    void *data = device_alloc(bytes);
    check_cuda(cudaMemcpy(data, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return data;
}

void device_read(void *host, const void *device, size_t bytes, const char *what)
{
    check_cuda(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), what);
}

static uint64_t random_state = 1;

void random_seed(uint64_t seed)
{
    random_state = seed;
}

uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

float random_normal(void)
{
    /* Sum of eight uniforms: variance 8/12, tails long enough for a test. */
    float sum = 0;
    for (int i = 0; i < 8; i++) {
        sum += (float)random_bits() / 4294967296.0f - 0.5f;
    }
    return sum * 1.2247449f;
}

int32_t *random_order(int64_t count)
{
    int32_t *order = malloc((size_t)count * sizeof *order);
    for (int64_t i = 0; i < count; i++) {
        const int64_t j = (int64_t)(random_bits() % (uint32_t)(i + 1));
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    return order;
}

uint8_t *device_repeat(const void *pattern, size_t pattern_bytes, size_t bytes)
{
    uint8_t *data = device_alloc(bytes);
    for (size_t at = 0; at < bytes; at += pattern_bytes) {
        const size_t left = bytes - at < pattern_bytes ? bytes - at : pattern_bytes;
        check_cuda(at == 0 ? cudaMemcpy(data, pattern, left, cudaMemcpyHostToDevice)
                           : cudaMemcpy(data + at, data, left, cudaMemcpyDeviceToDevice),
                   "cudaMemcpy");
    }
    return data;
}

uint16_t *device_normals(size_t elems, float std)
{
    enum { PATTERN = 1 << 22 };
    uint16_t *host = malloc((size_t)PATTERN * 2);
    for (size_t i = 0; i < PATTERN; i++) {
        host[i] = mla_f32_to_bf16(random_normal() * std);
    }
    void *data = device_repeat(host, (size_t)PATTERN * 2, elems * 2);
    free(host);
    return data;
}

void open_contexts(mla_ctx **gpu, mla_ctx **cpu)
{
    const mla_ctx_params gpu_params = {.struct_size = sizeof gpu_params,
                                       .backend = MLA_BACKEND_CUDA};
    const mla_ctx_params cpu_params = {.struct_size = sizeof cpu_params,
                                       .backend = MLA_BACKEND_CPU};
    /* Asked first: the library says in words what is missing. */
    check_mla(mla_ctx_create(&gpu_params, gpu), "no GPU to work on");
    check_cuda(cudaSetDevice(0), "cudaSetDevice");
    check_mla(mla_ctx_create(&cpu_params, cpu), "CPU context");
}

mla_problem dense_decode_problem(int64_t batch, int64_t s_q, int64_t h_q)
{
    return (mla_problem){.struct_size = sizeof(mla_problem),
                         .op = MLA_OP_DENSE_DECODE,
                         .dtype = MLA_DTYPE_BF16,
                         .batch = batch,
                         .s_q = s_q,
                         .h_q = h_q,
                         .h_kv = 1,
                         .d_qk = 576,
                         .d_v = 512,
                         .page_size = 64};
}

void make_buffers(const mla_ctx *ctx, const mla_problem *problem, bool device, buffers *b)
{
    *b = (buffers){.plan.struct_size = sizeof b->plan, .sizes.struct_size = sizeof b->sizes};
    check_mla(mla_get_sizes(ctx, problem, &b->sizes), "mla_get_sizes");
    b->plan.buffer_bytes = b->sizes.plan_bytes;
    b->plan.buffer = device ? device_alloc(b->sizes.plan_bytes)
                            : aligned_alloc(64, (b->sizes.plan_bytes + 63) / 64 * 64);
    if (device) {
        b->workspace = device_alloc(b->sizes.workspace_bytes);
        check_cuda(cudaMemset(b->workspace, 0xff, b->sizes.workspace_bytes), "cudaMemset");
    } else {
        b->workspace = aligned_alloc(64, (b->sizes.workspace_bytes + 127) / 64 * 64);
    }
}

void free_buffers(buffers *b, bool device)
{
    if (device) {
        cudaFree(b->plan.buffer), cudaFree(b->workspace);
    } else {
        free(b->plan.buffer), free(b->workspace);
    }
}

void run_once(const mla_ctx *ctx, const mla_problem *problem, const mla_tensors *t, buffers *b,
              void *stream)
{
    const mla_lengths lengths = {.struct_size = sizeof lengths,
                                 .seqlens = t->seqlens,
                                 .topk_length = t->topk_length,
                                 .extra_topk_length = t->extra_topk_length};
    check_mla(mla_plan_build(ctx, problem, &lengths, &b->plan, stream), "mla_plan_build");
    check_mla(mla_run(ctx, problem, t, &b->plan, b->workspace, b->sizes.workspace_bytes, stream),
              "mla_run");
}

void tally_count(tally *t, bool good)
{
    good ? t->passed++ : t->failed++;
}

int tally_print(const tally *t, const char *area)
{
    printf("%s: %d passed, %d failed, %d skipped\n", area, t->passed, t->failed, t->skipped);
    return t->failed > 0;
}
