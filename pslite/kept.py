"""`RUN/checkpoints.jsonl`: where a job keeps checkpoints, by its settings or its program's choice.

The launcher notes the place of the settings, servers each one that they are first asked for. A line
is written at once by one call, so those of several processes do not mix.

    {"url": "saved", "path": "/home/me/saved"}
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from kv.checkpoint.errors import CheckpointError
from kv.checkpoint.places import local_folder
from van.errors import ConfigError

FILE = "checkpoints.jsonl"


def note_place(run: Path, url: str) -> None:
    """Add a place; where that cannot be written it is only not known."""
    line = json.dumps({"url": url, "path": _path_of(url)}).encode() + b"\n"
    with contextlib.suppress(OSError):
        file = os.open(run / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, line)
        finally:
            os.close(file)


def forget_places(run: Path) -> None:
    """Forget what an earlier job noted."""
    with contextlib.suppress(OSError):
        (run / FILE).unlink(missing_ok=True)


def places_of(run: Path) -> dict[str, str]:
    """The places that were noted: by a path or URL that is right everywhere, as they were named."""
    try:
        lines = (run / FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return {}
    found: dict[str, str] = {}
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            noted: dict[str, Any] = json.loads(line)
            found.setdefault(str(noted["path"]), str(noted["url"]))
    return found


def places_of_job(run: Path) -> list[str]:
    """Where the job in the folder `run` has kept checkpoints.

    Raises:
        ConfigError: nowhere, by all that is known there.
    """
    found = list(places_of(run))
    if not found:
        raise ConfigError(f"the job in {run} keeps no checkpoints; name their folder")
    return found


def same_place(url: str) -> str:
    """A text that is the same for all names of a place."""
    return _path_of(url)


def _path_of(url: str) -> str:
    try:
        folder = local_folder(url)
    except CheckpointError:
        folder = None
    return url.rstrip("/") if folder is None else str(folder.resolve())
