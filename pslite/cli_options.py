"""What the commands share: options, and how an error and an exit code are shown."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import click

from van.errors import PsliteError

EXIT_ERROR = 2  # also click's own code for wrong usage

INI = click.argument("ini", type=click.Path(path_type=Path))
SET = click.option(
    "--set",
    "overrides",
    metavar="SECTION.KEY=VALUE",
    multiple=True,
    help="Override one setting of the ini file; may be repeated.",
)
VERBOSE = click.option(
    "-v", "--verbose", count=True, help="-v: connections and tracebacks, -vv: every message."
)
TRACEBACKS = click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
RUN = click.option(
    "--run",
    "run_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The job's run folder; default: run, in the current folder.",
)
SCHEDULER = click.option(
    "--scheduler", metavar="ADDRESS", help="The scheduler's address instead, such as host:9091."
)
KEYS = click.option(
    "--keys",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --scheduler: the job's folder of keys, if it has [security] curve = on.",
)


def seconds(context: click.Context, option: click.Parameter, value: float) -> float:
    """An option's callback: a time to wait, which has a length and an end."""
    if not 0 < value <= threading.TIMEOUT_MAX:
        raise click.BadParameter(f"{value} is no number of seconds above 0")
    return value


TIMEOUT = click.option(
    "--timeout",
    default=5.0,
    show_default=True,
    callback=seconds,
    help="Seconds to wait for a node's answer.",
)


@contextlib.contextmanager
def clear_errors(verbose: int = 0) -> Iterator[None]:
    """Turn an error of ours into one line on stderr and exit code 2; -v adds the traceback."""
    try:
        yield
    except PsliteError as error:
        if verbose:
            traceback.print_exc()
        click.echo(f"pslite: error: {error}", err=True)
        sys.exit(EXIT_ERROR)


def leave(code: int) -> None:
    """Leave with `code`, quietly even if nobody reads our output any more."""
    for stream in (
        sys.stdout,
        sys.stderr,
    ):  # what one holds at the end would make Python's code 120
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)
