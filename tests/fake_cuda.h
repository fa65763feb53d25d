/*
 * A libcuda.so.1 without a GPU, for tests of what the host side asks of the driver. It shows one
 * device of compute capability 9.0, encodes tensor maps by writing their arguments down, and keeps
 * launches instead of running them.
 */
#ifndef MLA_TESTS_FAKE_CUDA_H
#define MLA_TESTS_FAKE_CUDA_H

#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>

enum { FAKE_CUDA_SMS = 132, FAKE_CUDA_LAUNCHES = 8, FAKE_CUDA_ARGS = 2048 };

/* What a CUtensorMap of this driver holds. */
typedef struct fake_cuda_map {
    uint64_t data;
    uint64_t dims[5], strides[4];
    uint16_t box[5];
    uint8_t rank, type;
} fake_cuda_map;

_Static_assert(sizeof(fake_cuda_map) <= sizeof(CUtensorMap), "a map has room for its arguments");

typedef struct fake_cuda_launch {
    char kernel[64];
    unsigned grid, threads, smem_bytes;
    bool early;
    _Alignas(CUtensorMap) uint8_t args[FAKE_CUDA_ARGS]; /* the kernel's one parameter */
} fake_cuda_launch;

/* What was launched since the count was last set to 0: the library's symbol fake_cuda_launched. */
typedef struct fake_cuda_record {
    int32_t count;
    fake_cuda_launch launches[FAKE_CUDA_LAUNCHES];
} fake_cuda_record;

#endif
