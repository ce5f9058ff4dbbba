#!/usr/bin/env bash
# Runs the tests, in a virtual environment of the project's own that it makes first if need be.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    cat <<'HELP'
Usage: ./run_tests.sh [PYTEST ARGUMENTS]

Makes a virtual environment in .venv (or PSLITE_VENV), installs the project with all its extras
into it, and runs the tests, as many files at a time as there are cores (4 at most). A second run
starts at once. Paths in the arguments count from the project's folder.

Examples:
  ./run_tests.sh
  ./run_tests.sh tests/pslite -x
  ./run_tests.sh -n 0 tests/kv/test_store.py --pdb      # in one process, as a debugger needs it
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
# Processes share the files of tests, unless single files are asked for.
parallel=(-n logical --maxprocesses 4 --dist loadfile)
for argument; do
    if [[ -f ${argument%%::*} ]]; then parallel=(); fi
done
# Nodes are processes: each of them would otherwise translate the whole source anew.
unset PYTHONDONTWRITEBYTECODE
exec "$venv/bin/python" -m pytest "${parallel[@]}" "$@"
