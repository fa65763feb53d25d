/* What all checks of `mla check` are made of: verdicts, and a batch with its expected outputs. */
#include "check.h"

#include <stdarg.h>
#include <stdio.h>

bool check_fail(check_result *result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    result->verdict = CHECK_FAILED;
    vsnprintf(result->detail, sizeof result->detail, format, args);
    va_end(args);
    return false;
}

bool check_take(check_result *result, const comparison *compared)
{
    if (compared->worst_share > result->worst_share) {
        result->worst_share = compared->worst_share;
        snprintf(result->detail, sizeof result->detail, "%s (%.2f of what is allowed)",
                 compared->worst, compared->worst_share);
    }
    if (!compared->passed) {
        result->verdict = CHECK_FAILED;
    }
    return compared->passed;
}

bool check_status(check_result *result, const char *what, mla_status status)
{
    if (status == MLA_OK) {
        return true;
    }
    result->verdict = status == MLA_ERR_UNSUPPORTED ? CHECK_SKIPPED : CHECK_FAILED;
    snprintf(result->detail, sizeof result->detail, "%s: %s: %s", what, mla_status_name(status),
             mla_last_error());
    return false;
}

void check_skip(check_result *result, const char *reason)
{
    result->verdict = CHECK_SKIPPED;
    snprintf(result->detail, sizeof result->detail, "%s", reason);
}

bool check_device(check_result *result, bool ok)
{
    return ok || check_fail(result, "the device failed");
}

bool check_bench_open(check_bench *bench, const engine *reference, const batch_spec *spec,
                      uint64_t seed, check_result *result)
{
    *bench = (check_bench){.reference = reference->ctx};
    if (!batch_build(&bench->input, spec, seed) ||
        !batch_outputs_alloc(&bench->got, &bench->input) ||
        !batch_outputs_alloc(&bench->want, &bench->input)) {
        return check_fail(result, "out of memory");
    }
    mla_status status = job_once(reference, &bench->input, &bench->want);
    return check_status(result, "the reference", status);
}

bool check_bench_place(check_bench *bench, const check_lane *lane, check_result *result)
{
    return check_status(result, "mla_get_sizes",
                        job_open(&bench->work, &lane->runner, &bench->input, &bench->got));
}

bool check_bench_rerun(check_bench *bench, check_result *result)
{
    if (!check_status(result, "mla_run", job_run(&bench->work))) {
        return false;
    }
    return check_device(result, job_fetch(&bench->work)) &&
           (batch_outputs_written(&bench->got, &bench->input) ||
            check_fail(result, "elements of the outputs were not written"));
}

bool check_bench_run(check_bench *bench, check_result *result)
{
    return check_status(result, "mla_plan_build", job_plan(&bench->work)) &&
           check_bench_rerun(bench, result);
}

bool check_bench_compare(const check_bench *bench, check_result *result)
{
    comparison compared;
    const bool rounded_p = engine_rounds_p(bench->work.runner);
    compare_outputs(&bench->input, &bench->got, &bench->want, rounded_p ? bench->reference : NULL,
                    &compared);
    return check_take(result, &compared);
}

void check_bench_close(check_bench *bench)
{
    job_close(&bench->work);
    batch_outputs_free(&bench->want);
    batch_outputs_free(&bench->got);
    batch_free(&bench->input);
}
