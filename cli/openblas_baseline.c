#include "openblas_baseline.h"
#include "random_values.h"
#include "tool.h"

#include <assert.h>
#include <dlfcn.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 512, D_V = 512, D_QK_MAX = 576, ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

typedef void sgemm_function(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                            const float *a, int lda, const float *b, int ldb, float beta, float *c,
                            int ldc);

struct openblas_baseline {
    void *library;
    sgemm_function *sgemm;
    void (*set_num_threads)(int count);
    char *(*get_config)(void);
    char *(*get_corename)(void);
    char description[160];
    /* Buffers, kept between runs. */
    float *memory;
    size_t floats;
};

/* One piece of one request's keys for one KV head. */
typedef struct work_item {
    int64_t request, kv_head, begin, end;
    float *sums;    /* [rows, D_V], not normalised */
    float *maxima;  /* [rows] */
    float *weights; /* [rows], sums of exp */
} work_item;

/*
 * OpenBLAS falls back to SSE3 kernels on processors younger than itself, which would make any
 * comparison worthless. The user's own choice in the environment wins.
 */
static void choose_kernels(uint32_t isa_available)
{
    if ((isa_available & MLA_ISA_AVX512) != 0) {
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    } else if ((isa_available & MLA_ISA_AVX2) != 0) {
        setenv("OPENBLAS_CORETYPE", "Haswell", 0);
    }
}

openblas_baseline *openblas_open(uint32_t isa_available)
{
    choose_kernels(isa_available);
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so"};
    openblas_baseline *blas = tool_alloc(1, sizeof *blas);
    for (size_t i = 0; blas->library == NULL && i < 2; i++) {
        blas->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    const char *const symbols[] = {"cblas_sgemm", "openblas_set_num_threads", "openblas_get_config",
                                   "openblas_get_corename"};
    void *const slots[] = {&blas->sgemm, &blas->set_num_threads, &blas->get_config,
                           &blas->get_corename};
    for (size_t i = 0; blas->library != NULL && i < 4; i++) {
        void *symbol = dlsym(blas->library, symbols[i]);
        if (symbol == NULL) {
            dlclose(blas->library);
            blas->library = NULL;
        } else {
            memcpy(slots[i], &symbol, sizeof symbol);
        }
    }
    if (blas->library == NULL) {
        free(blas);
        return NULL;
    }
    blas->set_num_threads(1);
    /* The configuration begins with name and version; the kernels in use are another matter. */
    snprintf(blas->description, sizeof blas->description, "%.*s with its %s kernels",
             (int)strcspn(blas->get_config() + 9, " ") + 9, blas->get_config(),
             blas->get_corename());
    return blas;
}

void openblas_close(openblas_baseline *blas)
{
    if (blas != NULL) {
        free(blas->memory);
        dlclose(blas->library);
        free(blas);
    }
}

const char *openblas_version(const openblas_baseline *blas)
{
    return blas->description;
}

bool openblas_serves(const mla_problem *problem)
{
    return problem->op == MLA_OP_DENSE_DECODE && problem->kv_format == MLA_KV_NATIVE &&
           !(problem->causal && problem->s_q > 1);
}

#if defined(__x86_64__)
#define VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTOR_CLONES
#endif

/* Replaces a row of logits by exp(logit - max) and returns their sum. A polynomial of degree 5, so
 * that the baseline is not held up by a scalar expf. */
VECTOR_CLONES
static float exp_row(float *row, int64_t count, float max)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        float x = (row[i] - max) * 1.44269504f;
        x = x < -126.0f ? -126.0f : x;
        /* Adding 1.5 * 2^23 leaves the nearest whole number in the low bits. */
        float shifted = x + 12582912.0f;
        float rest = x - (shifted - 12582912.0f);
        float power = 1.0f +
                      rest * (0.693147182f +
                              rest * (0.240226462f +
                                      rest * (0.0555028617f +
                                              rest * (0.00961881271f + rest * 0.00133943092f))));
        uint32_t bits;
        memcpy(&bits, &shifted, sizeof bits);
        bits = (bits - 0x4b400000u + 127u) << 23;
        float scale;
        memcpy(&scale, &bits, sizeof scale);
        row[i] = power * scale;
        sum += row[i];
    }
    return sum;
}

