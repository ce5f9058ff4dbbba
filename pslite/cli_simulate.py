"""The command `pslite simulate`. It imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from pslite.cli_options import SET, TRACEBACKS, clear_errors


@click.command()
@click.argument("ini", metavar="CONF", type=click.Path(path_type=Path))
@click.option(
    "--png",
    "picture",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also draw idle shares, step rates and staleness; needs Matplotlib.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write all figures to this file; the same settings give the same bytes.",
)
@SET
@TRACEBACKS
def simulate(
    ini: Path,
    picture: Path | None,
    json_file: Path | None,
    overrides: tuple[str, ...],
    verbose: bool,
) -> None:
    """Compare consistency modes on a virtual cluster, in one process.

    What there is to simulate stands in the section [simulate] of CONF: modes, numbers of workers,
    how long they compute and how often much longer, bandwidth and latency. `pslite config CONF`
    lists all its keys. Time is virtual, so hours pass in seconds, and a seed gives one result.

    \b
    Shown of each mode and number of workers:
      nodes      real: all nodes are those of a job; cores: the modes alone ([simulate] real_up_to)
      steps/s    steps of all workers in a virtual second
      idle       the share of the workers' time in which they waited
      staleness  updates of the table between a gradient's pull and its use: mean, p50, p99, max
      dropped    pushes that never counted (backup)

    \b
    Examples:
      pslite simulate conf/simulate.ini
      pslite simulate conf/simulate.ini --png modes.png --json modes.json
      pslite simulate conf/simulate.ini --set simulate.workers=16 --set simulate.modes=ssp:4,sync
    """
    from pslite.config import read_job
    from pslite.simulate.command import run_command

    with clear_errors(verbose):
        run_command(read_job(ini, overrides), picture, json_file, click.echo)
