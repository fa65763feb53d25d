#!/bin/sh
# The first C program of README.md and examples/decode.c compile without warnings, run, and print
# what they promise. Usage: check_readme.sh SOURCE_FOLDER LIBRARY_FOLDER WORK_FOLDER CC [FLAGS ...]
set -eu
source=$1 library=$2 work=$3
shift 3
mkdir -p "$work"
awk '/^```c$/ { inside = 1; next } /^```/ { if (inside) exit } inside' "$source/README.md" \
    >"$work/readme_program.c"
[ -s "$work/readme_program.c" ] || { echo "README.md has no C program"; exit 1; }

for program in "$work/readme_program.c" "$source/examples/decode.c"; do
    binary=$work/$(basename "$program" .c)
    "$@" -std=c11 -Wall -Wpedantic -Werror -I"$source/include" "$program" -L"$library" -lmla \
        -Wl,-rpath,"$library" -o "$binary"
    output=$("$binary")
    echo "$output"
    for promised in 0x3f80 4.6052; do
        case $output in
            *"$promised"*) ;;
            *) echo "$program does not print $promised"; exit 1 ;;
        esac
    done
done
