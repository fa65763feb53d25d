#include "compare.h"
#include "random_values.h"
#include "rounding_bound.h"
#include "tool.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { D_V = 512 };

/* The contract: DESIGN.md section 3 and docs/tool.md. */
static const double out_abs_allowed = 8e-4, out_rel_allowed = 2.01 / 128.0;
static const double lse_abs_allowed = 1e-6, lse_rel_allowed = 8.01 / 65536.0;
static const double norm_allowed = 4e-3, cosine_allowed = 5e-6;

/* Sums over the elements of `out` that make up its norm and its angle. */
typedef struct out_sums {
    double got_got, want_want, got_want, diff_diff;
} out_sums;

static void note(comparison *result, double share, const char *name, const int64_t at[4],
                 double got, double want)
{
    if (share <= result->worst_share) {
        return;
    }
    result->worst_share = share;
    char column[32] = "";
    if (at[3] >= 0) {
        snprintf(column, sizeof column, ", %lld", (long long)at[3]);
    }
    snprintf(result->worst, sizeof result->worst, "%s[%lld, %lld, %lld%s] = %.9g, not %.9g", name,
             (long long)at[0], (long long)at[1], (long long)at[2], column, got, want);
}

/* An error as a share of what is allowed. NaN and infinity must be met exactly. */
static double error_share(double got, double want, double abs_allowed, double rel_allowed)
{
    if (isnan(want) || isinf(want) || isnan(got) || isinf(got)) {
        bool same = isnan(want) ? isnan(got) : got == want;
        return same ? 0.0 : INFINITY;
    }
    return fabs(got - want) / (abs_allowed + rel_allowed * fabs(want));
}

static void compare_scalar(comparison *result, const char *name, const int64_t at[4], double got,
                           double want)
{
    note(result, error_share(got, want, lse_abs_allowed, lse_rel_allowed), name, at, got, want);
    if (isfinite(got) && isfinite(want)) {
        result->lse_error = fmax(result->lse_error, fabs(got - want));
    }
}

static void compare_head(comparison *result, out_sums *sums, const batch *input,
                         const mla_ctx *rounded_p, int64_t at[4], const uint16_t *got_bits,
                         const uint16_t *want_bits)
{
    const mla_dtype dtype = input->problem.dtype;
    double bound[ROUNDING_BOUND_COLUMNS];
    bool bounded = false; /* worked out only for rows that need it */
    for (int64_t column = 0; column < D_V; column++) {
        double got = elem_to_float(dtype, got_bits[column]);
        double want = elem_to_float(dtype, want_bits[column]);
        double share = error_share(got, want, out_abs_allowed, out_rel_allowed);
        if (share > 1.0 && rounded_p != NULL) {
            bounded = bounded || rounding_bound_row(rounded_p, input, at[0], at[1], at[2], bound);
            share = !bounded
                        ? share
                        : error_share(got, want, out_abs_allowed + bound[column], out_rel_allowed);
        }
        if (share > result->worst_share) {
            at[3] = column;
            note(result, share, "out", at, got, want);
        }
        if (isfinite(got) && isfinite(want)) {
            sums->got_got += got * got;
            sums->want_want += want * want;
            sums->got_want += got * want;
            sums->diff_diff += (got - want) * (got - want);
        }
    }
    at[3] = -1;
}

static void conclude(comparison *result, const out_sums *sums)
{
    if (sums->want_want > 0.0) {
        result->out_norm = sqrt(sums->diff_diff / sums->want_want);
        /* 1 - 2 x.y / (x.x + y.y), which is what the tolerance of 5e-6 was stated for. */
        result->out_cosine = 1.0 - 2.0 * sums->got_want / (sums->got_got + sums->want_want);
    }
    double norm_share = result->out_norm / norm_allowed;
    double cosine_share = result->out_cosine / cosine_allowed;
    if (fmax(norm_share, cosine_share) > result->worst_share) {
        result->worst_share = fmax(norm_share, cosine_share);
        snprintf(result->worst, sizeof result->worst,
                 "out as a whole: relative error %.2e (allowed %.0e), cosine difference %.2e "
                 "(allowed %.0e)",
                 result->out_norm, norm_allowed, result->out_cosine, cosine_allowed);
    }
    result->passed = result->worst_share <= 1.0;
}

static int64_t element(const int64_t stride[3], const int64_t at[3])
{
    return at[0] * stride[0] + at[1] * stride[1] + at[2] * stride[2];
}

