"""The commands `pslite ctl`, which change a running job; each imports what it needs in it."""

from __future__ import annotations

from pathlib import Path

import click

from pslite.cli_options import KEYS, RUN, SCHEDULER, TIMEOUT, VERBOSE, clear_errors, seconds


@click.group()
def ctl() -> None:
    """Change a running job.

    \b
    Example:
      pslite ctl scale --servers 3
    """


@ctl.command()
@RUN
@SCHEDULER
@KEYS
@TIMEOUT
@VERBOSE
@click.option("--servers", type=click.IntRange(1, 1024), required=True, help="How many to have.")
@click.option(
    "--within",
    default=600.0,
    show_default=True,
    callback=seconds,
    help="Seconds to wait for the moves.",
)
def scale(
    run_dir: Path | None,
    scheduler: str | None,
    keys: Path | None,
    timeout: float,
    verbose: int,
    servers: int,
    within: float,
) -> None:
    """Let a running job have another number of servers; it goes on meanwhile.

    Rows move to servers that come, and away from those that leave. In a job of `pslite local` new
    servers are started by its launcher; elsewhere this command says how many are to be started.

    \b
    Examples:
      pslite ctl scale --servers 3
      pslite ctl scale --servers 3 --scheduler host:9091 --keys keys
    """
    from pslite import looking
    from pslite.scaling import launcher_of
    from pslite.scaling import scale as scale_job

    with clear_errors(verbose):
        address = looking.scheduler_of(run_dir, scheduler)
        folder = looking.keys_of(run_dir, scheduler, keys)
        ask = launcher_of(run_dir, scheduler, timeout)
        with looking.observing(address, timeout, folder) as observer:
            scale_job(observer, servers, within, click.echo, ask)
