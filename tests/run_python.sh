#!/bin/sh
# Runs a script with the first Python that has a module, or says that it is skipped (status 77).
# Usage: run_python.sh MODULE SCRIPT [ARGUMENTS ...]
module=$1
shift
for python in "${MLA_TEST_PYTHON:-python3}" python3 /usr/bin/python3; do
    if "$python" -c "import $module" 2>/dev/null; then
        exec "$python" "$@"
    fi
done
echo "SKIPPED: no Python here has the module $module (Debian: python3-$module)"
exit 77