void compare_rows(const batch *input, const mla_tensors *got, const mla_tensors *want,
                  const row_range *range, const mla_ctx *rounded_p, comparison *result)
{
    const mla_problem *problem = &input->problem;
    *result = (comparison){.worst_share = 0.0};
    out_sums sums = {0.0, 0.0, 0.0, 0.0};
    assert(range->first_request + range->num_requests <= problem->batch);
    assert(range->first_token + range->num_tokens <= problem->s_q);
    assert(range->first_head + range->num_heads <= problem->h_q);
    const int64_t *got_out = got->out_stride, *want_out = want->out_stride;
    const int64_t *got_lse = got->lse_stride, *want_lse = want->lse_stride;
    for (int64_t r = 0; r < range->num_requests; r++) {
        for (int64_t t = 0; t < range->num_tokens; t++) {
            for (int64_t h = 0; h < range->num_heads; h++) {
                int64_t at[4] = {range->first_request + r, range->first_token + t,
                                 range->first_head + h, -1};
                compare_head(result, &sums, input, rounded_p, at,
                             (const uint16_t *)got->out + element(got_out, at),
                             (const uint16_t *)want->out + element(want_out, (int64_t[]){r, t, h}));
                compare_scalar(result, "lse", at, got->lse[element(got_lse, at)],
                               want->lse[element(want_lse, (int64_t[]){r, t, h})]);
                if (got->max_logits != NULL && want->max_logits != NULL) {
                    compare_scalar(result, "max_logits", at,
                                   got->max_logits[at[1] * problem->h_q + at[2]],
                                   want->max_logits[t * range->num_heads + h]);
                }
            }
        }
    }
    conclude(result, &sums);
}

/* Marks the bytes of `block` that belong to an element, then looks for changes in the others. */
static bool surroundings_untouched(const guarded_memory *block, size_t offset,
                                   const int64_t dims[4], const int64_t strides[3],
                                   size_t elem_bytes, const char *name, comparison *result)
{
    uint8_t *owned = tool_alloc(block->bytes, 1);
    for (int64_t r = 0; r < dims[0]; r++) {
        for (int64_t t = 0; t < dims[1]; t++) {
            for (int64_t h = 0; h < dims[2]; h++) {
                int64_t elem = r * strides[0] + t * strides[1] + h * strides[2];
                size_t row = (size_t)dims[3] * elem_bytes;
                memset(owned + offset + (size_t)elem * elem_bytes, 1, row);
            }
        }
    }
    bool ok = true;
    for (size_t i = 0; ok && i < block->bytes; i++) {
        uint8_t pattern = i % 2 == 0 ? 0xa5 : 0xff;
        if (!owned[i] && block->data[i] != pattern) {
            ok = false;
            result->worst_share = INFINITY;
            snprintf(result->worst, sizeof result->worst,
                     "%s: byte %lld, which belongs to no element, was written", name,
                     (long long)i - (long long)offset);
        }
    }
    free(owned);
    return ok;
}

void compare_outputs(const batch *input, const batch_outputs *got, const batch_outputs *want,
                     const mla_ctx *rounded_p, comparison *result)
{
    const mla_problem *problem = &input->problem;
    mla_tensors got_tensors = batch_host_tensors(input, got);
    mla_tensors want_tensors = batch_host_tensors(input, want);
    row_range all = {0, problem->batch, 0, problem->s_q, 0, problem->h_q};
    compare_rows(input, &got_tensors, &want_tensors, &all, rounded_p, result);

    const int64_t out_dims[4] = {problem->batch, problem->s_q, problem->h_q, D_V};
    const int64_t lse_dims[4] = {problem->batch, problem->s_q, problem->h_q, 1};
    const int64_t max_strides[3] = {problem->s_q * problem->h_q, problem->h_q, 1};
    bool clean = surroundings_untouched(&got->memory[0], got->offset, out_dims,
                                        input->tensors.out_stride, 2, "out", result) &&
                 surroundings_untouched(&got->memory[1], got->offset, lse_dims,
                                        input->tensors.lse_stride, 4, "lse", result);
    if (clean && got->memory[2].data != NULL) {
        clean = surroundings_untouched(&got->memory[2], got->offset, lse_dims, max_strides, 4,
                                       "max_logits", result);
    }
    result->passed = result->passed && clean;
}

bool outputs_same_bytes(const batch_outputs *a, const batch_outputs *b, comparison *result)
{
    for (int i = 0; i < TENSOR_OUTPUTS; i++) {
        const guarded_memory *x = &a->memory[i], *y = &b->memory[i];
        assert(x->bytes == y->bytes);
        for (size_t n = 0; n < x->bytes; n++) {
            if (x->data[n] != y->data[n]) {
                result->passed = false;
                result->worst_share = INFINITY;
                snprintf(result->worst, sizeof result->worst, "%s differs at byte %lld",
                         tensor_name((tensor_id)(TENSOR_FIRST_OUTPUT + i)),
                         (long long)n - (long long)a->offset);
                return false;
            }
        }
    }
    return true;
}
