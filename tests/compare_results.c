/* The manual's tolerances, request by request. */
#include "attention_case.h"

#include "cmocka_c11.h"
#include "plain_numbers.h"

#include <math.h>
#include <string.h>

enum { D_V = 512 };

/* Largest norm of the difference, relative to the answer's, and largest cosine difference. */
static const double MAX_NORM_ERROR = 4e-3, MAX_COSINE_ERROR = 5e-6;

/* The element whose error is the largest share of what is allowed. */
typedef struct worst_element {
    double share;
    int64_t row, column;
    double got, want;
} worst_element;

static double out_share(double got, double want)
{
    if (isnan(want) || isnan(got)) {
        return isnan(want) && isnan(got) ? 0.0 : INFINITY;
    }
    if (want == 0.0 || isinf(want)) { /* an answer that is exactly zero belongs to no key */
        return got == want || (want == 0.0 && fabs(got) <= 8e-4) ? 0.0 : INFINITY;
    }
    return fabs(got - want) / (8e-4 + 2.01 / 128.0 * fabs(want));
}

static double float_share(double got, double want)
{
    if (!isfinite(want) || !isfinite(got)) {
        return got == want || (isnan(got) && isnan(want)) ? 0.0 : INFINITY;
    }
    return fabs(got - want) / (1e-6 + 8.01 / 65536.0 * fabs(want));
}

static void note_worst(worst_element *worst, double share, int64_t row, int64_t column, double got,
                       double want)
{
    if (share > worst->share) {
        *worst = (worst_element){share, row, column, got, want};
    }
}

static void report_worst(const mla_problem *p, const worst_element *worst, const char *name)
{
    if (worst->share > 1.0) {
        fail_msg("%s of request %lld, token %lld, head %lld, column %lld is %.9g, should be %.9g "
                 "(%.3g times the tolerance)",
                 name, (long long)(worst->row / (p->s_q * p->h_q)),
                 (long long)(worst->row / p->h_q % p->s_q), (long long)(worst->row % p->h_q),
                 (long long)worst->column, worst->got, worst->want, worst->share);
    }
}

static void compare_floats(const mla_problem *p, const float *got, const float *want,
                           const char *name)
{
    worst_element worst = {0};
    for (int64_t row = 0; row < p->batch * p->s_q * p->h_q; row++) {
        double g = got[row], w = want[row];
        note_worst(&worst, float_share(g, w), row, 0, g, w);
    }
    report_worst(p, &worst, name);
}

static void compare_request(const mla_problem *p, const attention_result *got,
                            const attention_result *want, int64_t req, worst_element *worst)
{
    double got_norm = 0, want_norm = 0, product = 0, difference = 0;
    int64_t rows = p->s_q * p->h_q;
    for (int64_t row = req * rows; row < (req + 1) * rows; row++) {
        bool no_keys = isinf(want->lse[row]);
        for (int64_t i = 0; i < D_V; i++) {
            double g = plain_elem(p->dtype, got->out[row * D_V + i]);
            double w = plain_elem(p->dtype, want->out[row * D_V + i]);
            note_worst(worst, no_keys && g != 0.0 ? INFINITY : out_share(g, w), row, i, g, w);
            if (isfinite(g) && isfinite(w)) {
                got_norm += g * g;
                want_norm += w * w;
                product += g * w;
                difference += (g - w) * (g - w);
            }
        }
    }
    if (want_norm == 0.0) {
        return;
    }
    double error = sqrt(difference / want_norm);
    double cosine_error = 1.0 - 2.0 * product / (got_norm + want_norm);
    if (error > MAX_NORM_ERROR || cosine_error > MAX_COSINE_ERROR) {
        fail_msg("out of request %lld: relative norm of the error %.3g (allowed %.3g), cosine "
                 "difference %.3g (allowed %.3g)",
                 (long long)req, error, MAX_NORM_ERROR, cosine_error, MAX_COSINE_ERROR);
    }
}

void assert_results_close(const mla_problem *p, const attention_result *got,
                          const attention_result *want)
{
    worst_element worst = {0};
    compare_floats(p, got->lse, want->lse, "lse");
    if (want->max_logits != NULL) {
        compare_floats(p, got->max_logits, want->max_logits, "max_logits");
    }
    for (int64_t req = 0; req < p->batch; req++) {
        compare_request(p, got, want, req, &worst);
        report_worst(p, &worst, "out");
    }
}

void assert_request_identical(const mla_problem *p, const attention_result *got, int64_t got_req,
                              const attention_result *want, int64_t want_req)
{
    int64_t rows = p->s_q * p->h_q;
    const float *got_lse = got->lse + got_req * rows, *want_lse = want->lse + want_req * rows;
    const uint16_t *got_out = got->out + got_req * rows * D_V;
    const uint16_t *want_out = want->out + want_req * rows * D_V;
    for (int64_t row = 0; row < rows; row++) {
        if (memcmp(&got_lse[row], &want_lse[row], sizeof(float)) != 0) {
            fail_msg("lse of request %lld, token %lld, head %lld: bits differ, %.9g and %.9g",
                     (long long)got_req, (long long)(row / p->h_q), (long long)(row % p->h_q),
                     (double)got_lse[row], (double)want_lse[row]);
        }
        for (int64_t i = 0; i < D_V; i++) {
            if (got_out[row * D_V + i] != want_out[row * D_V + i]) {
                fail_msg("out of request %lld, token %lld, head %lld, column %lld: bits differ, "
                         "0x%04x and 0x%04x",
                         (long long)got_req, (long long)(row / p->h_q), (long long)(row % p->h_q),
                         (long long)i, got_out[row * D_V + i], want_out[row * D_V + i]);
            }
        }
    }
}

void assert_results_identical(const mla_problem *p, const attention_result *got,
                              const attention_result *want)
{
    for (int64_t req = 0; req < p->batch; req++) {
        assert_request_identical(p, got, req, want, req);
    }
    if (want->max_logits != NULL) {
        assert_memory_equal(got->max_logits, want->max_logits,
                            (size_t)(p->s_q * p->h_q) * sizeof(float));
    }
}
