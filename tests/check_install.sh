#!/bin/sh
# `cmake --install` into a folder that nobody was told about; then a stranger's program is built
# against it through pkg-config and through find_package(), and the installed tool runs.
# Usage: check_install.sh BUILD_FOLDER SOURCE_FOLDER WORK_FOLDER CC [FLAGS ...]
set -eu
build=$1 source=$2 work=$3
shift 3
rm -rf "$work"
mkdir -p "$work"
prefix=$work/prefix
stranger=$source/tests/stranger
cmake --install "$build" --prefix "$prefix" >"$work/install.log"

pc=$(find "$prefix" -name libmla.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
[ "$(cd "$(pkg-config --variable=includedir libmla)" && pwd)" = "$prefix/include" ] ||
    { echo "libmla.pc points to $(pkg-config --variable=includedir libmla)"; exit 1; }
# shellcheck disable=SC2046
"$@" "$stranger/stranger.c" $(pkg-config --cflags --libs libmla) \
    -Wl,-rpath,"$(pkg-config --variable=libdir libmla)" -o "$work/with_pkg_config"
"$work/with_pkg_config"

CC=$1
shift
export CC
cmake -S "$stranger" -B "$work/stranger" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_FLAGS="$*" \
    >"$work/configure.log"
cmake --build "$work/stranger" >"$work/build.log"
"$work/stranger/stranger"

# Embedded: the same target by the same name, and nothing that the stranger did not ask for.
cmake -S "$stranger" -B "$work/embedded" -DMLA_SOURCE="$source" -DMLA_CUDA=OFF \
    >"$work/embedded.log" 2>&1 || { cat "$work/embedded.log"; exit 1; }
[ ! -d "$work/embedded/libmla/cli" ] || { echo "an embedder gets the tool built"; exit 1; }

if [ -x "$prefix/bin/mla" ]; then
    "$prefix/bin/mla" info >"$work/info.log"
fi
