#include "cublas_baseline.h"
#include "shared_library.h"

#include <assert.h>
#include <stddef.h>

/* Values of cuBLAS's own enumerations. */
enum { PLAIN = 0, TRANSPOSED = 1, TYPE_BF16 = 14, COMPUTE_FP32 = 68, DEFAULT_ALGORITHM = -1 };

/* Never unloaded: the CUDA runtime that cuBLAS brings does not survive it. */
static void *load_newest(void)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12"};
    void *library = NULL;
    for (size_t i = 0; library == NULL && i < sizeof names / sizeof names[0]; i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

bool cublas_open(cublas_baseline *blas, void *stream)
{
    int (*create)(void **handle);
    int (*set_stream)(void *handle, void *stream);
    int (*get_version)(void *handle, int *version);
    *blas = (cublas_baseline){.library = load_newest()};
    if (blas->library == NULL) {
        return false;
    }
    bool found = find_function(blas->library, "cublasCreate_v2", &create) &&
                 find_function(blas->library, "cublasDestroy_v2", &blas->destroy) &&
                 find_function(blas->library, "cublasSetStream_v2", &set_stream) &&
                 find_function(blas->library, "cublasGetVersion_v2", &get_version) &&
                 find_function(blas->library, "cublasGemmEx", &blas->multiply);
    if (found && create(&blas->handle) == 0) {
        if (set_stream(blas->handle, stream) == 0 &&
            get_version(blas->handle, &blas->version) == 0) {
            return true;
        }
        blas->destroy(blas->handle);
    }
    *blas = (cublas_baseline){.library = NULL};
    return false;
}

void cublas_close(cublas_baseline *blas)
{
    if (blas->library != NULL) {
        blas->destroy(blas->handle);
    }
    *blas = (cublas_baseline){.library = NULL};
}

bool cublas_multiply(const cublas_baseline *blas, int32_t n, const void *a, const void *b, void *c)
{
    const float one = 1.0f, zero = 0.0f;
    assert(blas->library != NULL && n > 0);
    return blas->multiply(blas->handle, TRANSPOSED, PLAIN, n, n, n, &one, a, TYPE_BF16, n, b,
                          TYPE_BF16, n, &zero, c, TYPE_BF16, n, COMPUTE_FP32,
                          DEFAULT_ALGORITHM) == 0;
}
