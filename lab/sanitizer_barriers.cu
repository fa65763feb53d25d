/*
 * What compute-sanitizer (CUDA 13.0, H200) says of barriers that PTX allows. Each kernel hands 128
 * numbers from one warpgroup to the other, in the way that its name says, and is right.
 *
 *   nvcc -gencode arch=compute_90a,code=sm_90a -std=c++17 -I src/cuda -o bars \
 *       lab/sanitizer_barriers.cu
 *   for k in A B C D E; do compute-sanitizer --tool racecheck ./bars $k; done   # and synccheck
 *
 *                                            racecheck               synccheck
 *   A  once: bar.arrive, bar.sync            clean                   clean
 *   B  once: bar.sync at two places          clean                   "divergent threads", aborts
 *   C  eight rounds: two barriers            7 hazards (all false)   clean
 *   D  C with setmaxnreg                     7 hazards (all false)   clean
 *   E  C by mbarriers                        clean                   clean
 *
 * So racecheck does not see that bar.arrive orders the reads before it, which PTX says it does, and
 * synccheck takes one barrier at two places of the program, which PTX allows too, for divergence.
 * Both are what it reports of the seesaw.
 */
#include "ptx/mbarrier.cuh"
#include "ptx/warp.cuh"

#include <cstdio>
#include <cuda_runtime.h>

using namespace mla_ptx;

enum { FILLED = 1, READ = 2, ROUNDS = 8 };

template <bool arrives> __global__ void __launch_bounds__(256, 1) hand_over(int *out)
{
    __shared__ int numbers[128];
    const int i = threadIdx.x % 128;
    if (threadIdx.x < 128) {
        numbers[i] = 3 * i;
        if (arrives) {
            bar_arrive<FILLED, 256>();
        } else {
            bar_sync<FILLED, 256>();
        }
    } else {
        bar_sync<FILLED, 256>();
        out[i] = numbers[127 - i];
    }
}

__device__ __forceinline__ void write_rounds(int *numbers, int i)
{
    for (int round = 0; round < ROUNDS; ++round) {
        if (round > 0) {
            bar_sync<READ, 256>();
        }
        numbers[i] = i * round;
        bar_arrive<FILLED, 256>();
    }
}

__device__ __forceinline__ void read_rounds(const int *numbers, int i, int *out)
{
    int sum = 0;
    for (int round = 0; round < ROUNDS; ++round) {
        bar_sync<FILLED, 256>();
        sum += numbers[127 - i];
        if (round + 1 < ROUNDS) {
            bar_arrive<READ, 256>();
        }
    }
    out[i] = sum;
}

__global__ void __launch_bounds__(256, 1) take_turns(int *out)
{
    __shared__ int numbers[128];
    if (threadIdx.x < 128) {
        write_rounds(numbers, threadIdx.x % 128);
    } else {
        read_rounds(numbers, threadIdx.x % 128, out);
    }
}

__global__ void __launch_bounds__(384, 1) take_turns_with_registers(int *out)
{
    __shared__ int numbers[128];
    const int role = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (role == 0) {
        setmaxnreg_inc<232>();
        write_rounds(numbers, threadIdx.x % 128);
    } else if (role == 1) {
        setmaxnreg_inc<232>();
        read_rounds(numbers, threadIdx.x % 128, out);
    } else {
        setmaxnreg_dec<40>();
    }
}

__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    while (!mbarrier_try_wait(barrier, parity)) {
    }
}

__global__ void __launch_bounds__(256, 1) take_turns_by_mbarriers(int *out)
{
    __shared__ int numbers[128];
    __shared__ uint64_t barriers[2];
    const uint32_t filled = (uint32_t)__cvta_generic_to_shared(&barriers[0]), read = filled + 8;
    const int i = threadIdx.x % 128;
    if (threadIdx.x == 0) {
        mbarrier_init(filled, 128);
        mbarrier_init(read, 128);
    }
    __syncthreads();
    int sum = 0;
    for (int round = 0; round < ROUNDS; ++round) {
        if (threadIdx.x < 128) {
            if (round > 0) {
                mbarrier_wait(read, (round - 1) & 1);
            }
            numbers[i] = i * round;
            mbarrier_arrive(filled);
        } else {
            mbarrier_wait(filled, round & 1);
            sum += numbers[127 - i];
            mbarrier_arrive(read);
        }
    }
    if (threadIdx.x >= 128) {
        out[i] = sum;
    }
}

int main(int argc, char **argv)
{
    const char kind = argc > 1 ? argv[1][0] : 'A';
    int *out, first;
    cudaMalloc(&out, 128 * sizeof *out);
    switch (kind) {
    case 'A':
        hand_over<true><<<1, 256>>>(out);
        break;
    case 'B':
        hand_over<false><<<1, 256>>>(out);
        break;
    case 'C':
        take_turns<<<1, 256>>>(out);
        break;
    case 'D':
        take_turns_with_registers<<<1, 384>>>(out);
        break;
    default:
        take_turns_by_mbarriers<<<1, 256>>>(out);
        break;
    }
    const cudaError_t error = cudaDeviceSynchronize();
    cudaMemcpy(&first, out, sizeof first, cudaMemcpyDeviceToHost);
    const int want = kind < 'C' ? 3 * 127 : 127 * ROUNDS * (ROUNDS - 1) / 2;
    printf("%c: %s, %s\n", kind, cudaGetErrorString(error), first == want ? "right" : "wrong");
    return error != cudaSuccess || first != want;
}
