/* Versioned argument structs: reading what an older or newer caller passed into today's layout. */
#ifndef MLA_SRC_ARG_STRUCT_H
#define MLA_SRC_ARG_STRUCT_H

#include "mla.h"

/*
 * Copies *source, whose first member is its size_t struct_size, into *target of `size` bytes. A
 * shorter source is an older caller's: the rest becomes zero, the defaults. A longer one is a
 * newer caller's and is accepted when all that this library does not know is zero. `name` is what
 * messages call the argument.
 */
mla_status mla_arg_struct_read(const void *source, size_t size, void *target, const char *name);

/*
 * The opposite for a struct that the library fills: checks *target and copies the part that the
 * caller has room for.
 */
mla_status mla_arg_struct_write(void *target, const void *source, size_t size, const char *name);

#endif
