/* One job of the bf16 kernels, block of keys by block of keys. */
#include "bf16_attend.h"
#include "exact_scores.h"
#include "formats.h"

#include <assert.h>
#include <float.h>
#include <immintrin.h>
#include <math.h>

/* Takes the place of the largest |V| where the remainders must be multiplied in any case. Any
 * weight that counts, times this, is large; and 0 times this is 0. */
#define HUGE_VALUE 0x1p60f

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
    bool repeats;        /* the list names some rows many times */
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

/* Whether a sparse list has more entries than its pool has rows. */
static bool names_rows_again(const mla_key_rows *keys)
{
    bool again = false;
    for (int i = 0; i < 2 && keys->block_table == NULL; i++) {
        again = again || keys->num_keys[i] > keys->pool[i].num_slots;
    }
    return again;
}

static void start_pass(bf16_pass *pass)
{
    const mla_cpu_job *job = pass->job;
    mla_bf16_scratch *scratch = pass->scratch;
    assert(job->key_begin < job->key_end);
    pass->groups = (job->rows + MLA_BF16_LANES - 1) / MLA_BF16_LANES;
    pass->scale = fabsf(job->scale) * (float)M_LOG2E;
    pass->first = true;
    pass->repeats = names_rows_again(job->keys);
    scratch->has_nan_columns = false;
    memset(scratch->has_codes, 0, sizeof scratch->has_codes);
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
    for (int32_t row = 0; row < MLA_CPU_TILE_ROWS; row++) {
        scratch->row_max[row] = -INFINITY;
        /* Finite, so that logits of -INFINITY may be taken relative to it. */
        scratch->row_ref[row] = -FLT_MAX;
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

/* Scores of the group's rows that have large ones become relative to their row_ref, and those of
 * the keys that count are computed again. */
static void refine_scores(const bf16_pass *pass, const mla_bf16_block *block, int32_t group)
{
    const mla_cpu_job *job = pass->job;
    const mla_key_rows *keys = job->keys;
    mla_bf16_scratch *scratch = pass->scratch;
    double scale = job->scale * M_LOG2E;
    for (int32_t lane = 0; lane < MLA_BF16_LANES; lane++) {
        int32_t row = group * MLA_BF16_LANES + lane;
        if (!(scratch->large_scores[group] >> lane & 1) || row >= job->rows) {
            continue;
        }
        float q[MLA_D_QK_MAX], k[MLA_D_QK_MAX];
        for (int64_t d = 0; d < keys->d_qk; d++) {
            q[d] = mla_bf16_to_f32(job->q_rows[row][d]);
        }
        double ref = scratch->row_ref[row];
        for (int32_t key = 0; key < block->padded_keys; key++) {
            float *s = &scratch->s[group][key][lane];
            *s = *s * pass->scale - (float)ref;
            if (key < scratch->visible[row] && *s > MLA_EXACT_DISTANCE) {
                mla_key_row source = block->source[key];
                mla_row_decode(keys->kv_format, keys->dtype, keys->d_qk, source.data, source.scales,
                               k);
                *s = (float)(mla_exact_dot(q, k, keys->d_qk) * scale - ref);
            }
        }
    }
}

/* O += P * V with P rounded to bf16, and a split V too. */
static void add_values(bf16_pass *pass, const mla_bf16_block *block, bool masked)
{
    mla_bf16_scratch *scratch = pass->scratch;
    int32_t groups[MLA_BF16_GROUPS];
    for (int32_t group = 0; group < pass->groups; group++) {
        bool moved = mla_bf16_move_ref(scratch, group, block->padded_keys, pass->scale, masked);
        if (moved && !pass->first) {
            pass->engine->rescale(scratch, group);
        }
        if (scratch->large_scores[group] != 0) {
            refine_scores(pass, block, group);
        }
        mla_bf16_softmax(scratch, group, block->padded_keys, pass->scale, masked, block->split);
        pass->engine->arrange(scratch, group, block->padded_keys);
        groups[group] = group;
    }
    pass->engine->values(scratch, groups, pass->groups, block->padded_keys, pass->first);
    pass->first = false;
}

/* O += what the rounding of P, or of V, took away in the rows where it counts. False if in none. */
static bool add_remainders(bf16_pass *pass, const mla_bf16_block *block, bool masked, bool of_p)
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
        pass->engine->values(scratch, groups, num_groups, block->padded_keys, false);
    }
    return num_groups > 0;
}

