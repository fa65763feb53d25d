/* cmocka with the headers that it wants included first. */
#ifndef MLA_TESTS_CMOCKA_C11_H
#define MLA_TESTS_CMOCKA_C11_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
