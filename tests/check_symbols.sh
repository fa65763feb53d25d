#!/bin/sh
# The shared library exports exactly the functions of mla.h, and the list of them that is kept here.
# Usage: check_symbols.sh LIBRARY LIST HEADER
set -eu
exported=$(nm -D --defined-only "$1" | awk '$2 != "A" { print $3 }' | grep -v '^__asan_\|^__odr_asan' |
    LC_ALL=C sort)
declared=$(grep -o '^MLA_API .*' "$3" | grep -o 'mla_[a-z0-9_]*(' | tr -d '(' | LC_ALL=C sort)
failed=0
if [ "$exported" != "$(cat "$2")" ]; then
    echo "exported symbols differ from $2:"
    echo "$exported" | diff "$2" - || true
    failed=1
fi
if [ "$declared" != "$(cat "$2")" ]; then
    echo "functions of $3 differ from $2:"
    echo "$declared" | diff "$2" - || true
    failed=1
fi
if echo "$exported" | grep -v '^mla_'; then
    echo "these symbols do not begin with mla_"
    failed=1
fi
exit $failed