/* S of keys whose latent values still lack their scales, one for each 128 values. */
static void score_by_groups(const bf16_pass *pass, const mla_bf16_block *block)
{
    mla_bf16_scratch *scratch = pass->scratch;
    for (int32_t i = 0; i < MLA_BF16_SCALES; i++) {
        mla_bf16_span span = {i * MLA_FP8_656_GROUP, (i + 1) * MLA_FP8_656_GROUP};
        pass->engine->scores(scratch, block, pass->groups, span);
        mla_bf16_scale_scores(scratch, pass->groups, block->padded_keys, i, i == 0);
    }
    mla_bf16_span rope = {MLA_FP8_656_LATENT, MLA_FP8_656_LATENT + MLA_ROPE_DIM};
    pass->engine->scores(scratch, block, pass->groups, rope);
    mla_bf16_add_scaled_scores(scratch, pass->groups, block->padded_keys);
}

static void attend_block(bf16_pass *pass, mla_bf16_block *block)
{
    mla_bf16_scratch *scratch = pass->scratch;
    mla_bf16_decode(pass->job->keys, block, scratch);
    set_visible(pass, block);
    if (block->split) {
        score_by_groups(pass, block);
    } else {
        mla_bf16_span whole = {0, (int32_t)pass->job->keys->d_qk};
        pass->engine->scores(scratch, block, pass->groups, whole);
    }
    bool all_see_all = pass->fewest_keys >= block->begin + block->num_keys;
    if (all_see_all && pass->repeats) {
        /* Their weights are rounded alike, and the errors do not average out. */
        scratch->value_max = HUGE_VALUE;
    } else if (all_see_all) {
        scratch->value_max = fminf(mla_bf16_largest_value(scratch, block->padded_keys), HUGE_VALUE);
    } else {
        scratch->value_max = HUGE_VALUE;
        mla_bf16_hide_non_finite(scratch, block->padded_keys);
    }
    bool masked = !all_see_all || block->num_keys < block->padded_keys;
    add_values(pass, block, masked);
    if (add_remainders(pass, block, masked, true) && block->split) {
        mla_bf16_use_low_values(block, scratch);
        mla_bf16_pair_values(scratch, block, 0, block->padded_keys, (mla_bf16_span){0, MLA_D_V});
        add_remainders(pass, block, masked, false);
    }
}

static void attend_blocks(bf16_pass *pass)
{
    const mla_key_rows *keys = pass->job->keys;
    mla_bf16_scratch *scratch = pass->scratch;
    mla_bf16_block *block = &scratch->block[0], *next = &scratch->block[1];
    int64_t at = mla_bf16_resolve(keys, pass->job->key_begin, pass->end, block);
    scratch->prefetch = (mla_bf16_prefetch){block, 0, 0, source_row_bytes(keys)};
    mla_bf16_pack_queries(pass->job, pass->job->scale < 0.0f, scratch);
    while (block->num_keys > 0) {
        at = mla_bf16_resolve(keys, at, pass->end, next);
        scratch->prefetch = (mla_bf16_prefetch){next, 0, 0, source_row_bytes(keys)};
        attend_block(pass, block);
        mla_bf16_block *done = block;
        block = next;
        next = done;
    }
}

static void put_nan_columns(const bf16_pass *pass)
{
    const mla_cpu_job *job = pass->job;
    for (int32_t row = 0; row < job->rows; row++) {
        for (int32_t column = 0; column < MLA_D_V; column++) {
            if (pass->scratch->nan_columns[row][column / 32] >> column % 32 & 1) {
                job->out[row * job->out_stride + column] = NAN;
            }
        }
    }
}

static void finish_pass(const bf16_pass *pass)
{
    const mla_cpu_job *job = pass->job;
    const mla_bf16_scratch *scratch = pass->scratch;
    float factor[MLA_CPU_TILE_ROWS];
    for (int32_t row = 0; row < job->rows; row++) {
        float sum = scratch->row_sum[row];
        factor[row] = 1.0f / sum;
        job->lse[row] = sum == 0.0f ? -INFINITY : scratch->row_ref[row] * M_LN2 + log(sum);
        job->row_max[row] = scratch->row_max[row] * (float)M_LN2;
    }
    for (int32_t first = 0; first < job->rows && !pass->first; first += MLA_BF16_LANES) {
        int32_t rows = job->rows - first < MLA_BF16_LANES ? job->rows - first : MLA_BF16_LANES;
        pass->engine->store(scratch, first / MLA_BF16_LANES, factor + first, rows,
                            job->out + first * job->out_stride, job->out_stride);
    }
    if (scratch->has_nan_columns) {
        put_nan_columns(pass);
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
    attend_blocks(&pass);
    finish_pass(&pass);
    _mm_setcsr(control);
}
