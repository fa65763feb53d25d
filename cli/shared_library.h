/* Symbols of libraries that are found at run time. */
#ifndef MLA_CLI_SHARED_LIBRARY_H
#define MLA_CLI_SHARED_LIBRARY_H

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

/* Writes the function `name` to the function pointer at `slot`; false when it is not there.
 * Function pointers do not convert from void * in ISO C, but POSIX lets their bytes be copied. */
static inline bool find_function(void *library, const char *name, void *slot)
{
    void *symbol = dlsym(library, name);
    memcpy(slot, &symbol, sizeof symbol);
    return symbol != NULL;
}

#endif
