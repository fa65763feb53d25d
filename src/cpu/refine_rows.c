#include "refine_rows.h"

#include "exact_scores.h"
#include "formats.h"

#include <assert.h>
#include <math.h>

/* What the manual allows lse to differ by. */
static const double lse_error = 1e-6, lse_error_part = 8.01 / 65536.0;

/* No logit was seen to be off by more than 2^-24.3 |q| |k| scale, for any kernel. */
static const double logit_error = 0x1p-22;

/* An error of a logit moves out by as large a part of what the values of two keys differ by. With
 * normal values, of which the largest are |k| / 6, 2^-24 |q| |k| scale may make 1e-3 of this. */
static const double largest_product = 0x1p17;

/* Keys compete when the largest weight is not all of the sum. */
static const double competing_weights = 2e-5;

static bool is_coarse(const mla_few_keys *few, double q_length, double k_length, mla_row_sums sums)
{
    double size = q_length * k_length * fabs(few->scale);
    double least = fabs(sums.lse);
    if (few->wants_max && fabs(sums.row_max) < least) {
        least = fabs(sums.row_max);
    }
    if (!(size * logit_error <= lse_error + lse_error_part * least)) {
        return true;
    }
    /* Where scores are large the kernels have taken care of the weights. */
    return !(size * k_length <= largest_product) &&
           sums.lse - (double)sums.row_max > competing_weights &&
           !mla_scores_are_large(sums.row_max * M_LOG2E);
}

/* The largest magnitude that e4m3 values with these scales can have. */
static double largest_fp8(mla_kv_format kv_format, const uint8_t *scales)
{
    enum { MAX_E4M3 = 448 };
    double largest = 0.0;
    bool is_656 = kv_format == MLA_KV_FP8_656;
    int count = is_656 ? MLA_FP8_656_LATENT / MLA_FP8_656_GROUP
                       : MLA_FP8_584_LATENT / MLA_FP8_584_GROUP;
    for (int i = 0; i < count; i++) {
        float scale = 0.0f;
        if (is_656) {
            memcpy(&scale, scales + sizeof scale * (size_t)i, sizeof scale);
        } else {
            scale = mla_e8m0_to_f32(scales[i]);
        }
        double value = fabs((double)scale) * MAX_E4M3;
        largest = value <= largest ? largest : value;
    }
    return largest;
}

/* No less than the length of any of the keys. */
static double bound_keys(const mla_few_keys *few, const mla_cpu_kernel *kernel)
{
    mla_kv_format format = few->keys->kv_format;
    const uint16_t *values[MLA_FEW_KEYS]; /* the 16-bit ones of each row */
    int64_t values_at = format == MLA_KV_FP8_656   ? MLA_FP8_656_ROPE_AT
                        : format == MLA_KV_FP8_584 ? MLA_FP8_584_ROPE_AT
                                                   : 0;
    double largest = 0.0;
    for (int32_t i = 0; i < few->count; i++) {
        values[i] = (const uint16_t *)(const void *)(few->row[i].data + values_at);
        if (format != MLA_KV_NATIVE) {
            double value = largest_fp8(format, few->row[i].scales);
            largest = value <= largest ? largest : value;
        }
    }
    int64_t count = format == MLA_KV_NATIVE ? few->keys->d_qk : MLA_ROPE_DIM;
    uint16_t bits = kernel->largest(few->count, values, count);
    /* RoPE values of FP8 rows are bf16, whatever the queries are. */
    mla_dtype dtype = format == MLA_KV_NATIVE ? few->keys->dtype : MLA_DTYPE_BF16;
    double value = mla_elem_to_f32(dtype, bits);
    largest = value <= largest ? largest : value;
    return largest * sqrt((double)few->keys->d_qk);
}

/* Finds the first keys of the list, if it has few or some row sees few. */
static void find_keys(const mla_cpu_job *job, mla_few_keys *few)
{
    const mla_key_rows *keys = few->keys;
    int64_t end = keys->num_keys[0] + keys->num_keys[1], fewest = end;
    for (int32_t row = 0; job->row_keys != NULL && row < job->rows; row++) {
        fewest = job->row_keys[row] < fewest ? job->row_keys[row] : fewest;
    }
    if (keys->block_table != NULL) {
        end = fewest > MLA_FEW_KEYS ? 0 : end < MLA_FEW_KEYS ? end : MLA_FEW_KEYS;
    }
    int32_t count = 0;
    for (int64_t begin = 0; begin < end && count <= MLA_FEW_KEYS; begin += MLA_FEW_KEYS) {
        int64_t rest = end - begin;
        int64_t stop = begin + (rest < MLA_FEW_KEYS ? rest : MLA_FEW_KEYS);
        count += mla_key_rows_resolve(keys, begin, stop, few->row + count);
    }
    few->count = count <= MLA_FEW_KEYS ? count : 0;
}

void mla_few_keys_find(const mla_cpu_job *job, const mla_cpu_kernel *kernel, bool wants_max,
                       mla_few_keys *few)
{
    few->keys = job->keys;
    few->scale = job->scale;
    few->wants_max = wants_max;
    find_keys(job, few);
    if (few->count == 0) {
        return;
    }
    int64_t d_qk = few->keys->d_qk;
    uint16_t bits = kernel->largest(job->rows, job->q_rows, d_qk);
    few->q_length = (double)mla_elem_to_f32(few->keys->dtype, bits) * sqrt((double)d_qk);
    few->k_length = bound_keys(few, kernel);
    for (int32_t i = 0; i < few->count; i++) {
        few->exact_length[i] = -1.0;
    }
}

/* The length of a key, computed when first asked for. */
static double key_length(mla_few_keys *few, int32_t key)
{
    if (few->exact_length[key] < 0.0) {
        const mla_key_rows *keys = few->keys;
        float k[MLA_D_QK_MAX];
        mla_row_decode(keys->kv_format, keys->dtype, keys->d_qk, few->row[key].data,
                       few->row[key].scales, k);
        few->exact_length[key] = sqrt(mla_exact_dot(k, k, keys->d_qk));
    }
    return few->exact_length[key];
}

bool mla_row_is_coarse(mla_few_keys *few, const uint16_t *q, int64_t num_keys, mla_row_sums sums)
{
    const mla_key_rows *keys = few->keys;
    if (isfinite(sums.row_max) && fabs(sums.row_max * M_LOG2E) >= MLA_HUGE_SCORE) {
        return true;
    }
    if (few->count == 0 || !isfinite(sums.lse) ||
        !is_coarse(few, few->q_length, few->k_length, sums)) {
        return false;
    }
    /* The bounds may owe their size to other rows and their keys, or to the bounding. */
    int32_t count = few->count;
    if (keys->block_table != NULL) {
        if (num_keys > count) {
            return false;
        }
        count = (int32_t)num_keys;
    }
    double k_length = 0.0;
    for (int32_t i = 0; i < count; i++) {
        double length = key_length(few, i);
        k_length = length <= k_length ? k_length : length;
    }
    if (!is_coarse(few, few->q_length, k_length, sums)) {
        return false;
    }
    float values[MLA_D_QK_MAX];
    for (int64_t d = 0; d < keys->d_qk; d++) {
        values[d] = mla_elem_to_f32(keys->dtype, q[d]);
    }
    return is_coarse(few, sqrt(mla_exact_dot(values, values, keys->d_qk)), k_length, sums);
}
