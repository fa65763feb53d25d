#include "naive_attention.h"

#include "cmocka_c11.h"
#include "plain_numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { D_V = 512 };

typedef struct gathered_keys {
    float *rows; /* [count, d_qk] */
    int64_t count, room;
} gathered_keys;

static void *alloc_doubles(int64_t count)
{
    void *memory = calloc((size_t)(count > 0 ? count : 1), sizeof(double));
    assert_non_null(memory);
    return memory;
}

static void gather_key(const attention_case *c, const mla_pool *pool, int64_t page_size,
                       int64_t slot, int64_t kv_head, gathered_keys *keys)
{
    const mla_problem *p = &c->problem;
    case_row row = attention_case_row(c, pool, page_size, slot, kv_head);
    if (keys->count == keys->room) {
        keys->room = 2 * keys->room + 64;
        keys->rows = realloc(keys->rows, (size_t)(keys->room * p->d_qk) * sizeof(float));
        assert_non_null(keys->rows);
    }
    float *values = keys->rows + keys->count++ * p->d_qk;
    int64_t latent = p->kv_format == MLA_KV_NATIVE ? 0 : p->d_qk - 64;
    for (int64_t i = 0; i < latent; i++) {
        float scale;
        if (p->kv_format == MLA_KV_FP8_656) {
            memcpy(&scale, row.scales + i / 128 * 4, sizeof scale);
        } else {
            scale = plain_e8m0(row.scales[i / 64]);
        }
        values[i] = scale == 0.0f ? 0.0f : plain_e4m3(row.data[i]) * scale;
    }
    const uint8_t *elems = row.data + latent + (p->kv_format == MLA_KV_FP8_656 ? 16 : 0);
    for (int64_t i = latent; i < p->d_qk; i++) {
        uint16_t bits;
        memcpy(&bits, elems + (i - latent) * 2, sizeof bits);
        values[i] = plain_elem(p->kv_format == MLA_KV_NATIVE ? p->dtype : MLA_DTYPE_BF16, bits);
    }
}

static void gather_list(const attention_case *c, const mla_pool *pool, int64_t page_size,
                        const int32_t *indices, int64_t count, int64_t kv_head, gathered_keys *keys)
{
    for (int64_t i = 0; i < count; i++) {
        if (indices[i] >= 0 && indices[i] < pool->num_pages * page_size) {
            gather_key(c, pool, page_size, indices[i], kv_head, keys);
        }
    }
}

static int64_t list_length(const int32_t *lengths, int64_t idx, int64_t topk)
{
    int64_t length = lengths != NULL ? lengths[idx] : topk;
    return length < 0 ? 0 : length < topk ? length : topk;
}

/* The row of indices of one token and KV head; all-zero strides are contiguous. */
static const int32_t *index_row(const mla_problem *p, const int32_t *indices, const int64_t *stride,
                                int64_t topk, int64_t batch, int64_t token, int64_t kv_head)
{
    if (stride[0] == 0 && stride[1] == 0 && stride[2] == 0) {
        return indices + ((batch * p->s_q + token) * p->h_kv + kv_head) * topk;
    }
    return indices + batch * stride[0] + token * stride[1] + kv_head * stride[2];
}

/* All keys that one token may see; dense and causal: those of the last token. */
static void gather_keys(const attention_case *c, int64_t batch, int64_t token, int64_t kv_head,
                        gathered_keys *keys)
{
    const mla_problem *p = &c->problem;
    const mla_tensors *t = &c->tensors;
    keys->count = 0;
    if (p->op == MLA_OP_DENSE_DECODE) {
        for (int64_t i = 0; i < c->seqlens[batch]; i++) {
            gather_key(c, &t->kv, p->page_size, dense_slot(c, batch, i), kv_head, keys);
        }
        return;
    }
    int64_t idx = p->op == MLA_OP_SPARSE_DECODE ? batch : token;
    gather_list(c, &t->kv, p->page_size,
                index_row(p, t->indices, t->indices_stride, p->topk, batch, token, kv_head),
                list_length(t->topk_length, idx, p->topk), kv_head, keys);
    if (p->extra_topk > 0) {
        gather_list(c, &t->extra_kv, p->extra_page_size,
                    index_row(p, t->extra_indices, t->extra_indices_stride, p->extra_topk, batch,
                              token, kv_head),
                    list_length(t->extra_topk_length, idx, p->extra_topk), kv_head, keys);
    }
}

