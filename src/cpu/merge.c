#include "merge.h"

#include "formats.h"

#include <assert.h>
#include <math.h>

enum { MAX_PARTS = 256, D_V = 512 };

/*
 * Weights that join `num_parts` results; 0 for a part without keys, whose lse is infinite and whose
 * values must not be read. Returns the joined lse, -INFINITY when no part has keys.
 */
static double merge_weights(const float *lses, int64_t num_parts, double *weights)
{
    double max = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < num_parts; i++) {
        max = isinf(lses[i]) ? max : fmax(max, lses[i]);
    }
    for (int64_t i = 0; i < num_parts; i++) {
        weights[i] = isinf(lses[i]) ? 0.0 : exp(lses[i] - max); /* a NaN spreads from here */
        sum += weights[i];
    }
    if (sum == 0.0) {
        return -INFINITY;
    }
    for (int64_t i = 0; i < num_parts; i++) {
        weights[i] /= sum;
    }
    return max + log(sum);
}

static float load_elem(mla_dtype dtype, const void *base, int64_t idx)
{
    return dtype == MLA_DTYPE_F32 ? ((const float *)base)[idx]
                                  : mla_elem_to_f32(dtype, ((const uint16_t *)base)[idx]);
}

static void store_elem(mla_dtype dtype, void *base, int64_t idx, float value)
{
    if (dtype == MLA_DTYPE_F32) {
        ((float *)base)[idx] = value;
    } else {
        ((uint16_t *)base)[idx] = mla_elem_from_f32(dtype, value);
    }
}

static int64_t elem_offset(const int64_t *stride, int64_t batch, int64_t token, int64_t head)
{
    return batch * stride[0] + token * stride[1] + head * stride[2];
}

static void merge_row(const mla_merge_args *a, int64_t batch, int64_t token, int64_t head)
{
    float lses[MAX_PARTS] = {0};
    double weights[MAX_PARTS] = {0}, row[D_V] = {0};
    int64_t lse_at = elem_offset(a->part_lse_stride, batch, token, head);
    int64_t out_at = elem_offset(a->part_out_stride, batch, token, head);
    for (int64_t i = 0; i < a->num_parts; i++) {
        lses[i] = a->part_lses[i][lse_at];
    }
    float lse = (float)merge_weights(lses, a->num_parts, weights);
    for (int64_t i = 0; i < a->num_parts; i++) {
        if (isinf(lses[i])) {
            continue;
        }
        for (int c = 0; c < D_V; c++) {
            row[c] += weights[i] * load_elem(a->part_dtype, a->part_outs[i], out_at + c);
        }
    }
    int64_t to = elem_offset(a->out_stride, batch, token, head);
    for (int c = 0; c < D_V; c++) {
        store_elem(a->out_dtype, a->out, to + c, (float)row[c]);
    }
    if (a->lse != NULL) {
        a->lse[elem_offset(a->lse_stride, batch, token, head)] = isinf(lse) && a->lse_empty_pos_inf
                                                                     ? INFINITY
                                                                     : lse;
    }
}

void mla_cpu_merge(const mla_merge_args *args, int32_t num_threads)
{
    assert(args->num_parts >= 1 && args->num_parts <= MAX_PARTS);
    assert(args->d_v == D_V);
    int64_t num_rows = args->batch * args->s_q * args->h_q;
#pragma omp parallel for num_threads(num_threads)
    for (int64_t i = 0; i < num_rows; i++) {
        merge_row(args, i / (args->s_q * args->h_q), i / args->h_q % args->s_q, i % args->h_q);
    }
}
