#!/bin/sh
# The build of kernels really refuses what it promises to refuse: breaks each rule of
# compile_cubin.cmake once, with a kernel of a few lines.
# Usage: check_cubin_budget.sh NVCC CMAKE COMPILE_CUBIN_SCRIPT FOLDER
set -eu
if ! "$1" --version >/dev/null 2>&1; then
    echo "SKIPPED: no nvcc here"
    exit 77
fi
nvcc=$1 cmake=$2 script=$3
rm -rf "$4"
mkdir -p "$4"
cd "$4"
failed=0

# compile NAME REGISTERS SHARED_BYTES [DEFINES]: builds NAME.cu as the library's build does.
compile()
{
    "$cmake" -D NVCC="$nvcc" -D SOURCE="$1.cu" -D OUTPUT="$1.cubin" -D "BUDGET=$2;$3" \
        -D "DEFINES=${4:-}" -P "$script" >"$1.text" 2>&1
}

accepted()
{
    if compile "$@" && [ -s "$1.cubin" ]; then
        echo "ok: $1 is built with $2 registers and $3 bytes of shared memory"
    else
        echo "FAILED: $1 was refused:"
        cat "$1.text"
        failed=1
    fi
}

# refused REASON NAME ...: the build fails, says why, and leaves no cubin behind.
refused()
{
    reason=$1
    shift
    touch "$1.cubin"
    if compile "$@" || [ -e "$1.cubin" ] || ! tr -s '\n ' ' ' <"$1.text" | grep -q "$reason"; then
        echo "FAILED: $1 with a budget of $2 registers and $3 bytes should fail by '$reason':"
        cat "$1.text"
        failed=1
    else
        echo "ok: $1 is refused ($reason)"
    fi
}

cat >plain.cu <<'EOF'
extern "C" __global__ void plain(float *data)
{
    __shared__ float kept[256];
    kept[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = kept[255 - threadIdx.x];
}
EOF

# 128 values live across a barrier, of a thread that may have 64 registers.
cat >spills.cu <<'EOF'
extern "C" __global__ void __launch_bounds__(1024) spills(float *data)
{
    float kept[128];
#pragma unroll
    for (int i = 0; i < 128; i++) {
        kept[i] = data[i * 1024 + threadIdx.x];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 128; i++) {
        data[i * 1024 + threadIdx.x] = kept[127 - i] * kept[i * 37 % 128];
    }
}
EOF

# An array whose index is not known: memory of the thread, though nothing is spilled.
cat >local_array.cu <<'EOF'
extern "C" __global__ void local_array(float *data, const int *at)
{
    float kept[256];
    for (int i = 0; i < 256; i++) {
        kept[at[i] % 256] = data[i];
    }
    data[threadIdx.x] = kept[at[threadIdx.x] % 256];
}
EOF

# An accumulator is touched while a product with it is under way.
cat >serialized.cu <<'EOF'
#include <stdint.h>
extern "C" __global__ void __launch_bounds__(128) serialized(const uint64_t *tiles, float *out)
{
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int i = 0; i < 4; i++) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "l"(tiles[0]), "l"(tiles[i]));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        sum[0] += 1.0f;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    out[threadIdx.x] = sum[0] + sum[1] + sum[2] + sum[3];
}
EOF

# Without launch bounds ptxas cannot tell how many registers the kernel starts with.
cat >setmaxnreg.cu <<'EOF'
extern "C" __global__ void setmaxnreg(float *out)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    out[threadIdx.x] = 1.0f;
}
EOF

echo '__device__ int nothing_to_launch;' >no_kernel.cu
echo 'this is not C++;' >not_compiled.cu

accepted plain 32 1024
refused 'the budget is 4 registers' plain 4 1024
refused 'the budget is 1023 bytes of shared memory' plain 32 1023
refused 'bytes spill' spills 255 0
refused 'bytes stack frame' local_array 255 0
refused 'instructions are serialized' serialized 255 0
refused "'setmaxnreg' ignored" setmaxnreg 255 0
refused 'no kernel' no_kernel 255 0
refused 'error' not_compiled 255 0
# A debugging build is let off the budget, but not off compiling.
accepted spills 4 0 MLA_DEBUGGING
refused 'error' not_compiled 255 0 MLA_DEBUGGING
exit $failed