static double dot(const float *a, const float *b, int64_t count)
{
    double sums[8] = {0};
    for (int64_t i = 0; i < count; i += 8) {
        for (int64_t j = 0; j < 8; j++) {
            sums[j] += (double)a[i + j] * (double)b[i + j];
        }
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

static void attend_row(const attention_case *c, const gathered_keys *keys, int64_t count,
                       const uint16_t *q_bits, int64_t head, double *out, double *lse, double *max)
{
    const mla_problem *p = &c->problem;
    double scale = (float)(p->softmax_scale == 0.0 ? pow((double)p->d_qk, -0.5) : p->softmax_scale);
    *max = -INFINITY;
    *lse = p->lse_empty_pos_inf ? INFINITY : -INFINITY;
    if (count <= 0) {
        return;
    }
    float q[576];
    for (int64_t i = 0; i < p->d_qk; i++) {
        q[i] = plain_elem(p->dtype, q_bits[i]);
    }
    double *weights = alloc_doubles(count), sum = 0.0;
    for (int64_t key = 0; key < count; key++) {
        weights[key] = dot(q, keys->rows + key * p->d_qk, p->d_qk) * scale;
        *max = weights[key] > *max ? weights[key] : *max;
    }
    for (int64_t key = 0; key < count; key++) {
        weights[key] = exp(weights[key] - *max);
        sum += weights[key];
    }
    *lse = log(sum) + *max;
    double sink = c->tensors.attn_sink != NULL ? c->tensors.attn_sink[head] : -INFINITY;
    for (int64_t key = 0; key < count; key++) {
        double weight = weights[key] / sum / (1.0 + exp(sink - *lse));
        for (int64_t i = 0; i < D_V; i++) {
            out[i] += weight * (double)keys->rows[key * p->d_qk + i];
        }
    }
    free(weights);
}

static const uint16_t *q_row(const attention_case *c, int64_t batch, int64_t token, int64_t head)
{
    const mla_problem *p = &c->problem;
    const int64_t *stride = c->tensors.q_stride;
    if (stride[0] == 0 && stride[1] == 0 && stride[2] == 0) {
        return c->q + ((batch * p->s_q + token) * p->h_q + head) * p->d_qk;
    }
    return c->q + batch * stride[0] + token * stride[1] + head * stride[2];
}

/* The rows of token `token` (all tokens of a dense request at once: they share the keys). */
static void attend_keys(const attention_case *c, const gathered_keys *keys, int64_t batch,
                        int64_t token, int64_t kv_head, exact_result *result)
{
    const mla_problem *p = &c->problem;
    bool dense = p->op == MLA_OP_DENSE_DECODE;
    int64_t group = p->h_q / p->h_kv, num_rows = dense ? p->s_q * group : group;
#pragma omp parallel for schedule(dynamic, 4) if (num_rows * keys->count > 500)
    for (int64_t i = 0; i < num_rows; i++) {
        int64_t row_token = dense ? i / group : token, head = kv_head * group + i % group;
        int64_t count = p->causal ? keys->count - (p->s_q - 1 - row_token) : keys->count;
        int64_t row = (batch * p->s_q + row_token) * p->h_q + head;
        attend_row(c, keys, count, q_row(c, batch, row_token, head), head, result->out + row * D_V,
                   &result->lse[row], &result->max_logits[row]);
    }
}

exact_result naive_attention(const attention_case *c)
{
    const mla_problem *p = &c->problem;
    int64_t rows = p->batch * p->s_q * p->h_q;
    exact_result result = {.out = alloc_doubles(rows * D_V),
                           .lse = alloc_doubles(rows),
                           .max_logits = alloc_doubles(rows)};
    gathered_keys keys = {0};
    for (int64_t batch = 0; batch < p->batch; batch++) {
        for (int64_t token = 0; token < (p->op == MLA_OP_DENSE_DECODE ? 1 : p->s_q); token++) {
            for (int64_t kv_head = 0; kv_head < p->h_kv; kv_head++) {
                gather_keys(c, batch, token, kv_head, &keys);
                attend_keys(c, &keys, batch, token, kv_head, &result);
            }
        }
    }
    free(keys.rows);
    return result;
}

void exact_result_free(exact_result *result)
{
    free(result->out);
    free(result->lse);
    free(result->max_logits);
}

static void assert_float_rounded(float got, double exact, const char *name, int64_t row)
{
    bool right = isfinite(exact) ? fabs((double)got - exact) <= fabs(exact) * 0x1p-23 + 1e-12
                                 : (isnan(exact) ? isnan(got) : (double)got == exact);
    if (!right) {
        fail_msg("%s of row %lld is %.9g, exactly %.17g", name, (long long)row, (double)got, exact);
    }
}

void assert_rounded_from(const mla_problem *p, const attention_result *got,
                         const exact_result *exact)
{
    double half_ulp = p->dtype == MLA_DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
    for (int64_t row = 0; row < p->batch * p->s_q * p->h_q; row++) {
        assert_float_rounded(got->lse[row], exact->lse[row], "lse", row);
        if (got->max_logits != NULL) {
            assert_float_rounded(got->max_logits[row], exact->max_logits[row], "max_logits", row);
        }
        for (int64_t i = 0; i < D_V; i++) {
            double want = exact->out[row * D_V + i];
            double value = plain_elem(p->dtype, got->out[row * D_V + i]);
            if (isnan(want) ? isnan(value)
                            : fabs(value - want) <= fabs(want) * half_ulp * 1.001 + 0x1p-24) {
                continue;
            }
            fail_msg("out of row %lld (token %lld, head %lld), column %lld is %.9g, exactly %.17g",
                     (long long)row, (long long)(row / p->h_q), (long long)(row % p->h_q),
                     (long long)i, value, want);
        }
    }
}
