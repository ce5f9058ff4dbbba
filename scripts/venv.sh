# The project's own virtual environment, for scripts that are run from a source folder.
#
#   root=/path/to/the/project
#   . "$root/scripts/venv.sh"
#   prepare_venv        # makes or updates the environment; then "$venv/bin/python" is its Python
#
# It lies in PSLITE_VENV, or else in .venv beside setup.cfg. A stamp of what was installed lets later
# runs start at once. PYTHON names the interpreter to make it with; it must be 3.11 or newer.
# shellcheck shell=bash
: "${root:?set root to the folder of the project first}"

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

# The first Python that is new enough.
find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
        if [[ -n $candidate ]] && command -v -- "$candidate" >/dev/null &&
            is_new_enough "$candidate"; then
            command -v -- "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed, but none was found (python3 is $(python3 --version 2>&1))." \
        "Install one, or name it: PYTHON=/path/to/python3.11 $0"
}

# What the environment depends on, as one line.
venv_stamp() {
    {
        printf '%s\n' "$root"
        "$venv/bin/python" --version
        cat -- "$root/setup.cfg" "$root/pyproject.toml" "$root/constraints.txt"
    } 2>&1 | cksum
}

is_new_enough() { # PYTHON
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

install_venv() {
    local python log=$venv/install.log
    printf 'Installing into %s (minutes the first time; log: install.log there) ...\n' "$venv" >&2
    if ! is_new_enough "$venv/bin/python"; then
        python=$(find_python) || exit 1
        if [[ -f $venv/pyvenv.cfg ]]; then # an environment of ours, whose Python is gone
            rm -rf -- "${venv:?}/bin" "${venv:?}/lib" "${venv:?}/lib64"
        fi
        if ! "$python" -m venv -- "$venv" >"$log" 2>&1; then
            fail "$python cannot make a virtual environment in $venv:" "$(tail -n 5 -- "$log")" \
                "On Debian and Ubuntu: apt install python3-venv"
        fi
    fi
    # compat: the clone's folder itself is on the path. With a finder instead Python would take a
    # folder `pslite` in the current one, such as the clone, for a package of that name.
    if ! "$venv/bin/python" -m pip --disable-pip-version-check install \
        --config-settings editable_mode=compat -c "$root/constraints.txt" -e "${root}[ctr,test,dev]" >"$log" 2>&1; then
        fail "The installation failed; the end of $log:" "$(tail -n 20 -- "$log")"
    fi
    venv_stamp >"$venv/stamp"
    printf 'Installed in %d s.\n' "$SECONDS" >&2
}

prepare_venv() {
    venv=${PSLITE_VENV:-$root/.venv}
    [[ $venv == /* ]] || venv=$PWD/$venv
    mkdir -p -- "$venv" || fail "The environment cannot be made in $venv."
    if [[ ! -f $venv/pyvenv.cfg && ! -f $venv/lock && -n $(ls -A -- "$venv") ]]; then
        fail "$venv holds other things and no virtual environment; choose another PSLITE_VENV."
    fi
    (
        # Two scripts started together must not install over each other.
        if command -v flock >/dev/null; then flock 9; fi
        if [[ ! -f $venv/stamp || $(<"$venv/stamp") != "$(venv_stamp)" ]]; then
            rm -f -- "$venv/stamp"
            install_venv
        fi
    ) 9>"$venv/lock" || exit 1
}
