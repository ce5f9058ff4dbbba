"""What `pslite simulate` does: simulate, print the table, write the files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from pslite.config import JobConfig
from pslite.simulate.errors import SimulateError
from pslite.simulate.plot import draw, load_figure
from pslite.simulate.report import table, to_json
from pslite.simulate.runs import simulate, total_steps


def run_command(
    job: JobConfig, picture: Path | None, json_file: Path | None, say: Callable[[str], None]
) -> None:
    """Simulate what `[simulate]` of a job says.

    Raises:
        SimulateError: a file cannot be written, or there is nothing to draw with.
    """
    if picture is not None:
        load_figure()
    for option, path in (("--png", picture), ("--json", json_file)):
        _refuse_unwritable(option, path)
    config = job.simulate
    with tqdm(
        total=total_steps(config), unit=" steps", disable=not sys.stderr.isatty(), leave=False
    ) as bar:
        found = simulate(config, bar.update)
    say(table(found))
    if json_file is not None:
        try:
            json_file.write_text(to_json(config, found), encoding="utf-8")
        except OSError as error:
            raise SimulateError(f"--json {json_file} cannot be written: {error.strerror}") from None
    if picture is not None:
        draw(found, picture)


def _refuse_unwritable(option: str, path: Path | None) -> None:
    """Before time is spent on simulating."""
    if path is None:
        return
    place = path if path.exists() else path.resolve().parent
    if not place.exists() or not os.access(place, os.W_OK):
        raise SimulateError(f"{option} {path} cannot be written: no such folder, or it is not ours")
