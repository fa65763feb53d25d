#include "status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

mla_status mla_fail(mla_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return status;
}

const char *mla_last_error(void)
{
    return last_error;
}

const char *mla_status_name(mla_status status)
{
    switch (status) {
    case MLA_OK:
        return "MLA_OK";
    case MLA_ERR_INVALID_ARGUMENT:
        return "MLA_ERR_INVALID_ARGUMENT";
    case MLA_ERR_UNSUPPORTED:
        return "MLA_ERR_UNSUPPORTED";
    case MLA_ERR_BUFFER_TOO_SMALL:
        return "MLA_ERR_BUFFER_TOO_SMALL";
    case MLA_ERR_PLAN_MISMATCH:
        return "MLA_ERR_PLAN_MISMATCH";
    case MLA_ERR_OUT_OF_MEMORY:
        return "MLA_ERR_OUT_OF_MEMORY";
    case MLA_ERR_DEVICE:
        return "MLA_ERR_DEVICE";
    }
    return "unknown status";
}
