#include "cuda_driver.h"

#include "status.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { OLDEST_DRIVER = 12000 }; /* tensor maps */

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static mla_cuda_driver table;
static char load_error[256]; /* empty when the table is usable */

typedef struct driver_symbol {
    size_t offset; /* of the member in the table */
    const char *name;
    int version;
} driver_symbol;

static const driver_symbol symbols[] = {
#define MLA_CUDA_ENTRY(member, name, type, version)                                                \
    {offsetof(mla_cuda_driver, member), name, version},
    MLA_CUDA_SYMBOLS(MLA_CUDA_ENTRY)
#undef MLA_CUDA_ENTRY
};

/* Function pointers are copied as bytes: ISO C has no conversion from void pointers. */
_Static_assert(sizeof(void *) == sizeof(PFN_cuInit_v2000), "one size of pointers");

static void find_symbols(PFN_cuGetProcAddress_v12000 get_proc_address)
{
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *address = NULL;
        CUdriverProcAddressQueryResult found;
        CUresult result = get_proc_address(symbols[i].name, &address, symbols[i].version,
                                           CU_GET_PROC_ADDRESS_DEFAULT, &found);
        if (result != CUDA_SUCCESS || address == NULL) {
            snprintf(load_error, sizeof load_error, "libcuda lacks %s of CUDA %d.%d",
                     symbols[i].name, symbols[i].version / 1000, symbols[i].version % 1000 / 10);
            return;
        }
        memcpy((char *)&table + symbols[i].offset, &address, sizeof address);
    }
}

static void load_driver(void)
{
    /* Never closed: the driver does not survive being unloaded, and others may use it. */
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *reason = dlerror();
        snprintf(load_error, sizeof load_error, "no NVIDIA driver: %s",
                 reason != NULL ? reason : "libcuda.so.1 not found");
        return;
    }
    PFN_cuGetProcAddress_v12000 get_proc_address;
    void *address = dlsym(library, "cuGetProcAddress_v2");
    if (address == NULL) {
        snprintf(load_error, sizeof load_error, "the NVIDIA driver is older than CUDA %d.%d",
                 OLDEST_DRIVER / 1000, OLDEST_DRIVER % 1000 / 10);
        return;
    }
    memcpy(&get_proc_address, &address, sizeof address);
    find_symbols(get_proc_address);
    if (load_error[0] != '\0') {
        return;
    }
    CUresult result = table.init(0);
    if (result != CUDA_SUCCESS) {
        const char *text = NULL;
        table.error_string(result, &text);
        snprintf(load_error, sizeof load_error, "cuInit: %s", text != NULL ? text : "failed");
    }
}

mla_status mla_cuda_driver_get(const mla_cuda_driver **driver)
{
    pthread_once(&load_once, load_driver);
    if (load_error[0] != '\0') {
        return mla_fail(MLA_ERR_UNSUPPORTED, "CUDA: %s", load_error);
    }
    *driver = &table;
    return MLA_OK;
}

mla_status mla_cuda_check(const mla_cuda_driver *driver, CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS) {
        return MLA_OK;
    }
    const char *text = NULL;
    driver->error_string(result, &text);
    return mla_fail(MLA_ERR_DEVICE, "%s: %s (%d)", what, text != NULL ? text : "unknown error",
                    (int)result);
}