VECTOR_CLONES
static float max_row(const float *row, int64_t count)
{
    /* Independent maxima: a single one may not be reordered into vectors without fast-math. */
    float maxima[16], max = -INFINITY;
    for (int lane = 0; lane < 16; lane++) {
        maxima[lane] = -INFINITY;
    }
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
#pragma omp simd
        for (int lane = 0; lane < 16; lane++) {
            maxima[lane] = row[i + lane] > maxima[lane] ? row[i + lane] : maxima[lane];
        }
    }
    for (; i < count; i++) {
        max = row[i] > max ? row[i] : max;
    }
    for (int lane = 0; lane < 16; lane++) {
        max = maxima[lane] > max ? maxima[lane] : max;
    }
    return max;
}

VECTOR_CLONES
static void upcast_bf16(const uint16_t *from, float *to, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

VECTOR_CLONES
static void scale_row(float *row, int64_t count, float factor)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        row[i] *= factor;
    }
}

static void upcast(mla_dtype dtype, const uint16_t *from, float *to, int64_t count)
{
    if (dtype == MLA_DTYPE_BF16) {
        upcast_bf16(from, to, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        to[i] = elem_to_float(dtype, from[i]);
    }
}

static int64_t or_contiguous(int64_t stride, int64_t contiguous)
{
    return stride == 0 ? contiguous : stride;
}

static void upcast_queries(const mla_problem *problem, const mla_tensors *tensors,
                           const work_item *item, float *queries)
{
    int64_t group = problem->h_q / problem->h_kv;
    for (int64_t row = 0; row < problem->s_q * group; row++) {
        int64_t head = item->kv_head * group + row % group;
        int64_t at = item->request * tensors->q_stride[0] + row / group * tensors->q_stride[1] +
                     head * tensors->q_stride[2];
        upcast(problem->dtype, (const uint16_t *)tensors->q + at, queries + row * problem->d_qk,
               problem->d_qk);
    }
}

static void upcast_keys(const mla_problem *problem, const mla_tensors *tensors,
                        const work_item *item, int64_t begin, int64_t count, float *keys)
{
    const mla_pool *pool = &tensors->kv;
    const int32_t *table = tensors->block_table + item->request * tensors->block_table_stride;
    int64_t token_stride = or_contiguous(pool->stride[1], problem->h_kv * problem->d_qk);
    int64_t page_stride = or_contiguous(pool->stride[0], problem->page_size * token_stride);
    for (int64_t i = 0; i < count; i++) {
        int64_t token = begin + i;
        const uint16_t *row = (const uint16_t *)pool->data +
                              table[token / problem->page_size] * page_stride +
                              token % problem->page_size * token_stride +
                              item->kv_head * pool->stride[2];
        upcast(problem->dtype, row, keys + i * problem->d_qk, problem->d_qk);
    }
}

/* Attends to one item. `scratch` holds queries, keys and logits. */
static void run_item(const openblas_baseline *blas, const mla_problem *problem,
                     const mla_tensors *tensors, work_item *item, float *scratch)
{
    int64_t rows = problem->s_q * (problem->h_q / problem->h_kv);
    float *queries = scratch;
    float *keys = queries + rows * D_QK_MAX;
    float *logits = keys + BLOCK * D_QK_MAX;
    int d_qk = (int)problem->d_qk;
    float scale = (float)(problem->softmax_scale == 0.0 ? 1.0 / sqrt((double)problem->d_qk)
                                                        : problem->softmax_scale);
    upcast_queries(problem, tensors, item, queries);
    memset(item->sums, 0, (size_t)(rows * D_V) * sizeof(float));
    for (int64_t row = 0; row < rows; row++) {
        item->maxima[row] = -INFINITY;
        item->weights[row] = 0.0f;
    }
    for (int64_t begin = item->begin; begin < item->end; begin += BLOCK) {
        int count = (int)(item->end - begin < BLOCK ? item->end - begin : BLOCK);
        upcast_keys(problem, tensors, item, begin, count, keys);
        blas->sgemm(ROW_MAJOR, NO_TRANS, TRANS, (int)rows, count, d_qk, scale, queries, d_qk, keys,
                    d_qk, 0.0f, logits, BLOCK);
        for (int64_t row = 0; row < rows; row++) {
            float *line = logits + row * BLOCK;
            float block_max = max_row(line, count);
            float max = block_max > item->maxima[row] ? block_max : item->maxima[row];
            float old = expf(item->maxima[row] - max);
            item->weights[row] = item->weights[row] * old + exp_row(line, count, max);
            item->maxima[row] = max;
            if (old != 1.0f) {
                scale_row(item->sums + row * D_V, D_V, old);
            }
        }
        blas->sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, (int)rows, D_V, count, 1.0f, logits, BLOCK, keys,
                    d_qk, 1.0f, item->sums, D_V);
    }
}

