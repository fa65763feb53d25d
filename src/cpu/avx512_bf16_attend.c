/* One job of the bf16 kernels, block of keys by block of keys. */
#include "bf16_attend.h"
#include "formats.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>

/* A job on its way through the blocks. */
typedef struct bf16_pass {
    const mla_cpu_job *job;
    const mla_bf16_engine *engine;
    mla_bf16_scratch *scratch;
    int32_t groups;      /* of 16 query rows, the last one maybe partly absent */
    float scale;         /* to base 2, not negative: the queries carry its sign */
    int64_t fewest_keys; /* entries of the list that every row sees */
    int64_t end;         /* entries of the list that some row sees */
    bool first;          /* O holds nothing yet */
} bf16_pass;

bool mla_bf16_serves(mla_kv_format kv_format, mla_dtype dtype)
{
    return dtype == MLA_DTYPE_BF16 && (kv_format == MLA_KV_NATIVE || kv_format == MLA_KV_FP8_656 ||
                                       kv_format == MLA_KV_FP8_584);
}

static int32_t source_row_bytes(const mla_key_rows *keys)
{
    return keys->kv_format == MLA_KV_FP8_656   ? MLA_FP8_656_BYTES
           : keys->kv_format == MLA_KV_FP8_584 ? MLA_FP8_584_DATA_BYTES
                                               : (int32_t)keys->d_qk * 2;
}

static void start_pass(bf16_pass *pass)
{
    const mla_cpu_job *job = pass->job;
    mla_bf16_scratch *scratch = pass->scratch;
    assert(job->key_begin < job->key_end);
    pass->groups = (job->rows + MLA_BF16_LANES - 1) / MLA_BF16_LANES;
    pass->scale = fabsf(job->scale) * (float)M_LOG2E;
    pass->first = true;
    pass->fewest_keys = pass->end = job->key_end;
    if (job->row_keys != NULL) {
        pass->end = job->key_begin;
        for (int32_t row = 0; row < job->rows; row++) {
            int64_t keys = job->row_keys[row];
            pass->fewest_keys = keys < pass->fewest_keys ? keys : pass->fewest_keys;
            pass->end = keys > pass->end ? keys : pass->end;
        }
        pass->end = pass->end < job->key_end ? pass->end : job->key_end;
    }
    mla_bf16_pack_queries(job, job->scale < 0.0f, scratch);
    for (int32_t row = 0; row < MLA_CPU_TILE_ROWS; row++) {
        scratch->row_ref[row] = scratch->row_max[row] = -INFINITY;
        scratch->row_sum[row] = scratch->row_rounded[row] = 0.0f;
    }
}

/* Fills scratch->visible; absent rows see all keys, which are finite or of no account. */
static void set_visible(const bf16_pass *pass, const mla_bf16_block *block)
{
    for (int32_t row = 0; row < pass->groups * MLA_BF16_LANES; row++) {
        int64_t keys = block->num_keys;
        if (pass->job->row_keys != NULL && row < pass->job->rows) {
            keys = pass->job->row_keys[row] - block->begin;
            keys = keys < 0 ? 0 : keys < block->num_keys ? keys : block->num_keys;
        }
        pass->scratch->visible[row] = (int32_t)keys;
    }
}

/* O += P * V with P rounded to bf16, and a split V too. */
static void add_values(bf16_pass *pass, const mla_bf16_block *block, bool masked)
{
    mla_bf16_scratch *scratch = pass->scratch;
    int32_t groups[MLA_BF16_GROUPS];
    for (int32_t group = 0; group < pass->groups; group++) {
        bool moved = mla_bf16_softmax(scratch, group, block->padded_keys, pass->scale, masked,
                                      block->split);
        if (moved && !pass->first) {
            pass->engine->rescale(scratch, group);
        }
        pass->engine->arrange(scratch, group, block->padded_keys);
        groups[group] = group;
    }
    pass->engine->values(scratch, groups, pass->groups, block->padded_keys, pass->first);
    pass->first = false;
}

