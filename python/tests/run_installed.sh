#!/usr/bin/env bash
# The Python tests against the installed package, in a new virtual environment.
#
#   python/tests/run_installed.sh            numpy only: the files that need torch are named and left out
#   python/tests/run_installed.sh --torch    with torch as the package index has it (5.4 GB installed)
#
# PYTHON is the interpreter (python3), ENV_DIR the environment (build-python). With REUSE_ENV=1 an
# environment that is there is kept, with what is installed in it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
env_dir=${ENV_DIR:-build-python}
packages=(pytest ml_dtypes matplotlib)
[ "${1:-}" = --torch ] && packages+=(torch)

if [ "${REUSE_ENV:-0}" != 1 ]; then
    rm -rf "$env_dir"
    "${PYTHON:-python3}" -m venv "$env_dir"
fi
start=$SECONDS
"$env_dir/bin/pip" install --quiet . "${packages[@]}"
echo "installed in $((SECONDS - start)) s"
env -u MLA_LIBRARY -u PYTHONPATH MLA_TEST_WHEEL=1 "$env_dir/bin/python" -m pytest -q python/tests