/* Joins the `splits` items of one request and KV head and rounds them into `out`. */
static void join_items(const mla_problem *problem, const work_item *items, int64_t splits,
                       uint16_t *out)
{
    int64_t group = problem->h_q / problem->h_kv;
    const small_float *format = problem->dtype == MLA_DTYPE_BF16 ? &small_bf16 : &small_f16;
    for (int64_t row = 0; row < problem->s_q * group; row++) {
        float max = -INFINITY, weight = 0.0f, factors[256];
        for (int64_t i = 0; i < splits; i++) {
            max = items[i].maxima[row] > max ? items[i].maxima[row] : max;
        }
        for (int64_t i = 0; i < splits; i++) {
            factors[i] = items[i].weights[row] > 0.0f ? expf(items[i].maxima[row] - max) : 0.0f;
            weight += factors[i] * items[i].weights[row];
        }
        int64_t head = items->kv_head * group + row % group;
        uint16_t *to = out +
                       ((items->request * problem->s_q + row / group) * problem->h_q + head) * D_V;
        for (int64_t column = 0; column < D_V; column++) {
            float value = 0.0f;
            for (int64_t i = 0; i < splits; i++) {
                value += factors[i] * items[i].sums[row * D_V + column];
            }
            value = weight > 0.0f ? value / weight : 0.0f;
            if (problem->dtype == MLA_DTYPE_BF16) {
                uint32_t bits;
                memcpy(&bits, &value, sizeof bits);
                to[column] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
            } else {
                to[column] = (uint16_t)small_float_encode(format, (double)value);
            }
        }
    }
}

bool openblas_run(openblas_baseline *blas, const mla_problem *problem, const mla_tensors *tensors,
                  uint16_t *out, int32_t num_threads)
{
    assert(openblas_serves(problem) && num_threads >= 1);
    int64_t rows = problem->s_q * (problem->h_q / problem->h_kv);
    int64_t pairs = problem->batch * problem->h_kv;
    int64_t splits = pairs >= num_threads ? 1 : (num_threads + pairs - 1) / pairs;
    splits = splits > 256 ? 256 : splits;
    size_t item_floats = (size_t)(rows * (D_V + 2));
    size_t thread_floats = (size_t)(rows * (D_QK_MAX + BLOCK) + BLOCK * D_QK_MAX);
    size_t floats = (size_t)(pairs * splits) * item_floats + (size_t)num_threads * thread_floats;
    if (floats > blas->floats) {
        free(blas->memory);
        blas->memory = aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64);
        blas->floats = blas->memory != NULL ? floats : 0;
    }
    work_item *items = calloc((size_t)(pairs * splits), sizeof *items);
    if (blas->memory == NULL || items == NULL) {
        free(items);
        return false;
    }
    for (int64_t i = 0; i < pairs * splits; i++) {
        int64_t request = i / splits / problem->h_kv;
        int64_t blocks = (tensors->seqlens[request] + BLOCK - 1) / BLOCK;
        int64_t begin = blocks * (i % splits) / splits * BLOCK;
        int64_t end = blocks * (i % splits + 1) / splits * BLOCK;
        int64_t length = tensors->seqlens[request];
        float *sums = blas->memory + (size_t)num_threads * thread_floats + (size_t)i * item_floats;
        items[i] = (work_item){
            request,           i / splits % problem->h_kv, begin, end < length ? end : length, sums,
            sums + rows * D_V, sums + rows * (D_V + 1)};
    }
#pragma omp parallel num_threads(num_threads)
    {
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < pairs * splits; i++) {
            float *scratch = blas->memory + (size_t)omp_get_thread_num() * thread_floats;
            run_item(blas, problem, tensors, &items[i], scratch);
        }
#pragma omp for schedule(dynamic)
        for (int64_t pair = 0; pair < pairs; pair++) {
            join_items(problem, items + pair * splits, splits, out);
        }
    }
    free(items);
    return true;
}
