/* Failure reporting: one status, one thread-local text. */
#ifndef MLA_SRC_STATUS_H
#define MLA_SRC_STATUS_H

#include "mla.h"

/* Stores the text for mla_last_error() and returns `status`. */
mla_status mla_fail(mla_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
