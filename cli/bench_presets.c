/* The presets of `mla bench`, as data. */
#include "bench.h"

#include <assert.h>
#include <string.h>

typedef struct preset_row {
    const char *preset;
    bool on_cpu, on_gpu;
    mla_op op;
    mla_kv_format kv_format;
    int64_t batch, s_q, h_q, keys, topk;
} preset_row;

#define DENSE   MLA_OP_DENSE_DECODE
#define SPARSE  MLA_OP_SPARSE_DECODE
#define PREFILL MLA_OP_SPARSE_PREFILL

/* keys: length of a request; of the pool when sparse, of each request's share of it on a GPU, where
 * rows that several requests name would come from its L2. The GPU's shapes, and its normal values
 * of deviation 0.1, are those that the field compares kernels with; on a CPU they would take
 * minutes. Values matter on a GPU whose clock depends on the power that they draw. */
static const preset_row rows[] = {
    {"decode", true, false, DENSE, MLA_KV_NATIVE, 1, 1, 128, 4096, 0},
    {"decode", true, false, DENSE, MLA_KV_NATIVE, 4, 1, 128, 4096, 0},
    {"decode", true, false, DENSE, MLA_KV_NATIVE, 4, 1, 128, 16384, 0},
    {"decode", true, false, DENSE, MLA_KV_NATIVE, 4, 2, 128, 4096, 0},
    {"decode", true, false, DENSE, MLA_KV_NATIVE, 4, 1, 64, 8192, 0},
    {"decode", true, false, DENSE, MLA_KV_NATIVE, 1, 1, 16, 4096, 0},
    {"decode", true, false, DENSE, MLA_KV_NATIVE, 4, 1, 16, 16384, 0},
    {"decode", true, false, DENSE, MLA_KV_NATIVE, 4, 1, 1, 16384, 0},
    {"decode", false, true, DENSE, MLA_KV_NATIVE, 128, 1, 128, 4096, 0},
    {"decode", false, true, DENSE, MLA_KV_NATIVE, 128, 1, 128, 8192, 0},
    {"decode", false, true, DENSE, MLA_KV_NATIVE, 128, 1, 128, 16384, 0},
    {"decode", false, true, DENSE, MLA_KV_NATIVE, 128, 2, 128, 8192, 0},
    {"decode", false, true, DENSE, MLA_KV_NATIVE, 128, 1, 64, 16384, 0},
    {"decode", false, true, DENSE, MLA_KV_NATIVE, 128, 1, 32, 16384, 0},
    {"decode", false, true, DENSE, MLA_KV_NATIVE, 128, 1, 16, 16384, 0},
    {"decode", false, true, DENSE, MLA_KV_NATIVE, 128, 4, 16, 8192, 0},

    {"small", true, false, DENSE, MLA_KV_NATIVE, 1, 1, 128, 1024, 0},
    {"small", true, false, DENSE, MLA_KV_NATIVE, 1, 1, 128, 4096, 0},
    {"small", true, false, DENSE, MLA_KV_NATIVE, 1, 1, 128, 32768, 0},
    {"small", true, false, DENSE, MLA_KV_NATIVE, 1, 1, 16, 1024, 0},
    {"small", true, false, DENSE, MLA_KV_NATIVE, 1, 1, 16, 32768, 0},
    {"small", true, false, DENSE, MLA_KV_NATIVE, 16, 1, 16, 128, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 1, 1, 128, 1024, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 1, 1, 128, 4096, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 1, 1, 128, 32768, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 1, 1, 128, 131072, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 4, 1, 128, 4096, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 8, 1, 128, 8192, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 16, 1, 128, 2048, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 32, 1, 128, 4096, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 1, 1, 16, 1024, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 1, 1, 16, 4096, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 1, 1, 16, 32768, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 1, 1, 16, 131072, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 4, 1, 16, 4096, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 8, 1, 16, 8192, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 16, 1, 16, 2048, 0},
    {"small", false, true, DENSE, MLA_KV_NATIVE, 32, 1, 16, 4096, 0},

    {"sparse", true, false, SPARSE, MLA_KV_FP8_656, 4, 1, 128, 32768, 2048},
    {"sparse", true, false, SPARSE, MLA_KV_FP8_584, 4, 1, 128, 32768, 2048},
    {"sparse", true, false, SPARSE, MLA_KV_NATIVE, 4, 1, 128, 32768, 2048},
    {"sparse", true, false, SPARSE, MLA_KV_FP8_656, 4, 2, 64, 32768, 2048},
    {"sparse", true, false, SPARSE, MLA_KV_FP8_656, 4, 1, 16, 32768, 2048},
    {"sparse", false, true, SPARSE, MLA_KV_FP8_656, 128, 1, 128, 32768, 2048},
    {"sparse", false, true, SPARSE, MLA_KV_FP8_656, 128, 2, 128, 32768, 2048},
    {"sparse", false, true, SPARSE, MLA_KV_FP8_656, 128, 1, 64, 32768, 2048},
    {"sparse", false, true, SPARSE, MLA_KV_FP8_656, 2, 1, 128, 32768, 2048},
    {"sparse", false, true, SPARSE, MLA_KV_FP8_656, 64, 1, 128, 32768, 32768},
    {"sparse", false, true, SPARSE, MLA_KV_FP8_584, 128, 1, 128, 32768, 2048},
    {"sparse", false, true, SPARSE, MLA_KV_NATIVE, 128, 1, 128, 32768, 2048},

    {"prefill", true, false, PREFILL, MLA_KV_NATIVE, 1, 32, 128, 8192, 2048},
    {"prefill", true, false, PREFILL, MLA_KV_NATIVE, 1, 256, 128, 8192, 512},
    {"prefill", true, false, PREFILL, MLA_KV_NATIVE, 1, 256, 16, 8192, 512},
    {"prefill", false, true, PREFILL, MLA_KV_NATIVE, 1, 4096, 128, 8192, 2048},
    {"prefill", false, true, PREFILL, MLA_KV_NATIVE, 1, 4096, 128, 65536, 2048},
    {"prefill", false, true, PREFILL, MLA_KV_NATIVE, 1, 4096, 64, 32768, 2048},
};

int32_t bench_preset(const char *name, mla_backend backend, bench_point *points)
{
    int32_t count = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const preset_row *row = &rows[i];
        bool on_gpu = backend == MLA_BACKEND_CUDA, here = on_gpu ? row->on_gpu : row->on_cpu;
        if (strcmp(row->preset, name) != 0 || !here) {
            continue;
        }
        assert(count < BENCH_MAX_POINTS);
        bool dense = row->op == MLA_OP_DENSE_DECODE;
        int64_t slots = row->keys * (on_gpu ? row->batch : 1);
        points[count++] = (bench_point){.spec = {.op = row->op,
                                                 .kv_format = row->kv_format,
                                                 .batch = row->batch,
                                                 .s_q = row->s_q,
                                                 .h_q = row->h_q,
                                                 .q_std = on_gpu ? 0.1 : 0.0,
                                                 .kv_std = on_gpu ? 0.1 : 0.0,
                                                 .topk = row->topk,
                                                 .len_min = dense ? row->keys : 0,
                                                 .len_max = dense ? row->keys : 0,
                                                 .causal = dense && row->s_q > 1,
                                                 .pool_slots = dense ? 0 : slots},
                                        .with_dense = row->op == MLA_OP_SPARSE_DECODE};
    }
    return count;
}
