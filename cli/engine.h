/* A context with the memory it works on, and a job: one problem with its tensors, ready to run. */
#ifndef MLA_CLI_ENGINE_H
#define MLA_CLI_ENGINE_H

#include "batch.h"
#include "device_memory.h"
#include "tool.h"

typedef struct engine {
    mla_ctx *ctx;
    mla_info info;
    memory_space memory;
} engine;

/* Prints the reason and returns false on failure. */
bool engine_open(engine *runner, const tool_options *options);
void engine_close(engine *runner);

/* Whether kernels round P to 16 bits and are compared with that in mind: those of the GPU. Those of
 * the CPU that do, add the remainder where it counts. */
bool engine_rounds_p(const engine *runner);

/* One line for people: "CPU Intel(R) Xeon(R), 2 threads, avx512_bf16". */
void engine_describe(const engine *runner, char *text, size_t size);

/* One problem on one engine. For the CPU the tensors are the batch's own, for a GPU they are
 * copies. */
typedef struct job {
    const engine *runner;
    mla_problem problem;
    mla_tensors tensors; /* where the engine works */
    mla_lengths lengths;
    mla_sizes sizes;
    mla_plan plan;
    void *workspace;
    void *copies[TENSOR_COUNT]; /* device memory; NULL on the CPU */
    guarded_memory *host_outputs;
} job;

/*
 * Copies what must be copied and allocates plan and workspace. `outputs` may be the batch's own or
 * another set. Returns the library's status; MLA_ERR_UNSUPPORTED says that the problem is not
 * offered. Whatever the status, job_close() releases.
 */
mla_status job_open(job *work, const engine *runner, const batch *input, batch_outputs *outputs);

/* The same for tensors that the engine reaches as they are; job_fetch() then only waits. */
mla_status job_open_placed(job *work, const engine *runner, const mla_problem *problem,
                           const mla_tensors *tensors);
mla_status job_plan(job *work);
mla_status job_run(job *work);   /* enqueues; on the CPU the result is there on return */
bool job_fetch(const job *work); /* waits, and copies the outputs to the host */
void job_close(job *work);       /* a job that is all zero is allowed */

/* All of it, once: open, plan, run, fetch, close. */
mla_status job_once(const engine *runner, const batch *input, batch_outputs *outputs);

#endif
