#!/usr/bin/env bash
# On a machine with a Hopper GPU, nvcc and torch: builds the library, runs the tests on CUDA tensors,
# prints what a call costs the host and ends with the package's own check.
#
#   python/tests/gpu_session.sh            a sample of the dense grid, about two minutes
#   python/tests/gpu_session.sh --full     all of it (3456 cases)
#
# BUILD_DIR is the build folder (build-gpu), PYTHON the interpreter (python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build_dir=${BUILD_DIR:-build-gpu}
python=${PYTHON:-python3}
[ "${1:-}" = --full ] && export MLA_TEST_FULL=1

cmake -S . -B "$build_dir" -DCMAKE_BUILD_TYPE=Release -DMLA_TOOL=OFF -DMLA_TESTS=OFF >/dev/null
cmake --build "$build_dir" -j "$(nproc)" >"$build_dir/build.log" 2>&1 || {
    cat "$build_dir/build.log"
    exit 1
}

export MLA_LIBRARY=$PWD/$build_dir/src/libmla.so PYTHONPATH=$PWD/python MLA_TEST_DEVICES=cuda
"$python" -c '
import libmla
print(libmla.device_info("cuda"))'

status=0
tests=python/tests
run() { "$python" -m pytest -q -p no:cacheprovider "$@" || status=1; }
run "$tests/test_cuda.py" "$tests/test_engines.py" "$tests/test_compile.py" "$tests/test_sparse.py"
if [ -n "${MLA_TEST_FULL:-}" ] && "$python" -c 'import xdist' 2>/dev/null; then
    OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=2 run -n 6 "$tests/test_dense.py"
else
    run "$tests/test_dense.py"
fi
run -s "$tests/test_overhead.py"
"$python" -m libmla check --device cuda || status=1
exit $status
