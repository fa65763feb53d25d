#include "arg_struct.h"
#include "status.h"

#include <string.h>

/* A struct_size beyond this is an uninitialised field, not a newer caller. */
enum { MAX_STRUCT_SIZE = 4096 };

static mla_status read_struct_size(const void *arg, const char *name, size_t *struct_size)
{
    if (arg == NULL) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT, "%s = NULL", name);
    }
    memcpy(struct_size, arg, sizeof *struct_size);
    if (*struct_size < sizeof *struct_size || *struct_size > MAX_STRUCT_SIZE) {
        return mla_fail(MLA_ERR_INVALID_ARGUMENT,
                        "%s->struct_size = %zu: set it to sizeof of the struct", name,
                        *struct_size);
    }
    return MLA_OK;
}

mla_status mla_arg_struct_read(const void *source, size_t size, void *target, const char *name)
{
    size_t struct_size = 0;
    mla_status status = read_struct_size(source, name, &struct_size);
    if (status != MLA_OK) {
        return status;
    }
    const unsigned char *bytes = source;
    for (size_t i = size; i < struct_size; i++) {
        if (bytes[i] != 0) {
            return mla_fail(MLA_ERR_UNSUPPORTED,
                            "%s->struct_size = %zu: a field beyond byte %zu is set that this "
                            "version of libmla does not know",
                            name, struct_size, size);
        }
    }
    memset(target, 0, size);
    memcpy(target, source, struct_size < size ? struct_size : size);
    memcpy(target, &size, sizeof size);
    return MLA_OK;
}

mla_status mla_arg_struct_write(void *target, const void *source, size_t size, const char *name)
{
    size_t struct_size = 0;
    mla_status status = read_struct_size(target, name, &struct_size);
    if (status != MLA_OK) {
        return status;
    }
    size_t room = struct_size < size ? struct_size : size;
    memcpy((char *)target + sizeof size, (const char *)source + sizeof size, room - sizeof size);
    return MLA_OK;
}
