/* cuBLAS on square bf16 matrices, the yardstick of a GPU's tensor cores, where it is installed. */
#ifndef MLA_CLI_CUBLAS_BASELINE_H
#define MLA_CLI_CUBLAS_BASELINE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cublas_baseline {
    void *library; /* NULL: none */
    void *handle;
    int version; /* as cuBLAS gives it, e.g. 130000 */
    int (*destroy)(void *handle);
    int (*multiply)(void *handle, int transpose_a, int transpose_b, int m, int n, int k,
                    const void *alpha, const void *a, int a_type, int lda, const void *b,
                    int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
                    int compute_type, int algorithm);
} cublas_baseline;

/* For work on `stream` of the current CUDA context. Returns false when there is no cuBLAS. */
bool cublas_open(cublas_baseline *blas, void *stream);
void cublas_close(cublas_baseline *blas);

/* Enqueues c = a^T b of n x n bf16 matrices in device memory, summed in FP32. */
bool cublas_multiply(const cublas_baseline *blas, int32_t n, const void *a, const void *b, void *c);

#endif
