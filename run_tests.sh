#!/usr/bin/env bash
# Runs the tests, in a virtual environment of the project's own that it makes first if need be.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    cat <<'HELP'
Usage: ./run_tests.sh [PYTEST ARGUMENTS]

Makes a virtual environment in .venv (or PSLITE_VENV), installs the project with all its extras
into it, and runs the tests. A second run starts at once. Paths in the arguments count from the
project's folder.

Examples:
  ./run_tests.sh
  ./run_tests.sh tests/pslite -x
  ./run_tests.sh -m slow
  ./run_tests.sh tests/kv --hypothesis-profile=thorough

PYTHON=/path/to/python3.11 names the interpreter, PSLITE_DATA the folder of the public data sets.
HELP
    exit 0
fi

# shellcheck source=scripts/venv.sh
. "$root/scripts/venv.sh"
prepare_venv
cd -- "$root"
exec "$venv/bin/python" -m pytest "$@"