/* O += what the rounding of P or of V took away, in the rows where it counts. */
static void add_remainders(bf16_pass *pass, const mla_bf16_block *block, bool masked, bool of_p)
{
    mla_bf16_scratch *scratch = pass->scratch;
    int32_t groups[MLA_BF16_GROUPS];
    int32_t num_groups = 0;
    for (int32_t group = 0; group < pass->groups; group++) {
        if (scratch->few_keys[group] != 0) {
            mla_bf16_softmax_few(scratch, group, block->padded_keys, pass->scale, masked, of_p);
            pass->engine->arrange(scratch, group, block->padded_keys);
            groups[num_groups++] = group;
        }
    }
    if (num_groups > 0) {
        if (!of_p) {
            mla_bf16_pair_values(scratch, &scratch->low_block);
        }
        pass->engine->values(scratch, groups, num_groups, block->padded_keys, false);
    }
}

/* False if the block holds something that only the FP32 kernel treats right. */
static bool attend_block(bf16_pass *pass, mla_bf16_block *block)
{
    if (!mla_bf16_decode(pass->job->keys, block, pass->scratch)) {
        return false;
    }
    bool masked = block->num_keys < block->padded_keys;
    if (pass->fewest_keys < block->begin + block->num_keys) {
        /* A weight of 0 times NaN is NaN: it must not reach the rows that may not see the key. */
        if (!mla_bf16_values_finite(block)) {
            return false;
        }
        masked = true;
    }
    set_visible(pass, block);
    pass->engine->scores(pass->scratch, block, pass->groups, pass->job->keys->d_qk);
    if (block->split) {
        pass->engine->add_scores(pass->scratch, &pass->scratch->low_block, pass->groups, MLA_D_V);
    }
    add_values(pass, block, masked);
    add_remainders(pass, block, masked, true);
    if (block->split) {
        add_remainders(pass, block, masked, false);
    }
    return true;
}

static bool attend_blocks(bf16_pass *pass)
{
    const mla_key_rows *keys = pass->job->keys;
    mla_bf16_scratch *scratch = pass->scratch;
    mla_bf16_block *block = &scratch->block[0], *next = &scratch->block[1];
    int64_t at = mla_bf16_resolve(keys, pass->job->key_begin, pass->end, block);
    while (block->num_keys > 0) {
        at = mla_bf16_resolve(keys, at, pass->end, next);
        scratch->prefetch = (mla_bf16_prefetch){next, 0, 0, source_row_bytes(keys)};
        if (!attend_block(pass, block)) {
            return false;
        }
        mla_bf16_block *done = block;
        block = next;
        next = done;
    }
    return true;
}

static void finish_pass(const bf16_pass *pass)
{
    const mla_cpu_job *job = pass->job;
    const mla_bf16_scratch *scratch = pass->scratch;
    float factor[MLA_CPU_TILE_ROWS];
    for (int32_t row = 0; row < job->rows; row++) {
        float sum = scratch->row_sum[row];
        factor[row] = 1.0f / sum;
        job->lse[row] = sum == 0.0f ? -INFINITY : scratch->row_ref[row] * (float)M_LN2 + logf(sum);
        job->row_max[row] = scratch->row_max[row] * (float)M_LN2;
    }
    for (int32_t first = 0; first < job->rows && !pass->first; first += MLA_BF16_LANES) {
        int32_t rows = job->rows - first < MLA_BF16_LANES ? job->rows - first : MLA_BF16_LANES;
        pass->engine->store(scratch, first / MLA_BF16_LANES, factor + first, rows,
                            job->out + first * job->out_stride, job->out_stride);
    }
    for (int32_t row = 0; row < job->rows; row++) {
        if (scratch->row_sum[row] == 0.0f) {
            memset(job->out + row * job->out_stride, 0, MLA_D_V * sizeof *job->out);
        }
    }
}

void mla_bf16_attend(const mla_cpu_job *job, const mla_bf16_engine *engine)
{
    bf16_pass pass = {.job = job, .engine = engine, .scratch = job->scratch};
    assert((uintptr_t)job->scratch % 64 == 0);
    /* Weights underflow all the time: denormals would cost a microcode assist each. */
    unsigned int control = _mm_getcsr();
    _mm_setcsr(control | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
    start_pass(&pass);
    bool served = attend_blocks(&pass);
    if (served) {
        finish_pass(&pass);
    }
    _mm_setcsr(control);
    if (!served) {
        assert(mla_avx512_kernel.scratch_bytes <= sizeof(mla_bf16_scratch));
        mla_avx512_kernel.attend(job);
    }
}
