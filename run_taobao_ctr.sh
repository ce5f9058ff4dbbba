#!/usr/bin/env bash
# From raw advertising logs to a tested click model, trained in one process and on a cluster.
# Only the environment is this script's business; the rest is apps/ctr/pipeline.py.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

# shellcheck source=scripts/venv.sh
. "$root/scripts/venv.sh"
for argument in "$@"; do
    if [[ $argument == -h || $argument == --help ]]; then # needs no installation
        python=$(find_python)
        PYTHONPATH=$root exec "$python" -m apps.ctr.pipeline --help
    fi
done
prepare_venv
printf 'set-up done after %d s\n' "$SECONDS"
exec "$venv/bin/python" -m apps.ctr.pipeline "$@"
