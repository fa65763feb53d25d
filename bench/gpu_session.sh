#!/usr/bin/env bash
# Builds, checks and times the CUDA backend in one call on a machine with a Hopper GPU.
#
#   bench/gpu_session.sh [check|bench|all] [build folder]
#
# With a build folder nothing is built: its drivers are run. Every process has a time limit, since a
# deadlocked kernel never returns. The last line adds up what passed, failed and was skipped.
set -u -o pipefail
what=${1:-all}
build=${2:-}
here=$(cd "$(dirname "$0")/.." && pwd)

if [[ -z $build ]]; then
    build=$here/build-gpu
    cmake -S "$here" -B "$build" -DMLA_TOOL=OFF -DMLA_TESTS=OFF >/dev/null &&
        cmake --build "$build" -j || exit 2
fi
drivers=$build/bench
[[ -d $drivers ]] || drivers=$build

# cuBLAS, for the ratios: CUDA's own, or the one that comes with PyTorch.
for folder in /usr/local/cuda/lib64 \
    "$(python3 -c 'import nvidia.cu13 as n; print(n.__path__[0] + "/lib")' 2>/dev/null)"; do
    [[ -e $folder/libcublas.so.13 ]] && export LD_LIBRARY_PATH=$folder:${LD_LIBRARY_PATH:-}
done

log=$(mktemp)
trap 'rm -f "$log"' EXIT
broken=0

run() { # seconds, command ...
    local limit=$1
    shift
    timeout "$limit" "$@" 2>&1 | tee -a "$log"
    local status=$?
    if ((status > 1)); then
        echo "$* ended with status $status"
        broken=$((broken + 1))
    fi
}

sanitize() { # tool, driver, filter
    if ! command -v compute-sanitizer >/dev/null; then
        echo "sanitizer: 0 passed, 0 failed, 1 skipped" | tee -a "$log"
    elif timeout 100 compute-sanitizer --tool "$1" --error-exitcode 9 \
        "$drivers/$2" check "$3" \
        >"$log.$1" 2>&1; then
        echo "sanitizer $1 on $2 '$3': 1 passed, 0 failed, 0 skipped" | tee -a "$log"
    else
        grep -v '^ok' "$log.$1" | head -15
        echo "sanitizer $1 on $2 '$3': 0 passed, 1 failed, 0 skipped" | tee -a "$log"
    fi
    rm -f "$log.$1"
}

if ! nvidia-smi >/dev/null 2>&1; then
    echo "gpu_session.sh: no NVIDIA GPU here: run it on a machine with a Hopper GPU" >&2
    exit 2
fi
nvidia-smi --query-gpu=name,driver_version,power.limit --format=csv,noheader
if [[ $what != bench ]]; then
    run 30 "$drivers/gpu_dense" check smallest
    run 120 "$drivers/gpu_dense" check
    run 60 "$drivers/gpu_dense" repeats
    run 60 "$drivers/gpu_dense" plan
    run 30 "$drivers/gpu_sparse" check "sparse/topk topk=1 "
    run 240 "$drivers/gpu_sparse" check
    run 30 "$drivers/gpu_rows"
    for tool in memcheck synccheck racecheck; do
        sanitize $tool gpu_dense "tail"
        sanitize $tool gpu_dense "few 1000"
        sanitize $tool gpu_sparse "sparse/holes"
        sanitize $tool gpu_sparse "parts-sink num_parts=5 "
        sanitize $tool gpu_sparse "prefill/topk-length"
    done
fi
if [[ $what != check ]]; then
    run 30 "$drivers/gpu_dense" plan-time
    run 60 "$drivers/gpu_dense" small
    run 150 "$drivers/gpu_dense" bench
    run 60 "$drivers/gpu_sparse" small
    run 150 "$drivers/gpu_sparse" bench
fi
awk -v broken=$broken '/ passed, .* failed, .* skipped/ {
        for (i = 1; i < NF; i++) {
            if ($(i + 1) ~ /^passed/) passed += $i
            if ($(i + 1) ~ /^failed/) failed += $i
            if ($(i + 1) ~ /^skipped/) skipped += $i
        }
    }
    END {
        printf "all: %d passed, %d failed, %d skipped\n", passed, failed + broken, skipped
        exit failed + broken > 0
    }' "$log"
