"""What a launcher does once before its nodes start, in a process of its own.

Kernels are compiled, since nodes that all start on a cold cache all compile the same; and
`[server] app` is imported, since a mistake there is better reported once than by every server.

    python -m pslite.prepare [--kernels MARKER] [--app MODULE:FUNCTION]

A marker file beside Numba's cache says that the kernels are compiled. Its name holds what they
depend on, so that a launcher that finds it need not even import Numba.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pslite
from pslite.config import JobConfig
from van.errors import PsliteError

KERNELS = Path(pslite.__file__).resolve().parent.parent / "kv" / "kernels"
PREFIX = "pslite-warm-"


def preparation(job: JobConfig, env: Mapping[str, str]) -> list[str]:
    """The arguments for `python -m pslite.prepare`; none if there is nothing to do."""
    arguments = []
    marker = marker_of(KERNELS, env)
    if not marker.exists():
        arguments += ["--kernels", str(marker)]
    if job.server.app:
        arguments += ["--app", job.server.app]
    return arguments


def marker_of(kernels: Path, env: Mapping[str, str]) -> Path:
    """The file that exists when the kernels in the folder `kernels` are compiled."""
    place = Path(env.get("NUMBA_CACHE_DIR") or kernels / "__pycache__")
    if not os.access(place if place.exists() else place.parent, os.W_OK):
        home = env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME", "/tmp"), ".cache")
        place = Path(home) / "pslite"
    return place / f"{PREFIX}{fingerprint(kernels)}"


def fingerprint(kernels: Path) -> str:
    """Short text that changes with the sources of the kernels, with Python and with Numba."""
    parts = [sys.version, importlib.metadata.version("numba")]
    for path in sorted(kernels.glob("*.py")):
        facts = path.stat()
        parts.append(f"{path} {facts.st_mtime_ns} {facts.st_size}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def compile_kernels(marker: Path) -> None:
    """Compile what is not compiled yet, then leave the marker."""
    from kv.compression.rehearsal import play_all
    from kv.kernels.warmup import warm_up
    from kv.optimizers import Optimizer

    for kind in Optimizer.members.values():
        warm_up(8, kind())
    play_all()
    with contextlib.suppress(OSError):  # then the next launcher does all this again
        marker.parent.mkdir(parents=True, exist_ok=True)
        for old in marker.parent.glob(f"{PREFIX}*"):
            old.unlink(missing_ok=True)
        marker.touch()


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pslite.prepare", description=__doc__)
    parser.add_argument("--kernels", type=Path, metavar="MARKER")
    parser.add_argument("--app", metavar="MODULE:FUNCTION")
    given = parser.parse_args(arguments)
    if given.app:
        from pslite.loader import load_function

        try:
            load_function(given.app, section="server", key="app")
        except PsliteError as error:
            print(f"pslite: error: {error}", file=sys.stderr)
            return 2
    if given.kernels:
        begun = time.monotonic()
        print("compiling kernels, once after an installation or a change of version")
        compile_kernels(given.kernels)
        print(f"kernels are ready after {time.monotonic() - begun:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
