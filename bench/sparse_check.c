/*
 * Compares sparse operations of the CUDA backend with the CPU backend over the sparse cases of
 * `mla check`, and each launch with a second one, byte by byte. `mla check` itself compares with
 * the double-precision reference, which takes minutes; the CPU's FP32 kernels take seconds.
 */
#include "check.h"
#include "gpu_driver.h"
#include "gpu_sparse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_SIZE = 160, SEED = 1 };

static bool wanted(const char *name, const char *filter)
{
    return filter == NULL || strstr(name, filter) != NULL;
}

static void say(bool good, const char *name, const comparison *compared)
{
    printf("%-4s %-56s %.2f of the tolerance%s%s\n", good ? "ok" : "BAD", name,
           compared->worst_share, good ? "" : ": ", good ? "" : compared->worst);
    fflush(stdout);
}

/* Fills a job's workspace with 0xff. */
static void poison_workspace(const job *work)
{
    check_cuda(cudaMemset(work->workspace, 0xff, work->sizes.workspace_bytes), "cudaMemset");
}

/* Plans, runs and fetches into `outputs`, which are poison before on the device too. */
static void run_job(job *work, const batch *input, batch_outputs *outputs)
{
    batch_outputs_reset(outputs);
    for (int id = TENSOR_FIRST_OUTPUT; id < TENSOR_COUNT; id++) {
        const guarded_memory *block = &outputs->memory[id - TENSOR_FIRST_OUTPUT];
        if (work->copies[id] != NULL) {
            check_cuda(
                cudaMemcpy(work->copies[id], block->data, block->bytes, cudaMemcpyHostToDevice),
                "cudaMemcpy");
        }
    }
    poison_workspace(work);
    work->host_outputs = outputs->memory;
    check_mla(job_plan(work), input->spec.op == MLA_OP_SPARSE_DECODE ? "decode" : "prefill");
    check_mla(job_run(work), "mla_run");
    if (!job_fetch(work)) {
        printf("the device failed\n");
        exit(2);
    }
}

static void make_outputs(batch *input, const batch_spec *spec, batch_outputs *outputs, int count)
{
    bool ok = batch_build(input, spec, SEED);
    for (int i = 0; i < count; i++) {
        ok = ok && batch_outputs_alloc(&outputs[i], input);
    }
    if (!ok) {
        exit(2);
    }
}

static void check_batch(const engine *gpu, const engine *cpu, const char *name,
                        const batch_spec *spec, tally *t)
{
    batch input;
    batch_outputs outputs[3]; /* two launches, and the CPU's */
    job work;
    comparison compared;
    make_outputs(&input, spec, outputs, 3);
    const mla_status status = job_open(&work, gpu, &input, &outputs[0]);
    if (status == MLA_ERR_UNSUPPORTED) {
        t->skipped++;
        printf("skip %-56s %s\n", name, mla_last_error());
    } else {
        check_mla(status, name);
        run_job(&work, &input, &outputs[0]);
        run_job(&work, &input, &outputs[1]);
        check_mla(job_once(cpu, &input, &outputs[2]), "the CPU");
        compare_outputs(&input, &outputs[0], &outputs[2], cpu->ctx, &compared);
        const bool good = compared.passed &&
                          outputs_same_bytes(&outputs[0], &outputs[1], &compared);
        say(good, name, &compared);
        tally_count(t, good);
    }
    job_close(&work);
    for (int i = 0; i < 3; i++) {
        batch_outputs_free(&outputs[i]);
    }
    batch_free(&input);
}

/* A captured plan and run, replayed after the lengths changed in place. */
static bool check_graph(const engine *gpu, const engine *cpu)
{
    const batch_spec spec = {.op = MLA_OP_SPARSE_DECODE,
                             .kv_format = MLA_KV_FP8_656,
                             .batch = 37,
                             .s_q = 2,
                             .h_q = 128,
                             .topk = 600,
                             .pool_slots = 3000,
                             .topk_length = TOPK_LENGTH_ABOVE};
    batch input;
    batch_outputs outputs[2];
    job work;
    void *graph = NULL;
    comparison compared = {.passed = false};
    make_outputs(&input, &spec, outputs, 2);
    check_mla(job_open(&work, gpu, &input, &outputs[0]), "graph");
    run_job(&work, &input, &outputs[0]);
    bool good = memory_graph_start(&gpu->memory);
    check_mla(job_plan(&work), "mla_plan_build");
    check_mla(job_run(&work), "mla_run");
    good = memory_graph_stop(&gpu->memory, &graph) && good;
    const guarded_memory *lengths = &input.memory[TENSOR_TOPK_LENGTH];
    for (int round = 0; good && round < 4; round++) {
        int32_t *length = (int32_t *)(void *)lengths->data;
        for (int64_t i = 0; i < spec.batch; i++) {
            length[i] = round == 2 ? -1 : (int32_t)(random_bits() % 700);
        }
        good = memory_upload(&gpu->memory, work.copies[TENSOR_TOPK_LENGTH], lengths->data,
                             lengths->bytes);
        check_cuda(cudaMemset(work.copies[TENSOR_OUT], 0xa5, outputs[0].memory[0].bytes),
                   "cudaMemset");
        poison_workspace(&work);
        good = good && memory_graph_run(&gpu->memory, graph) && job_fetch(&work);
        check_mla(job_once(cpu, &input, &outputs[1]), "the CPU");
        const mla_tensors got = batch_host_tensors(&input, &outputs[0]);
        const mla_tensors want = batch_host_tensors(&input, &outputs[1]);
        const row_range all = {0, spec.batch, 0, spec.s_q, 0, spec.h_q};
        compare_rows(&input, &got, &want, &all, cpu->ctx, &compared);
        good = good && compared.passed;
    }
    say(good, "graph replay", &compared);
    memory_graph_free(&gpu->memory, graph);
    job_close(&work);
    batch_outputs_free(&outputs[0]);
    batch_outputs_free(&outputs[1]);
    batch_free(&input);
    return good;
}

int check_sparse(const char *filter)
{
    const tool_options on_gpu = {.backend = MLA_BACKEND_CUDA};
    /* Kernels that round weights to bf16 would be no better than what they are to judge. */
    const tool_options on_cpu = {.backend = MLA_BACKEND_CPU,
                                 .isa_mask = MLA_ISA_PORTABLE | MLA_ISA_AVX2 | MLA_ISA_AVX512};
    engine gpu, cpu;
    tally t = {0};
    if (!engine_open(&gpu, &on_gpu) || !engine_open(&cpu, &on_cpu)) {
        return 2;
    }
    for (int32_t i = 0; i < num_check_cases; i++) {
        const check_case *item = &check_cases[i];
        for (int32_t n = 0; n < check_case_count(item); n++) {
            char name[NAME_SIZE];
            batch_spec spec;
            if (item->spec.op == MLA_OP_DENSE_DECODE || item->cpu_only ||
                !check_case_spec(item, n, &spec, name, sizeof name)) {
                continue;
            }
            if (wanted(name, filter)) {
                check_batch(&gpu, &cpu, name, &spec, &t);
            } else {
                t.skipped++;
            }
        }
    }
    random_seed(1);
    if (wanted("graph replay", filter)) {
        tally_count(&t, check_graph(&gpu, &cpu));
    }
    engine_close(&gpu);
    engine_close(&cpu);
    return tally_print(&t, "sparse");
}
